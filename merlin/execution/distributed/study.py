"""What a worker keeps of one study: its plan, its progress, its place in the ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.errors import ExecutionError, MerlinError
from merlin.execution.conductor import CONTROLLER, verdict_records
from merlin.execution.distributed.redis_progress import RedisProgress
from merlin.execution.distributed.registry import StudyInfo
from merlin.ledger.records import EventRecord, Record
from merlin.ledger.replay import Replay, replay
from merlin.ledger.writer import LedgerWriter
from merlin.study.schedule import LEASE_S
from merlin.study.tasks import NO_OUTCOME, Chunk
from merlin.study.workspace import Workspace, open_same

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config

FAULT_S = 30.0  # a study that cannot be opened is not tried again for so long


class Study:
    """One study; threads may share it."""

    def __init__(self, workspace: Workspace, digest: str, progress: RedisProgress) -> None:
        self.workspace, self.digest, self.progress = workspace, digest, progress
        self.id = workspace.plan.study_id
        self.gone_since: float | None = None  # monotonic: when Redis was first seen without it
        self.reissued = time.monotonic()
        self._lock = threading.RLock()
        self._writer: tuple[str, LedgerWriter] | None = None  # of which session
        self._is_over = False  # nobody will close it any more
        self._replay: Replay | None = None

    def served(self, queues: Sequence[str], config: Config) -> list[str]:
        """The step instances whose queue is one of these."""
        return [i.id for i in self.workspace.plan.instances if config.queue_name(i.queue) in queues]

    def is_served(self, instance: str, queues: Sequence[str], config: Config) -> bool:
        """Whether the queue of a step instance is one of these."""
        return config.queue_name(self.workspace.instance(instance).queue) in queues

    def done(self, chunk: Chunk) -> list[tuple[int, int, int]]:
        """What the ledger holds of the chunk's tasks: (lo, hi, outcome)."""
        with self._lock:
            if self._replay is None:
                self._replay = replay(self.workspace.ledger_dir, self.workspace.plan)
            else:
                self._replay.update()
            runs = self._replay.outcomes[chunk.instance].runs(chunk.lo, chunk.hi)
            return [run for run in runs if run[2] != NO_OUTCOME]

    def flush(self) -> None:
        """Write the verdicts that wait in Redis into the ledger."""
        with self._lock:
            verdicts = self.progress.verdicts()
            if not verdicts:
                return
            state = self.progress.state()
            if any(v.id.partition(".")[0] != state.epoch for v in verdicts):
                return  # the study was opened again in between, and has made its verdicts anew
            self._append(state.session, *verdict_records(verdicts))
            self.progress.written(verdicts)

    def event(self, kind: str, **data: Any) -> None:
        """Write down something that happened to the run."""
        with self._lock:
            self._append(self.progress.session, EventRecord(kind=kind, data=data))

    def _append(self, session: str, *records: Record) -> None:
        if self._writer is None or self._writer[0] != session:
            self._close_writer()
            writer = LedgerWriter(self.workspace.ledger_dir, CONTROLLER, session=session, study_id=self.id)
            self._writer = (session, writer)
        try:
            self._writer[1].append(*records)
        finally:
            if self._is_over:
                self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer[1].close()
            self._writer = None

    def close(self) -> None:
        """Free what it holds; threads that still have it may go on, and leave nothing open."""
        with self._lock:
            self._is_over = True
            self._close_writer()

    def info(self, session: str, now: float) -> StudyInfo:
        """Its advertisement; `now` is the server's time."""
        plan = self.workspace.plan
        return StudyInfo(
            study_id=plan.study_id,
            name=plan.name,
            workspace=str(self.workspace.path),
            plan=self.digest,
            queues=sorted({i.queue for i in plan.instances}),
            session=session,
            published=now,
        )


class Studies:
    """The studies that this worker has met; threads may share it."""

    def __init__(self, client: Redis, namespace: str, *, lease_s: float = LEASE_S) -> None:
        self._client, self._namespace, self._lease_s = client, namespace, lease_s
        self._lock = threading.Lock()
        self._studies: dict[str, tuple[str, Study]] = {}  # the path by which it was asked for
        self._faults: dict[str, tuple[float, str]] = {}

    def get(self, study_id: str, path: str, digest: str) -> Study:
        """The study in a workspace, if its plan is the one that the caller was told of.

        Raises:
            ExecutionError: the plan was altered, or the workspace cannot be read here.
        """
        with self._lock:
            asked, study = self._studies.get(study_id, ("", None))
            if study is not None and study.digest == digest and asked == path:
                return study
            when, fault = self._faults.get(path, (0.0, ""))
            if fault and time.monotonic() - when < FAULT_S:
                raise ExecutionError(fault)
            try:
                made = self._open(study_id, Path(path), digest)
            except MerlinError as error:
                self._faults[path] = time.monotonic(), str(error)
                raise ExecutionError(str(error)) from error
            self._studies[study_id] = path, made
        if study is not None:
            study.close()
        return made

    def _open(self, study_id: str, path: Path, digest: str) -> Study:
        workspace = open_same(path, digest)
        if workspace.plan.study_id != study_id:
            raise ExecutionError(f"{path} holds another study now ({workspace.plan.study_id})")
        progress = RedisProgress(self._client, self._namespace, workspace.plan, lease_s=self._lease_s)
        return Study(workspace, digest, progress)

    def known(self) -> Sequence[Study]:
        with self._lock:
            return [study for _, study in self._studies.values()]

    def forget(self, study: Study) -> None:
        """The study is over."""
        with self._lock:
            if self._studies.get(study.id, ("", None))[1] is study:
                del self._studies[study.id]
        study.close()

    def close(self) -> None:
        for study in self.known():
            self.forget(study)
