"""The records of the registry: workers, open studies and commands."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from merlin.execution.walltime import MARGIN_S
from merlin.plan.fit import ONE_CORE, Need
from merlin.workspace.directory import EXTENSIONS_DIR

BEAT_S = 5.0
SILENT_S = 20.0  # a worker without a beat for this time is not alive
COMMAND_S = 60.0  # a command is valid for so long

# stop: end after the running chunks, or after `in_s` seconds; stop_now: interrupt the chunks, then end;
# drop: kill the chunks of a study; interrupt: interrupt the chunks of a study
Op = Literal["stop", "stop_now", "drop", "interrupt"]
# foreign writers of Redis cannot use these for terminal control codes or impossible times
Text = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
AtOnce = Annotated[int, Meta(ge=1, le=100_000)]


class RunningChunk(Struct, frozen=True, kw_only=True):
    """A chunk that a worker runs."""

    study: Text  # study id
    instance: Text
    lo: Whole
    hi: Whole
    since: Seconds  # server time, epoch seconds


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """The description of a worker by itself, and the time of its last beat."""

    name: Text
    host: Text
    pid: Whole
    queues: list[Text]  # names on the broker
    concurrency: AtOnce  # chunks at a time
    started: Seconds  # epoch seconds, server time
    version: Text
    cores: Whole = 0  # of its host that it may use; 0: not known
    gpus: list[Text] = msgspec.field(default_factory=list)  # indices of devices that it may use
    node: Text = ""  # the scheduler's name of its host, in an allocation
    scheduler: Text = ""  # of the allocation that it lives in
    job: Text = ""  # the id of that allocation
    num_nodes: Whole = 1  # of that allocation
    ends: Seconds | None = None  # server time, when the walltime of the allocation is over
    last_beat: float = 0.0  # epoch seconds, server time
    age_s: float = 0.0  # since the last beat
    is_stopping: bool = False
    running: list[RunningChunk] = msgspec.field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.age_s < SILENT_S

    @property
    def place(self) -> str:
        """Its node, or outside of an allocation its host."""
        return self.node or self.host

    @property
    def allocation(self) -> tuple[str, str]:
        return self.scheduler, self.job

    @property
    def tasks_end(self) -> float:
        """Server time, when its tasks are interrupted; infinite if its walltime does not end."""
        return inf if self.ends is None else self.ends - MARGIN_S


class StudyInfo(Struct, frozen=True, kw_only=True):
    """A study that is not over."""

    study_id: Text
    name: str
    workspace: str
    plan: Text  # digest
    queues: list[str]  # names in the spec
    session: Text
    published: Seconds  # epoch seconds, server time

    def is_of(self, root: Path) -> bool:
        """Whether it is the study of the workspace `root`, which is absolute, or an extension of that study."""
        path = Path(self.workspace)
        return root == path or (root == path.parent.parent and path.parent.name == EXTENSIONS_DIR)


class OpenWork(Struct, frozen=True, kw_only=True):
    """What a study wants of the workers of one queue, as its owner sees it; an entry for each kind of task."""

    queue: Text  # name in the spec
    num_at_once: Whole  # tasks that could run at the same time, now or later
    need: Need = ONE_CORE  # of each of them
    need_s: Seconds = 0.0  # that a worker must have left to start the shortest of them; 0: any
    waiting: list[Text] = msgspec.field(default_factory=list)  # why steps wait: for more time, for devices
    avoid: list[Text] = msgspec.field(default_factory=list)  # nodes whose workers get nothing


class Command(Struct, frozen=True, kw_only=True):
    """A command to a worker."""

    to: Text
    op: Op
    until: Seconds  # server time
    id: Text
    in_s: Seconds = 0.0  # of "stop"
    study: str = ""
    instances: list[str] = msgspec.field(default_factory=list)  # of "drop": of these step instances only
