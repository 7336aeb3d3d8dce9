"""Why nothing, or nothing more, runs: every condition that is not met, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from merlin.base.locks import LockTaken, locked
from merlin.base.records import as_kind, parsed
from merlin.base.text import count
from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord
from merlin.batch.jobs import SchedulerClient
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import ConfigError, ExecutionError, MerlinError, command_line
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.worker_jobs import AUTOSCALE_LOCK, autoscale_log, jobs_folder
from merlin.plan.bad_nodes import why_quarantined
from merlin.views.published import PublishedStudy
from merlin.views.queues import served_queues
from merlin.views.servers import open_registry, reach_all
from merlin.views.watch import Look
from merlin.views.worker_jobs import our_jobs
from merlin.workspace.directory import Workspace, open_workspace

MAX_JOBS = 5  # that are named for one reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A condition that is not met, and what to do about it."""

    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What runs, and what keeps more from running."""

    num_chunks: int  # that run
    num_workers: int  # alive, on the queues
    obstacles: tuple[Obstacle, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.num_chunks else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an explanation is wanted of."""

    path: Path  # a spec or workspace, as it was given
    queues: tuple[str, ...]
    clients: Sequence[SchedulerClient]  # () if no scheduler is there
    records: Sequence[JobRecord]  # of its worker jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The part of a line of autoscale's decisions that is of interest here."""

    move: str
    reason: str


def explain(asked: Asked) -> Explanation:
    """Look at servers, studies, workers and jobs, as far as they can be asked."""
    try:
        config = find_config()
    except ConfigError as error:
        return _nothing(Obstacle(what=str(error), remedy=command_line("config", "check")))
    if config is None:
        start = f"{command_line('server', 'start')}, or {command_line('config', 'create')}"
        return _nothing(Obstacle(what="no broker is configured, so no worker can get work", remedy=start))
    unreachable = [
        Obstacle(what=reach.detail, remedy=reach.hint or command_line("doctor"))
        for _, reach in reach_all(config)
        if not reach.ok
    ]
    if unreachable:
        return _nothing(*unreachable, *_of_jobs(asked, []))
    try:
        return _of_studies(asked, config)
    except ExecutionError as error:
        return _nothing(Obstacle(what=str(error), remedy=command_line("doctor")))


def _nothing(*obstacles: Obstacle) -> Explanation:
    return Explanation(num_chunks=0, num_workers=0, obstacles=obstacles)


def _of_studies(asked: Asked, config: Config) -> Explanation:
    workers = open_registry(config).workers()
    ours = [worker for worker in workers if served_queues(worker, config) & set(asked.queues)]
    found: list[Obstacle] = []
    studies = _studies(asked, config)
    for workspace in studies:
        found += of_study(asked, workspace.path, PublishedStudy(workspace, config).look())
    if not studies:
        start = command_line("run", asked.path)
        found.append(Obstacle(what="no open study of yours uses these queues", remedy=start))
    leaving = [worker for worker in ours if worker.is_stopping]
    if ours and len(leaving) == len(ours):
        found.append(Obstacle(what="every worker of these queues is ending", remedy=_more_workers(asked)))
    found += [*_of_jobs(asked, workers), *_of_autoscale(asked.path)]
    return Explanation(
        num_chunks=sum(len(worker.running) for worker in ours), num_workers=len(ours), obstacles=tuple(found)
    )


def _studies(asked: Asked, config: Config) -> list[Workspace]:
    """The study of the workspace, else the open ones on the spec's queues that can be read here."""
    if asked.path.is_dir():
        return [open_workspace(asked.path)]
    found = []
    for info in open_registry(config).studies():
        if set(info.queues) & set(asked.queues):
            with suppress(MerlinError):  # it lies where this machine cannot see it
                found.append(open_workspace(Path(info.workspace)))
    return found


