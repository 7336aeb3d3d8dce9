"""Follows a study that others run, until it ends: what `merlin monitor` decides, and the loop that does it.

A `WatchedStudy` says how the study is; the `Watch` makes notes for the display, and decides what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal, Protocol

from msgspec import Struct, field

from merlin.errors import ExecutionError, WorkspaceError
from merlin.execution.events import Observer, Progress
from merlin.plan.plan import Plan
from merlin.plan.task_states import TaskCounts
from merlin.status.activity import nobody_serves

State = Literal["running", "stopped", "complete", "gone", "dropped", "unreachable"]

GONE_S = 20.0  # before a study that Redis has lost is published again, so that running chunks are noticed
IDLE_S = 5.0  # without a worker that could take what is ready, before the user gets a note
JOBS_S = 10.0  # between two looks at the batch jobs of steps, which may be many files


class Look(Struct, frozen=True, kw_only=True):
    """A study at one moment."""

    state: State
    per_step: Mapping[str, TaskCounts]  # in the order of the plan; empty where nothing is known
    num_workers: int = 0  # alive, with a queue of the study
    num_running: int = 0  # chunks
    reason: str = ""  # why it stopped, was dropped or cannot be reached
    idle_queues: tuple[str, ...] = ()  # with ready tasks and no worker
    short_of_time: tuple[str, ...] = ()  # why steps wait for workers with more time
    bad_nodes: Mapping[str, str] = field(
        default_factory=dict
    )  # which get no tasks -> the step that showed it


class WatchedStudy(Protocol):
    """A study that somebody else runs."""

    def look(self) -> Look:
        """The study now; trouble with the servers is a state, not an exception."""

    def republish(self) -> str:
        """Publish the study again, because Redis does not hold it any more; returns what was done, in words.

        Raises ExecutionError if the servers prevent it, WorkspaceError if another process does it already.
        """

    def settle(self) -> None:
        """Make sure that the end of the study is recorded, even if no worker is left to do it."""


class Watch:
    """Decides, look by look; `over` is set once the study (or every chosen step) has ended."""

    def __init__(
        self, steps: Collection[str] = (), *, gone_s: float = GONE_S, workers_command: str = ""
    ) -> None:
        """Watch `steps`, or all if there are none; `workers_command` starts workers of the study."""
        self._steps, self._gone_s, self._workers_command = frozenset(steps), gone_s, workers_command
        self.over: Literal["", "ended", "stopped", "dropped"] = ""
        self.reason = ""
        self.wants_republish = False
        self.per_step: Mapping[str, TaskCounts] = {}
        self._is_lost = False
        self._gone_since: float | None = None
        self._idle: tuple[str, ...] = ()
        self._idle_since: float | None = None
        self._has_noted_idle = False
        self._short_of_time: set[str] = set()  # what was said about steps
        self._jobs: set[str] = set()  # what was said about their batch jobs

    def update(self, look: Look, now: float) -> list[str]:
        """Take the next look at the study into account; returns notes for the user."""
        if look.state == "unreachable":
            notes = [] if self._is_lost else [f"{look.reason}\n  still trying; the study goes on without us"]
            self._is_lost = True
            return notes
        notes = ["the servers answer again"] if self._is_lost else []
        self._is_lost = False
        notes += self._loss_notes(look, now)
        if look.per_step:
            self.per_step = {s: c for s, c in look.per_step.items() if not self._steps or s in self._steps}
        self._judge(look)
        notes += self._time_notes(look)
        return notes + ([] if self.over or look.state == "gone" else self._idle_notes(look, now))

    def _loss_notes(self, look: Look, now: float) -> list[str]:
        """Notes about a study that Redis lost; it is republished only if workers do not do that in time."""
        was_gone = self._gone_since is not None
        if look.state != "gone":
            self._gone_since, self.wants_republish = None, False
            return ["the study is published again, from its ledger"] if was_gone else []
        if self._gone_since is None:
            self._gone_since = now
        self.wants_republish = now - self._gone_since >= self._gone_s
        if was_gone:
            return []
        return [
            f"Redis has lost the study's progress; within {self._gone_s:.0f} s it is published again from its ledger"
        ]

    def _judge(self, look: Look) -> None:
        if look.state == "dropped":
            self.over, self.reason = "dropped", look.reason
        elif look.state == "complete" or (
            self.per_step and not any(c.missing for c in self.per_step.values())
        ):
            self.over = "ended"
        elif look.state == "stopped" and not (look.num_running and look.num_workers):
            self.over, self.reason = "stopped", look.reason

    def _time_notes(self, look: Look) -> list[str]:
        """Say, once for each step, that it waits for workers with more time."""
        steps = {reason: reason.partition("; ")[0] for reason in look.short_of_time}
        new = [reason for reason, step in steps.items() if step not in self._short_of_time]
        self._short_of_time = set(steps.values())
        return new

    def changed_jobs(self, lines: Sequence[str]) -> list[str]:
        """The lines about batch jobs of steps that were not among the lines of the last call."""
        before, self._jobs = self._jobs, set(lines)
        return [line for line in lines if line not in before]

    def _idle_notes(self, look: Look, now: float) -> list[str]:
        """A note, once, when work waits and no worker is there to do it."""
        if not look.idle_queues:
            self._idle_since, self._has_noted_idle = None, False
            return []
        if self._idle_since is None or look.idle_queues != self._idle:
            self._idle, self._idle_since = look.idle_queues, now
        if self._has_noted_idle or now - self._idle_since < IDLE_S:
            return []
        self._has_noted_idle = True
        return [nobody_serves(self._idle, look.num_workers, self._workers_command)]


def follow(
    study: WatchedStudy,
    watch: Watch,
    display: Observer,
    plan: Plan,
    *,
    interval_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    jobs: Callable[[], Sequence[str]] = tuple,
    on_look: Callable[[Look], object] = lambda look: None,
) -> None:
    """Look every `interval_s` seconds until the study is over, and show it. `jobs`: lines about batch jobs of steps."""
    began, is_shown = clock(), False
    next_jobs = began
    while True:
        look = study.look()
        on_look(look)
        now = clock()
        for note in watch.update(look, now):
            display.note(note)
        if now >= next_jobs and not watch.over:
            next_jobs = now + JOBS_S
            for line in watch.changed_jobs(jobs()):
                display.note(line)
        if watch.wants_republish:
            with suppress(ExecutionError, WorkspaceError):  # the next look says what is wrong
                display.note(study.republish())
        if watch.per_step:
            progress = Progress(seconds=now - began, per_step=watch.per_step, num_workers=look.num_workers)
            (display.progress if is_shown else lambda p: display.started(plan, p))(progress)
            is_shown = True
        if watch.over:
            if watch.over != "dropped":
                study.settle()
            return
        sleep(interval_s)


def idle_queues(plan: Plan, counts: Mapping[str, TaskCounts], served: Collection[str]) -> tuple[str, ...]:
    """Queues that no worker serves, with tasks that could run now or did run on a worker that is gone."""
    waiting = [i.queue for i in plan.instances if counts[i.id].startable]
    return tuple(dict.fromkeys(queue for queue in waiting if queue not in served))
