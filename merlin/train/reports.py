"""How far trainers are, for displays, log files and other processes. No torch here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, TextIO

from msgspec import Struct, field

from merlin.base.records import as_kind, to_plain
from merlin.train.events import Event, LossesTaken, RunEnded, StepDone

REPORT_EVERY_S = 0.2  # least time between two reports
TrainerState = Literal["starting", "training", "finished", "stopped", "failed"]


class Report(Struct, frozen=True):
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
        return json.dumps({"report": to_plain(self)}) + "\n"


class Note(Struct, frozen=True):
    """Something that a person should know, such as a damaged checkpoint."""

    trainer: int
    text: str

    def to_line(self) -> str:
        return json.dumps({"note": to_plain(self)}) + "\n"


def from_line(line: str) -> Report | Note:
    """What `to_line` gave."""
    data = json.loads(line)
    return as_kind(data["report"], Report) if "report" in data else as_kind(data["note"], Note)


class TrainObserver(Protocol):
    """Gets the reports and notes of a run: a display, a log file, or the pipe to the process that has one."""

    def report(self, report: Report) -> None: ...

    def note(self, note: Note) -> None: ...


class Silent:
    """An observer that does nothing."""

    def report(self, report: Report) -> None:
        return None

    def note(self, note: Note) -> None:
        return None


class PipeObserver:
    """Passes everything to another process, line by line, as long as that lives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, report: Report) -> None:
        self._send(report.to_line())

    def note(self, note: Note) -> None:
        self._send(note.to_line())

    def _send(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._descriptor, line.encode())


class LogFile:
    """What a person reads about one trainer; passes everything on to another observer."""

    def __init__(self, path: Path, further: TrainObserver) -> None:
        self._file: TextIO | None = None
        self._further = further
        self._written: tuple[object, ...] = ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            further.note(Note(0, f"{path} cannot be written: {error.strerror}"))

    def report(self, report: Report) -> None:
        self._further.report(report)
        now = (report.state, dict(report.metrics), report.round)
        if now == self._written:
            return
        self._written = now
        numbers = {**report.losses, **{f"validation {k}": v for k, v in report.metrics.items()}}
        shown = [f"{name} {value:.5g}" for name, value in numbers.items()]
        shown += [f"round {report.round}"] if report.round else []
        shown += [f"{report.state}: {report.reason}"] if report.reason else []
        pace = f"{report.samples_per_s:,.0f} samples/s"
        self._write("  ".join([f"step {report.step:,} of {report.num_steps:,}", pace, *shown]))

    def note(self, note: Note) -> None:
        self._write(note.text)
        self._further.note(note)

    def _write(self, text: str) -> None:
        if self._file is not None:
            try:
                self._file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}\n")
                self._file.flush()
            except OSError:
                self._file = None  # a full disk; the display goes on

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Reporter:
    """Makes reports of the events of a loop that begins at a step."""

    def __init__(self, observer: TrainObserver, trainer: int, step: int, num_steps: int) -> None:
        self._observer = observer
        self._trainer, self._num_steps = trainer, num_steps
        self._begin = step, time.perf_counter()
        self._reported_at = 0.0
        self._losses: Mapping[str, float] = {}
        self._rate = 0.0

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, LossesTaken):
            self._losses, self._rate = event.losses, event.samples_per_s
        elif isinstance(event, RunEnded):
            self._report(event, event.state, event.reason)
        elif isinstance(event, StepDone) and now - self._reported_at >= REPORT_EVERY_S:
            self._report(event, "training")
            self._reported_at = now

    def _report(self, event: Event, state: TrainerState, reason: str = "") -> None:
        progress, (begin, since) = event.progress, self._begin
        done, left = event.step - begin, self._num_steps - event.step
        self._observer.report(
            Report(
                trainer=self._trainer,
                state=state,
                step=event.step,
                num_steps=self._num_steps,
                epoch=event.epoch,
                samples_per_s=self._rate,
                eta_s=(time.perf_counter() - since) / done * left if done else None,
                losses=self._losses,
                metrics=progress.metrics,
                best=progress.best,
                best_step=progress.best_step,
                round=progress.round,
                wins=progress.wins,
                reason=reason,
            )
        )
