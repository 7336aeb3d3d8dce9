"""What a run tells while it works: reports of trainers, notes, and the wish to stop. No torch here."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

TrainerState = Literal["starting", "training", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Report:
    """How far a trainer is; each report replaces the one before."""

    trainer: int
    state: TrainerState = "starting"
    step: int = 0
    num_steps: int = 0
    epoch: float = 0.0
    samples_per_s: float = 0.0
    eta_s: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)  # means over the last steps
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last validation
    best: float | None = None  # of the metric that decides
    best_step: int = 0
    round: int = 0
    wins: int = 0  # rounds after which the trainer kept its own model
    reason: str = ""  # why it ended

    def to_line(self) -> str:
        return json.dumps({"report": asdict(self)}) + "\n"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know, as that a checkpoint is damaged."""

    trainer: int
    text: str

    def to_line(self) -> str:
        return json.dumps({"note": asdict(self)}) + "\n"


def from_line(line: str) -> Report | Note:
    """What `to_line` gave."""
    data = json.loads(line)
    return Report(**data["report"]) if "report" in data else Note(**data["note"])


class Observer(Protocol):
    """Is told about a run; displays are such, and so is the pipe to the process that has one."""

    def report(self, report: Report) -> None: ...

    def note(self, note: Note) -> None: ...


class Silent:
    """An observer that does nothing."""

    def report(self, report: Report) -> None:
        return None

    def note(self, note: Note) -> None:
        return None


class PipeObserver:
    """Tells another process, line by line; one that has gone is not told."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, report: Report) -> None:
        self._send(report.to_line())

    def note(self, note: Note) -> None:
        self._send(note.to_line())

    def _send(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, line.encode())


class StopRequest:
    """Whether somebody wants the run to end soon, and who; a trainer looks at it between two steps."""

    def __init__(self) -> None:
        self.reason = ""
        self.signal: int | None = None

    def __call__(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def listen(self) -> None:
        """SIGTERM and Ctrl-C ask; a second Ctrl-C does not wait."""

        def heard(number: int, frame: Any) -> None:
            if self.reason and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number
            self.ask(signal.Signals(number).name)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, heard)
