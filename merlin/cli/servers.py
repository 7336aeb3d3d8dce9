"""The servers as commands need them: configured, reachable, and explained if they are not."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.errors import ExecutionError, UsageError, WorkspaceError

if TYPE_CHECKING:
    from merlin.cli.choose_workers import WorkerFilter
    from merlin.config.model import Config, Endpoint
    from merlin.config.reach import Reach
    from merlin.execution.distributed.launch import Queues
    from merlin.execution.distributed.redis_registry import RedisRegistry
    from merlin.execution.distributed.registry import WorkerInfo
    from merlin.spec.model import Document

PATIENCE_S = 10.0  # for a server that has to answer; one that is only looked at has less
LOCAL_HINT = "To run on this machine alone, add --local."


def require_reachable(config: Config, *, hint: str = "") -> list[str]:
    """Warnings about the servers of `config`.

    Raises ExecutionError within `PATIENCE_S` if one of them cannot be used: the message names the server, says what
    is wrong and what to do; `hint` is added to it.
    """
    reached = [reach for _, reach in reach_all(config, PATIENCE_S)]
    problems = [r.detail + (f"\n  {r.hint}" if r.hint else "") for r in reached if not r.ok]
    if problems:
        where = f"It is configured by {config.path or config.origin}; merlin doctor looks closer."
        raise ExecutionError("\n  ".join([*problems, where, *([hint] if hint else [])]))
    return [f"{reach.detail}, but {reach.hint}" for reach in reached if reach.hint]


def reach_all(config: Config, timeout_s: float | None = None) -> list[tuple[Endpoint, Reach]]:
    """The broker and the backend, asked at the same time; one entry if they are the same server."""
    from merlin.config.reach import TIMEOUT_S, check_endpoint

    limit_s = TIMEOUT_S if timeout_s is None else timeout_s
    endpoints = [config.broker] if config.broker == config.backend else [config.broker, config.backend]
    with ThreadPoolExecutor(len(endpoints)) as pool:
        reached = pool.map(lambda endpoint: check_endpoint(endpoint, limit_s), endpoints)
        return list(zip(endpoints, reached, strict=True))


def open_registry(config: Config) -> RedisRegistry:
    """Who works for this user. Raises ExecutionError if Redis does not answer."""
    from merlin.execution.distributed.connect import redis_client
    from merlin.execution.distributed.redis_registry import RedisRegistry

    return RedisRegistry(redis_client(config), config)


def workers_here(registry: RedisRegistry) -> list[WorkerInfo]:
    """The live workers of this host; one that was killed a moment ago is not among them."""
    import socket

    from merlin.base.processes import read_process

    host = socket.gethostname()
    return [w for w in registry.workers() if w.host == host and read_process(w.pid) is not None]


def make_filter(spec: Path | None, queues: Collection[str], patterns: Collection[str]) -> WorkerFilter:
    """What --spec, --queues and --workers ask for."""
    from merlin.cli.choose_workers import WorkerFilter
    from merlin.execution.distributed.launch import queues_of

    named = None
    if spec is not None:
        document, by_step = load_workers(spec, {})
        workers = document.merlin.resources.workers
        named = {name: queues_of(by_step, set(worker.steps)) for name, worker in workers.items()}
    return WorkerFilter(queues=queues, patterns=patterns, spec=named)


def open_queues(config: Config) -> list[str]:
    """Queues, as in specs, that have a live worker or belong to an open study; sorted."""
    from merlin.execution.distributed.launch import plain_queue

    registry = open_registry(config)
    names = {plain_queue(config, queue) for worker in registry.workers() for queue in worker.queues}
    names |= {queue for study in registry.studies() for queue in study.queues}
    return sorted(names)


def load_workers(path: Path, variables: dict[str, str]) -> tuple[Document, Queues]:
    """The document and the queues per step of a spec, or of the study in a workspace.

    Raises:
        SpecError: the spec is wrong.
        UsageError: variables are given for a workspace, whose variables are settled.
    """
    from merlin.execution.distributed.launch import queues_by_step
    from merlin.spec.load import load_spec

    if path.is_dir():
        return _of_workspace(path, variables)
    spec = load_spec(path, variables=variables, allow_undefined=True)
    if any("$(" in step.run.task_queue for step in spec.document.study):
        from merlin.workspace.prepare import plan_only

        return spec.document, _of_plan([(i.step, i.queue) for i in plan_only(spec).instances])
    return spec.document, queues_by_step(spec.document)


def _of_workspace(path: Path, variables: dict[str, str]) -> tuple[Document, Queues]:
    from merlin.spec.load import load_spec
    from merlin.workspace.directory import open_workspace

    if variables:
        raise UsageError(f"--vars changes a spec, and {path} is a workspace; its variables are settled")
    workspace = open_workspace(path)
    expanded = sorted(workspace.info.glob("*.expanded.yaml"))
    if len(expanded) != 1:
        raise WorkspaceError(
            f"{workspace.info} should hold one *.expanded.yaml, and has {len(expanded)}; give the spec"
        )
    spec = load_spec(expanded[0], allow_undefined=True)
    return spec.document, _of_plan([(i.step, i.queue) for i in workspace.plan.instances])


def _of_plan(pairs: list[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    queues: dict[str, dict[str, None]] = {}
    for step, queue in pairs:
        queues.setdefault(step, {})[queue] = None
    return {step: tuple(names) for step, names in queues.items()}
