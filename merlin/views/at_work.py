"""Who is at work, and what waits: the workers and the queues, as pages and metrics show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from merlin.base.text import short_name
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import ConfigError, ExecutionError, command_line
from merlin.execution.distributed.queues import queue_depths
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.queues import open_queues, served_queues
from merlin.views.servers import open_registry


class RunningLine(Struct, frozen=True, kw_only=True):
    """A chunk that a worker runs."""

    study: str  # the id in its plan
    step: str  # "" for another study's
    instance: str
    lo: int
    hi: int
    since: float  # epoch seconds


class WorkerLine(Struct, frozen=True, kw_only=True):
    """A worker that is alive."""

    name: str
    host: str
    node: str = ""  # the scheduler's name of the host, in an allocation
    queues: tuple[str, ...] = ()  # as in specs
    slots: int  # chunks at a time
    cores: int = 0  # 0: not known
    gpus: tuple[str, ...] = ()
    running: tuple[RunningLine, ...] = ()
    started: float
    age_s: float  # since it was last heard of
    job: str = ""  # the id of the allocation that it lives in
    ends: float | None = None  # when the walltime of that allocation is over
    is_stopping: bool = False


class QueueLine(Struct, frozen=True, kw_only=True):
    """A queue, as in specs."""

    name: str
    depth: int | None  # waiting messages; None: the broker cannot be asked
    num_workers: int
    oldest_s: float | None  # for which the oldest chunk on offer has waited; None: none does, or not known


class WorkersPage(Struct, frozen=True, kw_only=True):
    """All workers and queues of this user; `note` says why there may be nothing to see."""

    workers: tuple[WorkerLine, ...]
    queues: tuple[QueueLine, ...]
    note: str = ""


def workers_page() -> WorkersPage:
    """All live workers, and the queues that they or open studies use. It asks the servers: up to some seconds."""
    try:
        config = find_config()
        if config is None:
            start = command_line("server", "start")
            note = (
                f"no broker is configured, so studies run on this machine, without workers elsewhere; {start}"
            )
            return WorkersPage(workers=(), queues=(), note=note)
        infos = open_registry(config).workers()
        queues = queue_lines(config, open_queues(config), infos, {})
    except (ConfigError, ExecutionError) as error:
        return WorkersPage(workers=(), queues=(), note=f"the servers cannot be asked: {error}")
    return WorkersPage(workers=tuple(worker_line(info, config) for info in infos), queues=queues)


def worker_line(
    info: WorkerInfo, config: Config, steps: Mapping[tuple[str, str], str] | None = None
) -> WorkerLine:
    """A worker as it is shown; `steps`: (study id, step instance) -> step."""
    known = steps or {}
    return WorkerLine(
        name=short_name(info.name),
        host=info.host,
        node=info.node,
        queues=tuple(sorted(served_queues(info, config))),
        slots=info.concurrency,
        cores=info.cores,
        gpus=tuple(info.gpus),
        running=tuple(
            RunningLine(
                study=chunk.study,
                step=known.get((chunk.study, chunk.instance), ""),
                instance=chunk.instance,
                lo=chunk.lo,
                hi=chunk.hi,
                since=chunk.since,
            )
            for chunk in info.running
        ),
        started=info.started,
        age_s=info.age_s,
        job=info.job,
        ends=info.ends,
        is_stopping=info.is_stopping,
    )


def queue_lines(
    config: Config,
    names: Iterable[str],
    workers: Sequence[WorkerInfo],
    oldest_s: Mapping[str, float],
) -> tuple[QueueLine, ...]:
    """These queues with their depths; a broker that does not answer costs the depths alone."""
    queues = sorted(set(names))
    served = [served_queues(worker, config) for worker in workers]
    depths = _depths(config, queues)
    return tuple(
        QueueLine(
            name=name,
            depth=depths.get(name),
            num_workers=sum(name in each for each in served),
            oldest_s=oldest_s.get(name),
        )
        for name in queues
    )


def _depths(config: Config, queues: Collection[str]) -> dict[str, int]:
    try:
        return {name: info.depth for name, info in queue_depths(config, queues).items()}
    except ExecutionError:
        return {}
