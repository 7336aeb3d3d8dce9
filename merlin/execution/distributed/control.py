"""Commands on a study that runs on workers: cancel and stop."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.base.files import was_removed
from merlin.base.processes import read_process
from merlin.errors import ForgedMessageError, OwnershipLostError, StudyGoneError, UsageError
from merlin.execution.conductor import append_records
from merlin.execution.distributed.contracts import Offer
from merlin.execution.distributed.messages import open_chunk
from merlin.execution.distributed.open_study import make_tools, refuse_copy
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.registry import RunningChunk, WorkerInfo
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.execution.job_errands import cancel_jobs
from merlin.execution.job_folder import JobFolder, all_jobs
from merlin.execution.job_schedulers import scheduler_client
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.session import next_session
from merlin.plan.tasks import Chunk
from merlin.status.snapshot import CANCELLED, is_published
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.config.model import Config

CANCEL_S = 30.0  # for the workers to kill their chunks
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChunk:
    """A chunk that a worker runs, or may still run."""

    worker: str
    host: str
    instance: str
    lo: int
    hi: int
    silent_s: float | None = field(
        default=None, compare=False
    )  # since the last beat, if the worker is overdue


class CancelReport(Struct, frozen=True, kw_only=True):
    """The chunks that ran before, and those that run, or may run, afterwards."""

    before: list[LiveChunk]
    after: list[LiveChunk]
    num_jobs: int = 0  # batch jobs of steps that were cancelled


def cancel(
    workspace: Workspace, config: Config, steps: Collection[str] | None = None, *, limit_s: float = CANCEL_S
) -> CancelReport:
    """End a study on all workers: no further chunk starts, and running chunks are killed.

    With `steps`, only these steps' tasks are killed; they count as failed. Recorded outcomes stay in the ledger. A
    chunk has ended when its worker reports so, has left, or is no process of this host any more. If a worker does not
    answer within `limit_s`, its chunks may still run.

    Raises:
        ExecutionError: Redis cannot be reached, or does not hold the study whose steps are to end.
        UsageError: the study has no such step, or the workspace is a copy of the one that workers have.
    """
    tools = make_tools(config)
    registry, study_id = tools.backend.registry, workspace.plan.study_id
    for study in registry.studies():
        if study.study_id == study_id:
            refuse_copy(workspace, study)
    mailbox = tools.backend.mailbox(study_id)
    instances = _instances(workspace, steps)
    workers = registry.workers(all=True)
    before = _running_before(mailbox.offers(), workers, study_id, instances, config)
    if steps is None:
        _record_stop(workspace, tools, CANCELLED)
        mailbox.drop()
        registry.withdraw(study_id)
    else:
        num_jobs = sum(job.chunk.instance in instances for job in all_jobs(workspace))
        with owning(workspace, tools) as ownership:
            ownership.fail(instances, f"cancelled: merlin cancel --step {' '.join(steps)}")
    command = {} if steps is None else {"instances": sorted(instances)}
    registry.send(
        {*(w.name for w in workers), *(a.worker for a in before)}, "drop", study=study_id, **command
    )
    if steps is None:  # last, because a batch scheduler may not answer
        num_jobs = cancel_step_jobs(workspace)
    after = _wait_for_end(tools, before, study_id, instances, limit_s)
    return CancelReport(before=before, after=after, num_jobs=num_jobs)


def cancel_removed(root: Path, config: Config, *, limit_s: float = CANCEL_S) -> list[CancelReport]:
    """End the study, and its extensions, of a workspace that was deleted or moved; a report for each.

    Without its workspace no ledger can record the end. Workers would try for ever to open it.

    Batch jobs of its steps are not looked for: their names were in the workspace.

    Raises:
        ExecutionError: Redis cannot be reached.
        UsageError: workers have no study of this workspace, or what it lay in cannot be seen from here.
    """
    tools = make_tools(config)
    registry, reports = tools.backend.registry, list[CancelReport]()
    studies = [study for study in registry.studies() if study.is_of(root)]
    if not studies:
        raise UsageError(f"{root} does not exist, and workers have no study of a workspace of this name")
    if not was_removed(root):
        raise UsageError(f"{root.parent} is not there: cancel {root} on a machine that can see where it lay")
    for study in studies:
        mailbox = tools.backend.mailbox(study.study_id)
        workers = registry.workers(all=True)
        before = _running_before(mailbox.offers(), workers, study.study_id, None, config)
        mailbox.drop()
        registry.withdraw(study.study_id)
        registry.send({*(w.name for w in workers), *(a.worker for a in before)}, "drop", study=study.study_id)
        after = _wait_for_end(tools, before, study.study_id, None, limit_s)
        reports.append(CancelReport(before=before, after=after))
    return reports


def _running_before(
    offers: Iterable[Offer],
    workers: Collection[WorkerInfo],
    study_id: str,
    instances: Collection[str] | None,
    config: Config,
) -> list[LiveChunk]:
    """The chunks that run according to leases or workers, but for those of workers that have ended."""
    held = _held(offers, workers, instances, study_id, config)
    found = _sorted({*held, *running(workers, study_id, instances)})
    return [chunk for chunk in found if not _is_dead(chunk.worker, workers)]


def _wait_for_end(
    tools: Tools,
    before: Collection[LiveChunk],
    study_id: str,
    instances: Collection[str] | None,
    limit_s: float,
) -> list[LiveChunk]:
    """Wait until the workers have killed their chunks; returns those that may still run after `limit_s`."""
    dropped = tools.backend.time()
    deadline = time.monotonic() + limit_s
    while after := _survivors(before, tools.backend.registry.workers(all=True), study_id, instances, dropped):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return after


def _record_stop(workspace: Workspace, tools: Tools, reason: str) -> None:
    """Record the end in the ledger, so that nobody publishes the study again if Redis loses it."""
    session = next_session(workspace.ledger_dir, tools.backend.time())
    append_records(workspace, session, EventRecord(kind="run_stopped", data={"reason": reason}))


def cancel_step_jobs(workspace: Workspace, steps: Collection[str] | None = None) -> int:
    """End the batch jobs of the study, or of some steps; returns their number. From now on they commit nothing.

    Raises:
        ExecutionError: a batch scheduler does not answer, or refuses.
        UsageError: the study has no such step.
    """
    instances = _instances(workspace, steps)
    jobs = [job for job in all_jobs(workspace, given_up=True) if job.chunk.instance in instances]
    for job in jobs:
        JobFolder(workspace, job.lease).void()
    for name in {job.scheduler for job in jobs}:
        ours = [job for job in jobs if job.scheduler == name]
        cancel_jobs(scheduler_client(name), ours)
        for job in ours:  # if it raises, the next call finds them again
            JobFolder(workspace, job.lease).forget()
    return len(jobs)


def stop(workspace: Workspace, config: Config, reason: str) -> int:
    """Stop a study: no further chunk starts. Returns the number of chunks that still run.

    Raises:
        ExecutionError: Redis cannot be reached.
    """
    tools = make_tools(config)
    try:
        with owning(workspace, tools) as ownership:
            ownership.stop(reason)
            return ownership.owner.running()
    except StudyGoneError:
        if is_published(replay(workspace.ledger_dir, workspace.plan)):  # workers would publish it again
            _record_stop(workspace, tools, reason)
            tools.backend.mailbox(workspace.plan.study_id).drop()
        return 0


def record_end(workspace: Workspace, config: Config) -> None:
    """Record what follows from the last outcomes, if the study has no owner."""
    with suppress(OwnershipLostError, StudyGoneError), owning(workspace, make_tools(config), force=False):
        pass


@contextmanager
def owning(workspace: Workspace, tools: Tools, *, force: bool = True) -> Iterator[Ownership]:
    """Own the study for a moment, then release it. With `force`, take the ownership from any other owner.

    Raises:
        StudyGoneError: Redis does not hold the study.
        OwnershipLostError: it has an owner.
    """
    study = Study(workspace, workspace.digest)
    info = next((info for info in tools.backend.registry.studies() if info.study_id == study.id), None)
    if info is None:
        raise StudyGoneError(f"{workspace.path} is not published now")
    mailbox = tools.backend.mailbox(study.id)
    standing = mailbox.own(info.session, force=force)
    if standing.is_over:
        raise StudyGoneError(f"{workspace.path} has ended")
    if not standing.is_ours:
        raise OwnershipLostError(f"{workspace.path} has an owner")
    ownership = Ownership(study, info.session, mailbox, standing, tools)
    try:
        ownership.settle()
        yield ownership
        ownership.wait_for_notices()
        ownership.release()
    finally:
        ownership.close()


def running(
    workers: Iterable[WorkerInfo], study_id: str, instances: Collection[str] | None
) -> list[LiveChunk]:
    """The chunks of a study, or of some of its instances, that the workers report as running."""
    return [
        _alive(w.name, w, r)
        for w in workers
        for r in w.running
        if r.study == study_id and (instances is None or r.instance in instances)
    ]


def _held(
    offers: Iterable[Offer],
    workers: Iterable[WorkerInfo],
    instances: Collection[str] | None,
    study_id: str,
    config: Config,
) -> list[LiveChunk]:
    """The chunks that run according to the leases, even if their worker is silent."""
    by_name = {worker.name: worker for worker in workers}
    found = []
    for offer in offers:
        with suppress(ForgedMessageError):
            chunk = open_chunk(offer.envelope, study_id, offer.lease, config.key)
            if offer.worker and (instances is None or chunk.instance in instances):
                found.append(_alive(offer.worker, by_name.get(offer.worker), chunk))
    return found


def _survivors(
    before: Iterable[LiveChunk],
    workers: Collection[WorkerInfo],
    study_id: str,
    instances: Collection[str] | None,
    dropped: float,
) -> list[LiveChunk]:
    """The chunks that run, or that ran on workers without a beat since `dropped` (server time)."""
    silent = {w.name: w for w in workers if w.last_beat <= dropped}
    left = {*running(workers, study_id, instances)}
    left |= {_alive(c.worker, silent[c.worker], c) for c in before if c.worker in silent}
    return _sorted(chunk for chunk in left if not _is_dead(chunk.worker, workers))


def _is_dead(name: str, workers: Iterable[WorkerInfo]) -> bool:
    """Return whether the worker, and so its chunks, have ended."""
    return any(w.name == name and has_died(w) for w in workers)


def has_died(worker: WorkerInfo) -> bool:
    """Return whether the worker was on this host and its process has ended."""
    return worker.host == socket.gethostname() and read_process(worker.pid) is None


def _alive(name: str, worker: WorkerInfo | None, chunk: Chunk | RunningChunk | LiveChunk) -> LiveChunk:
    silent_s = worker.age_s if worker is not None and not worker.is_alive else None
    host = worker.host if worker is not None else name.rpartition(".")[2]
    return LiveChunk(
        worker=name, host=host, instance=chunk.instance, lo=chunk.lo, hi=chunk.hi, silent_s=silent_s
    )


def _sorted(chunks: Iterable[LiveChunk]) -> list[LiveChunk]:
    return sorted(chunks, key=lambda a: (a.host, a.worker, a.instance, a.lo))


def _instances(workspace: Workspace, steps: Collection[str] | None) -> set[str]:
    instances = workspace.plan.instances
    workspace.plan.check_steps(steps or (), also={i.id for i in instances})
    return {i.id for i in instances if steps is None or i.step in steps or i.id in steps}