def of_study(asked: Asked, path: Path, look: Look) -> Iterator[Obstacle]:
    """What keeps more of the study in a workspace from running."""
    if look.state == "complete":
        yield Obstacle(what=f"{path} has ended: every task has an outcome")
    elif look.state in ("stopped", "dropped"):
        again = command_line("restart", path)
        yield Obstacle(what=f"{path} has stopped: {look.reason or 'it was never published'}", remedy=again)
    elif look.state == "gone":
        yield Obstacle(what=f"Redis does not hold {path} any more", remedy=command_line("monitor", path))
    elif look.state == "unreachable":
        yield Obstacle(what=look.reason, remedy=command_line("doctor"))
    elif look.idle_queues or look.short_of_time or look.bad_nodes:
        if names := ", ".join(look.idle_queues):
            yield Obstacle(
                what=f"tasks of {path} wait, and no worker serves {names}", remedy=_more_workers(asked)
            )
        bad = [why_quarantined(node, step) for node, step in sorted(look.bad_nodes.items())]
        for reason in bad:
            yield Obstacle(what=reason, remedy=_of_bad_node(path))
        for reason in look.short_of_time:
            if reason not in bad:
                yield Obstacle(what=reason, remedy=_more_workers(asked))
    elif not any(c.ready or c.queued or c.running for c in look.per_step.values()):
        waiting = [step for step, counts in look.per_step.items() if counts.waiting]
        yield Obstacle(
            what=f"no task of {path} could start now; {', '.join(waiting) or 'all'} wait for others"
        )


def _of_bad_node(path: Path) -> str:
    return (
        f"see what failed there: {command_line('failures', path)}; tell those who run the machine; "
        f"for a run on all nodes again: {command_line('restart', path)}"
    )


def _more_workers(asked: Asked) -> str:
    here = command_line("run-workers", asked.path)
    return f"{command_line('workers', 'submit', asked.path)}, or here: {here}" if asked.clients else here


def _of_jobs(asked: Asked, workers: Sequence[WorkerInfo]) -> Iterator[Obstacle]:
    """What the scheduler says about the jobs that should bring workers, and how the last of them ended."""
    jobs: list[Job] = []
    for client in asked.clients:
        try:
            jobs += our_jobs(client, workers)
        except ExecutionError as error:
            yield Obstacle(what=str(error), remedy="wait for the scheduler, or ask those who run it")
            return
    reasons: dict[str, list[str]] = {}
    for job in jobs:
        if job.state is JobState.PENDING:
            reasons.setdefault(job.reason or "the scheduler gives no reason", []).append(job.id)
    for reason, ids in reasons.items():
        more = f" and {len(ids) - MAX_JOBS} more" if len(ids) > MAX_JOBS else ""
        yield Obstacle(
            what=f"{count(len(ids), 'worker job')} ({', '.join(ids[:MAX_JOBS])}{more}) wait: {reason}",
            remedy="fewer nodes or a shorter walltime start sooner",
        )
    live = {worker.job for worker in workers}
    for job in jobs:
        if job.state is JobState.RUNNING and job.id not in live:
            show = command_line("workers", "logs", asked.path, "--job", job.id)
            yield Obstacle(what=f"job {job.id} runs, and no worker of it has reported", remedy=show)
    if not jobs and asked.records:
        yield from _last_end(asked, asked.records[-1])


def _of_autoscale(path: Path) -> Iterator[Obstacle]:
    """Why an autoscale that is alive submits nothing, in its own words."""
    lock = jobs_folder(path) / AUTOSCALE_LOCK
    try:
        if lock.exists():
            with locked(lock):
                return  # nobody has it
    except LockTaken:
        with suppress(OSError, ValueError, IndexError):
            last = as_kind(parsed(autoscale_log(path).read_text("utf-8").splitlines()[-1]), _Decision)
            if last.move == "wait":
                yield Obstacle(what=f"merlin workers autoscale submits no job: {last.reason}")


def _last_end(asked: Asked, last: JobRecord) -> Iterator[Obstacle]:
    if last.refused:
        yield Obstacle(
            what=f"the last worker job was refused: {last.refused}", remedy=f"look at {last.script}"
        )
    elif last.id:
        how = f" ({last.seen.state})" if last.seen and last.seen.state.is_over else ""
        show = command_line("workers", "logs", asked.path, "--job", last.id)
        yield Obstacle(
            what=f"no worker job waits or runs; the last one, {last.id}, has ended{how}", remedy=show
        )
