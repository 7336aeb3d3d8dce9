"""The events of a trainer as JSON lines and for TensorBoard; a resumed run continues both where its checkpoint is."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from merlin.base.files import write_text
from merlin.errors import TrainingError
from merlin.shards.format.regular_file import require_regular
from merlin.train.events import Event, LossesTaken, RoundPlayed, RunEnded, Validated

NAME = "metrics.jsonl"


class _MetricsLine(NamedTuple):
    kind: str
    facts: dict[str, Any]
    values: Mapping[str, float] = {}


def _line(event: Event) -> _MetricsLine | None:
    """The line that is written for an event; None if there is none."""
    progress = event.progress
    place = {"epoch": round(event.epoch, 4), "time_s": round(progress.train_s, 3)}
    match event:
        case LossesTaken():
            rates = {f"lr/{phase}": lr for phase, lr in event.lr.items()}
            place["samples_per_s"] = round(event.samples_per_s, 1)
            return _MetricsLine("train", place, {**event.losses, **rates})
        case Validated():
            return _MetricsLine("validation", {**place, "best": event.is_best}, progress.metrics)
        case RoundPlayed():
            facts = dict(event.facts)
            values = facts.pop("values", {})
            return _MetricsLine("round", {"round": progress.round, **facts}, values)
        case RunEnded():
            return _MetricsLine("end", {"state": event.state, "reason": event.reason})
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
        values = {name: finite_or_none(value) for name, value in line.values.items()}
        text = json.dumps(
            {"kind": line.kind, "step": event.step, **line.facts, "values": values}, default=str
        )
        try:
            if self._file is not None:
                self._file.write(text + "\n")
                self._file.flush()
            if self._board is not None:
                for name, value in line.values.items():
                    self._board.add_scalar(f"{line.kind}/{name}", value, event.step)
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, oldest first, without one that is cut off; none if there is no file.

    Raises TrainingError if it cannot be read.
    """
    try:
        require_regular(path)
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


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
