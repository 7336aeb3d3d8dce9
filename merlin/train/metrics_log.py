"""The events of a trainer as JSON lines; a resumed run continues them where its checkpoint is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from msgspec import Struct, field

from merlin.base.files import write_text
from merlin.base.records import as_kind
from merlin.errors import TrainingError
from merlin.shards.format.regular_file import require_regular
from merlin.train.event_log import EventLog
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


class MetricsLog(EventLog):
    """Lines {"kind": "train" | "validation" | "round" | "end", "step": …, …, "values": …} of one trainer."""

    name = NAME
    _file: TextIO

    def _open(self, step: int) -> None:
        _cut(self._path, step)
        self._file = self._path.open("a", encoding="utf-8")

    def _write(self, event: Event) -> None:
        if event.kind:
            self._file.write(_line(event) + "\n")
            self._file.flush()

    def _close(self) -> None:
        self._file.close()


def _line(event: Event) -> str:
    """The line that is written for an event."""
    finite = {name: finite_or_none(value) for name, value in event.values.items()}
    line = {"kind": event.kind, "step": event.step, **_facts(event), "values": finite}
    return json.dumps(line, default=str)


def _facts(event: Event) -> dict[str, Any]:
    """What is written of an event beside its values."""
    place = {"epoch": round(event.epoch, 4), "time_s": round(event.progress.train_s, 3)}
    match event:
        case LossesTaken():
            return {**place, "samples_per_s": round(event.samples_per_s, 1)}
        case Validated():
            return {**place, "best": event.is_best}
        case RoundPlayed():
            facts = {name: fact for name, fact in event.facts.items() if name != "values"}
            return {"round": event.progress.round, **facts}
        case RunEnded():
            return {"state": event.state, "reason": event.reason}
    return {}


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


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
