"""The studies that a worker knows. Each workspace must have the plan that the sealed message names."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from msgspec import Struct

from merlin.errors import ExecutionError, MerlinError
from merlin.execution.distributed.registry import StudyInfo
from merlin.workspace.directory import Workspace, open_same

FAULT_S = 30.0  # before the next try with a study that could not be opened


class Study(Struct, frozen=True):
    """A study and its workspace."""

    workspace: Workspace

    @property
    def id(self) -> str:
        return self.workspace.plan.study_id

    @property
    def queues(self) -> list[str]:
        """The names of its queues in the spec."""
        return sorted({i.queue for i in self.workspace.plan.instances})

    def info(self, session: str, now: float) -> StudyInfo:
        """The advertisement of the study; `now` is the server's time."""
        return StudyInfo(
            study_id=self.id,
            name=self.workspace.plan.name,
            workspace=str(self.workspace.path),
            plan=self.workspace.digest,
            queues=self.queues,
            session=session,
            published=now,
        )


class Studies:
    """Opens each study once; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._studies: dict[str, tuple[str, Study]] = {}  # the path as the message has it
        self._faults: dict[tuple[str, str, str], tuple[float, str]] = {}

    def get(self, study_id: str, path: str, digest: str) -> Study:
        """The study in a workspace, whose plan must have this digest.

        Raises ExecutionError if the plan was altered, or the workspace cannot be read here.
        """
        with self._lock:
            asked, study = self._studies.get(study_id, ("", None))
            if study is not None and study.workspace.digest == digest and asked == path:
                return study
            when, fault = self._faults.get((study_id, path, digest), (0.0, ""))
            if fault and time.monotonic() - when < FAULT_S:
                raise ExecutionError(fault)
            try:
                made = _open(study_id, Path(path), digest)
            except MerlinError as error:
                self._faults[study_id, path, digest] = time.monotonic(), str(error)
                raise ExecutionError(str(error)) from error
            self._studies[study_id] = path, made
            return made

    def known(self) -> list[Study]:
        with self._lock:
            return [study for _, study in self._studies.values()]

    def forget(self, study_id: str) -> None:
        """Forget a study that is over."""
        with self._lock:
            self._studies.pop(study_id, None)


def _open(study_id: str, path: Path, digest: str) -> Study:
    workspace = open_same(path, digest)
    if workspace.plan.study_id != study_id:
        raise ExecutionError(f"{path} holds another study now ({workspace.plan.study_id})")
    return Study(workspace)
