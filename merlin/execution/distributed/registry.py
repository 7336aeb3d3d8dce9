"""What a worker and an open study say of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

BEAT_S = 5.0
SILENT_S = 20.0  # a worker that has not been heard of for so long is not alive
COMMAND_S = 60.0  # a command is valid for so long

# stop: end after what runs now, or so many seconds later; stop_now: interrupt what runs, then end;
# drop: kill what runs of a study and forget it; interrupt: end what runs of a study soon
Op = Literal["stop", "stop_now", "drop", "interrupt"]
# anybody who may write into Redis can have written these: no text that would steer a terminal, no time in year 10,000
Text = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
AtOnce = Annotated[int, Meta(ge=1, le=100_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChunk:
    """A chunk that a worker runs."""

    study: Text  # study id
    instance: Text
    lo: Whole
    hi: Whole
    since: Seconds  # server time, epoch seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it describes itself, and when it was last heard of."""

    name: Text
    host: Text
    pid: Whole
    queues: list[Text]  # names on the broker
    concurrency: AtOnce  # chunks at a time
    started: Seconds  # epoch seconds, server time
    version: Text
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

    study_id: Text
    name: str
    workspace: str
    plan: Text  # digest
    queues: list[str]  # names in the spec
    session: Text
    published: Seconds  # epoch seconds, server time


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a worker is told to do."""

    to: Text
    op: Op
    until: Seconds  # server time
    id: Text
    in_s: Seconds = 0.0  # of "stop"
    study: str = ""
    instances: list[str] = field(default_factory=list)  # of "drop": of these step instances only
