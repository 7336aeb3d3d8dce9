"""The events of a training loop, and requests to stop it. No torch here."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from msgspec import Struct

from merlin.train.progress import LoopProgress

EndState = Literal["finished", "stopped"]


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened at a step of a trainer, whose progress is as it was then."""

    kind: ClassVar[str] = ""  # what logs call it; "" for what no log keeps
    step: int
    epoch: float
    progress: LoopProgress

    @property
    def values(self) -> Mapping[str, float]:
        """The numbers that were measured, by name."""
        return {}


class LossesTaken(Event, frozen=True, kw_only=True):
    """The losses since the last such event, as means over the steps."""

    kind = "train"
    losses: Mapping[str, float]
    lr: Mapping[str, float]  # by phase
    samples_per_s: float

    @property
    def values(self) -> Mapping[str, float]:
        return {**self.losses, **{f"lr/{phase}": lr for phase, lr in self.lr.items()}}


class RoundPlayed(Event, frozen=True, kw_only=True):
    """A round of the tournament, with the facts that `Rounds.play` gives about it."""

    kind = "round"
    facts: Mapping[str, Any]

    @property
    def values(self) -> Mapping[str, float]:
        return dict(self.facts.get("values", {}))


class Validated(Event, frozen=True, kw_only=True):
    """The metrics of the validation split, which are `progress.metrics`."""

    kind = "validation"
    is_best: bool

    @property
    def values(self) -> Mapping[str, float]:
        return self.progress.metrics


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A checkpoint is on the disk."""


class StepDone(Event, frozen=True, kw_only=True):
    """A step after which something was due, when all of it is done; other steps have no such event."""


class RunEnded(Event, frozen=True, kw_only=True):
    """The last event of a run."""

    kind = "end"
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
