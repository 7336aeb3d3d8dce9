"""Live workers and the queues that they serve: of a spec, of this host, or as a command line chooses them."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from merlin.base.processes import read_process
from merlin.base.text import short_name
from merlin.config.model import Config
from merlin.errors import UsageError, WorkspaceError
from merlin.execution.distributed.launch import Queues, plain_queue, queues_by_step, queues_of
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import WorkerInfo
from merlin.spec.load import load_spec
from merlin.spec.model import Document
from merlin.views.queues import served_queues
from merlin.workspace.holding import open_finished


class WorkerFilter(Struct, frozen=True, kw_only=True):
    """All that is given must hold: one of the queues, and one of the patterns or of the spec's workers."""

    queues: Collection[str] = ()  # any of a queue's names
    patterns: Collection[str] = ()  # regular expressions, found anywhere in the name
    spec: Mapping[str, Collection[str]] | None = None  # a spec's workers and their queues

    @property
    def is_empty(self) -> bool:
        return not self.queues and not self.patterns and self.spec is None


def make_filter(spec: Path | None, queues: Collection[str], patterns: Collection[str]) -> WorkerFilter:
    """The filter that --spec, --queues and --workers ask for."""
    named = None
    if spec is not None:
        document, by_step = load_workers(spec, {})
        workers = document.merlin.resources.workers
        named = {name: queues_of(by_step, set(worker.steps)) for name, worker in workers.items()}
    return WorkerFilter(queues=queues, patterns=patterns, spec=named)


def choose_workers(
    workers: Sequence[WorkerInfo], wanted: WorkerFilter, config: Config | None = None
) -> list[WorkerInfo]:
    """The workers that pass. Raises UsageError for a pattern that is no regular expression."""
    patterns = [_compiled(pattern) for pattern in wanted.patterns]
    queues = {plain_queue(config, queue) for queue in wanted.queues}

    def passes(worker: WorkerInfo) -> bool:
        served = served_queues(worker, config)
        if queues and not queues & served:
            return False
        if not patterns and wanted.spec is None:
            return True
        # the name alone will not do: many studies have a default_worker
        return any(pattern.search(worker.name) for pattern in patterns) or any(
            re.match(rf"{re.escape(name)}(-\d+)?\.", short_name(worker.name)) and served & set(of_spec)
            for name, of_spec in (wanted.spec or {}).items()
        )

    return [worker for worker in workers if passes(worker)]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--workers takes regular expressions, and {pattern!r} is none: {error}; example: --workers 'sim.*'"
        ) from None


def workers_here(registry: RedisRegistry) -> list[WorkerInfo]:
    """The live workers of this host; one that was killed a moment ago is not among them."""
    host = socket.gethostname()
    return [w for w in registry.workers() if w.host == host and read_process(w.pid) is not None]


def load_workers(path: Path, variables: dict[str, str]) -> tuple[Document, Queues]:
    """The document and the queues per step of a spec, or of the study in a workspace.

    Raises:
        SpecError: the spec is wrong.
        UsageError: variables are given for a workspace, whose variables are settled.
    """
    if path.is_dir():
        if variables:
            raise UsageError(f"--vars changes a spec, and {path} is a workspace; its variables are settled")
        workspace = open_finished(path, logging.getLogger("merlin").warning)
        expanded = sorted(workspace.info.glob("*.expanded.yaml"))
        if len(expanded) != 1:
            raise WorkspaceError(
                f"{workspace.info} should hold one *.expanded.yaml, and has {len(expanded)}; give the spec"
            )
        document, plan = load_spec(expanded[0], allow_undefined=True).document, workspace.plan
    else:
        spec = load_spec(path, variables=variables, allow_undefined=True)
        document = spec.document
        if not any("$(" in step.run.task_queue for step in document.study):
            return document, queues_by_step(document)
        from merlin.workspace.prepare import plan_only  # heavy, and rarely needed

        plan = plan_only(spec)
    queues: dict[str, dict[str, None]] = {}
    for instance in plan.instances:
        queues.setdefault(instance.step, {})[instance.queue] = None
    return document, {step: tuple(names) for step, names in queues.items()}
