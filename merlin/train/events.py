"""The events of a training loop, and requests to stop it. No torch here."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from merlin.train.progress import LoopProgress

EndState = Literal["finished", "stopped"]


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened at a step of a trainer, whose progress is as it was then."""

    step: int
    epoch: float
    progress: LoopProgress


class LossesTaken(Event, frozen=True, kw_only=True):
    """The losses since the last such event, as means over the steps."""

    losses: Mapping[str, float]
    lr: Mapping[str, float]  # by phase
    samples_per_s: float


class RoundPlayed(Event, frozen=True, kw_only=True):
    """A round of the tournament, with the facts that `Rounds.play` gives about it."""

    facts: Mapping[str, Any]


class Validated(Event, frozen=True, kw_only=True):
    """The metrics of the validation split, which are `progress.metrics`."""

    is_best: bool


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A checkpoint is on the disk."""


class StepDone(Event, frozen=True, kw_only=True):
    """A step after which something was due, when all of it is done; other steps have no such event."""


class RunEnded(Event, frozen=True, kw_only=True):
    """The last event of a run."""

    state: EndState
    reason: str


Listener = Callable[[Event], None]


@dataclass(slots=True)
class StopRequest:
    """A wish that the run ends soon, and its reason; a trainer looks at it between two steps."""

    reason: str = ""
    signal: int | None = field(default=None, init=False)

    def __call__(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def listen(self) -> None:
        """Let SIGTERM and Ctrl-C ask for the end; a second Ctrl-C does not wait."""

        def handle(number: int, frame: Any) -> None:
            if self.reason and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number
            self.ask(signal.Signals(number).name)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
