"""What a worker and an open study say of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

BEAT_S = 5.0
SILENT_S = 20.0  # a worker that has not been heard of for so long is not alive
COMMAND_S = 60.0  # a command is valid for so long

Op = Literal["stop", "stop_now", "drop", "interrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChunk:
    """A chunk that a worker runs."""

    study: str  # study id
    instance: str
    lo: int
    hi: int
    since: float  # server time, epoch seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it describes itself, and when it was last heard of."""

    name: str
    host: str
    pid: int
    queues: list[str]  # names on the broker
    concurrency: int  # chunks at a time
    started: float  # epoch seconds, server time
    version: str
    last_beat: float = 0.0  # epoch seconds, server time
    age_s: float = 0.0  # since the last beat
    is_stopping: bool = False
    running: list[RunningChunk] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.age_s < SILENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study that is not over."""

    study_id: str
    name: str
    workspace: str
    plan: str  # digest
    queues: list[str]  # names in the spec
    session: str
    published: float  # epoch seconds, server time
