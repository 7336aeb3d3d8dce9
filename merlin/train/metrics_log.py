"""The events of a trainer as JSON lines and for TensorBoard; a resumed run continues both where its checkpoint is."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from merlin.base.files import write_text
from merlin.base.records import as_kind
from merlin.errors import TrainingError
from merlin.shards.format.regular_file import require_regular
from merlin.train.events import Event, LossesTaken, RoundPlayed, RunEnded, Validated

NAME = "metrics.jsonl"
Kept = Literal["local", "partner", "merged"]


class MetricsLine(Struct, frozen=True):
    """A line of `metrics.jsonl`, as far as it is read again; each kind of line holds more, for people and programs."""

    kind: str  # train | validation | round | end
    step: int
    values: dict[str, float | None] = field(default_factory=dict)
    time_s: float | None = None
    samples_per_s: float | None = None
    state: str = ""
    round: int | None = None
    partner: float | None = None
    kept: Kept = "local"
    capacity: float | None = None


def _line(event: Event) -> dict[str, Any] | None:
    """The line that is written for an event, without its step; None if there is none."""
    progress = event.progress
    place = {"epoch": round(event.epoch, 4), "time_s": round(progress.train_s, 3)}
    match event:
        case LossesTaken():
            rates = {f"lr/{phase}": lr for phase, lr in event.lr.items()}
            place["samples_per_s"] = round(event.samples_per_s, 1)
            return {"kind": "train", **place, "values": {**event.losses, **rates}}
        case Validated():
            return {"kind": "validation", **place, "best": event.is_best, "values": progress.metrics}
        case RoundPlayed():
            facts = dict(event.facts)
            values = facts.pop("values", {})
            return {"kind": "round", "round": progress.round, **facts, "values": values}
        case RunEnded():
            return {"kind": "end", "state": event.state, "reason": event.reason, "values": {}}
    return None


class MetricsLog:
    """Lines {"kind": "train" | "validation" | "round" | "end", "step": …, …, "values": …} of one trainer.

    The values go to TensorBoard as "<kind>/<name>", too. A full disk costs lines and a note, and does not end the run.
    """

    def __init__(self, directory: Path, step: int, note: Callable[[str], None]) -> None:
        """Removes what was written after `step`."""
        self._path = directory / NAME
        self._note = note
        self._file: Any = None
        self._board: Any = None
        self._failed = False
        try:
            _cut(self._path, step)
            self._file = self._path.open("a", encoding="utf-8")
            self._board = _board(directory / "tensorboard", step)
        except OSError as error:
            self._fail(error)

    def __call__(self, event: Event) -> None:
        line = _line(event)
        if line is None:
            return
        kind, values = line.pop("kind"), line.pop("values")
        finite = {name: finite_or_none(value) for name, value in values.items()}
        text = json.dumps({"kind": kind, "step": event.step, **line, "values": finite}, default=str)
        try:
            if self._file is not None:
                self._file.write(text + "\n")
                self._file.flush()
            if self._board is not None:
                for name, value in values.items():
                    self._board.add_scalar(f"{kind}/{name}", value, event.step)
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._note(f"{self._path} cannot be written: {getattr(error, 'strerror', None) or error}")
        self._failed = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._board is not None:
                self._board.close()
            if self._file is not None:
                self._file.close()


def read_lines(path: Path) -> list[MetricsLine]:
    """The lines of a metrics file, oldest first, without those that are damaged; none if there is no file.

    Raises TrainingError if it cannot be read.
    """
    return [line for _, line in _read(path)]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines that `read_lines` gives, each with everything that it holds."""
    return [whole for whole, _ in _read(path)]


def _read(path: Path) -> Iterator[tuple[dict[str, Any], MetricsLine]]:
    """Each line that is a record, with everything that it holds, and as the record."""
    try:
        require_regular(path)
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    for line in lines:
        try:
            whole = json.loads(line)
            known = as_kind(whole, MetricsLine)
        except (ValueError, RecursionError):  # it is cut off, or no record
            continue
        yield whole, known


def _cut(path: Path, step: int) -> None:
    """Remove lines after a step; they will be written again."""
    kept = [line for line in read_metrics(path) if line["step"] <= step and line["kind"] != "end"]
    if path.is_file():
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))


def _board(directory: Path, step: int) -> Any:
    """TensorBoard's writer; None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=step + 1 if step else None)


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
