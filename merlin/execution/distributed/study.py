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
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.writer import LedgerWriter
from merlin.study.plan_io import plan_digest
from merlin.study.schedule import LEASE_S
from merlin.study.tasks import NO_OUTCOME, Chunk
from merlin.study.workspace import Workspace, open_workspace

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
        self._replay: Replay | None = None

    def served(self, queues: Sequence[str], config: Config) -> list[str]:
        """The step instances whose queue is one of these."""
        return [i.id for i in self.workspace.plan.instances if config.queue_name(i.queue) in queues]

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
            if verdicts:
                self._ledger().append(*verdict_records(verdicts))
                self.progress.written(verdicts)

    def event(self, kind: str, **data: Any) -> None:
        """Write down something that happened to the run."""
        with self._lock:
            self._ledger().append(EventRecord(kind=kind, data=data))

    def _ledger(self) -> LedgerWriter:
        session = self.progress.session
        if self._writer is None or self._writer[0] != session:
            self.close()
            self._writer = (
                session,
                LedgerWriter(self.workspace.ledger_dir, CONTROLLER, session=session, study_id=self.id),
            )
        return self._writer[1]

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer[1].close()
                self._writer = None


class Studies:
    """The studies that this worker has met; threads may share it."""

    def __init__(self, client: Redis, namespace: str, *, lease_s: float = LEASE_S) -> None:
        self._client, self._namespace, self._lease_s = client, namespace, lease_s
        self._lock = threading.Lock()
        self._studies: dict[str, Study] = {}
        self._faults: dict[str, tuple[float, str]] = {}

    def get(self, study_id: str, path: str, digest: str) -> Study:
        """The study in a workspace, if its plan is the one that the caller was told of.

        Raises:
            ExecutionError: the plan was altered, or the workspace cannot be read here.
        """
        with self._lock:
            study = self._studies.get(study_id)
            if study is not None and study.digest == digest and str(study.workspace.path) == path:
                return study
            when, fault = self._faults.get(path, (0.0, ""))
            if fault and time.monotonic() - when < FAULT_S:
                raise ExecutionError(fault)
            try:
                made = self._open(study_id, Path(path), digest)
            except MerlinError as error:
                self._faults[path] = time.monotonic(), str(error)
                raise ExecutionError(str(error)) from error
            self._studies[study_id] = made
            return made

    def _open(self, study_id: str, path: Path, digest: str) -> Study:
        workspace = open_workspace(path)
        if workspace.plan.study_id != study_id:
            raise ExecutionError(f"{path} holds another study now ({workspace.plan.study_id})")
        if plan_digest(workspace.plan) != digest:
            raise ExecutionError(
                f"the plan in {path} is not the one that was published: it was altered, and nothing of it is run"
            )
        progress = RedisProgress(self._client, self._namespace, workspace.plan, lease_s=self._lease_s)
        return Study(workspace, digest, progress)

    def known(self) -> Sequence[Study]:
        with self._lock:
            return list(self._studies.values())

    def forget(self, study: Study) -> None:
        """The study is over."""
        with self._lock:
            self._studies.pop(study.id, None)
        study.close()

    def close(self) -> None:
        for study in self.known():
            self.forget(study)
