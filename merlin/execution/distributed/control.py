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
    # since the last beat, if the worker is overdue
    silent_s: float | None = field(default=None, compare=False)


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
    for study in tools.backend.registry.studies():
        if study.study_id == workspace.plan.study_id:
            refuse_copy(workspace, study)
    instances = _instances(workspace, steps)
    if steps is not None and not instances:  # workers would take "drop" for none as "drop" for all
        return CancelReport(before=[], after=[])
    chunks = _LiveChunks(tools, workspace.plan.study_id, instances)
    if steps is None:
        _record_stop(workspace, tools, CANCELLED)
        chunks.end_study()
        num_jobs = cancel_step_jobs(workspace)  # last, because a batch scheduler may not answer
    else:
        num_jobs = sum(job.chunk.instance in instances for job in all_jobs(workspace))
        with owning(workspace, tools) as ownership:
            ownership.fail(instances, f"cancelled: merlin cancel --step {' '.join(steps)}")
        chunks.kill(sorted(instances))
    return CancelReport(before=chunks.before, after=chunks.wait_for_end(limit_s), num_jobs=num_jobs)


def cancel_removed(root: Path, config: Config) -> list[CancelReport]:
    """End the study, and its extensions, of a workspace that was deleted or moved; a report for each.

    Without its workspace no ledger can record the end. Workers would try for ever to open it. Batch jobs of its steps
    are not looked for: their names were in the workspace.

    Raises:
        ExecutionError: Redis cannot be reached.
        UsageError: workers have no study of this workspace, or what it lay in cannot be seen from here.
    """
    tools, reports = make_tools(config), list[CancelReport]()
    studies = [study for study in tools.backend.registry.studies() if study.is_of(root)]
    if not studies:
        raise UsageError(f"{root} does not exist, and workers have no study of a workspace of this name")
    if not was_removed(root):
        raise UsageError(f"{root.parent} is not there: cancel {root} on a machine that can see where it lay")
    for study in studies:
        chunks = _LiveChunks(tools, study.study_id, None)
        chunks.end_study()
        reports.append(CancelReport(before=chunks.before, after=chunks.wait_for_end(CANCEL_S)))
    return reports


class _LiveChunks:
    """The chunks of a study, or of some of its instances, that workers run; `before`: those that ran at first."""

    def __init__(self, tools: Tools, study_id: str, instances: Collection[str] | None) -> None:
        self._backend, self._registry, self._key = tools.backend, tools.backend.registry, tools.config.key
        self._study_id, self._instances = study_id, instances
        self._mailbox = tools.backend.mailbox(study_id)
        self._workers = self._registry.workers(all=True)
        held = self._held()
        found = _sorted({*held, *self._running(self._workers)})
        if self._mailbox.exists():  # what a worker reported with its last beat may have ended since
            found = [chunk for chunk in found if chunk in held or chunk.silent_s is not None]
        self.before = [chunk for chunk in found if not _is_dead(chunk.worker, self._workers)]

    def end_study(self) -> None:
        """End the whole study."""
        self._mailbox.drop()
        self._registry.withdraw(self._study_id)
        self.kill()

    def kill(self, instances: list[str] | None = None) -> None:
        """Tell the workers to kill the chunks of some instances, or all of the study."""
        names = {*(w.name for w in self._workers), *(chunk.worker for chunk in self.before)}
        more = {} if instances is None else {"instances": instances}
        self._registry.send(names, "drop", study=self._study_id, **more)

    def wait_for_end(self, limit_s: float) -> list[LiveChunk]:
        """Wait until the workers have killed the chunks; returns those that may still run after `limit_s`."""
        dropped = self._backend.time()
        deadline = time.monotonic() + limit_s
        while (after := self._survivors(dropped)) and time.monotonic() <= deadline:
            time.sleep(POLL_S)
        return after

    def _held(self) -> list[LiveChunk]:
        """The chunks that run according to the leases, even if their worker is silent."""
        by_name = {worker.name: worker for worker in self._workers}
        found = []
        for offer in self._mailbox.offers():
            with suppress(ForgedMessageError):
                chunk = open_chunk(offer.envelope, self._study_id, offer.lease, self._key)
                if offer.worker and self._concerns(chunk.instance):
                    found.append(_alive(offer.worker, by_name.get(offer.worker), chunk))
        return found

    def _running(self, workers: Iterable[WorkerInfo]) -> list[LiveChunk]:
        """The chunks that the workers report as running."""
        return [
            _alive(w.name, w, r)
            for w in workers
            for r in w.running
            if r.study == self._study_id and self._concerns(r.instance)
        ]

    def _concerns(self, instance: str) -> bool:
        return self._instances is None or instance in self._instances

    def _survivors(self, dropped: float) -> list[LiveChunk]:
        """The chunks that run, or that ran on workers without a beat since `dropped` (server time)."""
        workers = self._registry.workers(all=True)
        silent = {w.name: w for w in workers if w.last_beat <= dropped}
        left = {*self._running(workers)}
        left |= {_alive(c.worker, silent[c.worker], c) for c in self.before if c.worker in silent}
        return _sorted(chunk for chunk in left if not _is_dead(chunk.worker, workers))


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
    """Stop a study: no further chunk starts. Returns the number of chunks that still run. Raises ExecutionError."""
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
    study = Study(workspace)
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
