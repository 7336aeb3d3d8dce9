"""How a run went: what each trainer wrote into `metrics.jsonl`, as curves and rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from merlin.train.metrics_log import NAME, read_metrics
from merlin.train.run_directory import RunDirectory

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Curve:
    """A number over the steps of one trainer."""

    trainer: int
    steps: Array
    values: Array  # NaN where it was not finite


@dataclass(frozen=True)
class Round:
    """What one trainer did in a round; `partner` is the one whose model it was offered."""

    number: int
    step: int
    trainer: int
    partner: int | None
    kept: Literal["local", "partner"]
    capacity: float | None = None  # of the copy that was made, where widths are mutated


@dataclass(frozen=True)
class Trained:
    """How far a trainer came."""

    trainer: int
    step: int
    train_s: float
    samples_per_s: float
    state: str  # of its last end: finished | stopped; "" while it runs, or after it was killed


@dataclass(frozen=True)
class History:
    """Curves by name, one for each trainer."""

    trainers: tuple[Trained, ...] = ()
    # losses: "loss", "generator/loss"
    training: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)
    validation: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)  # metrics
    rounds: tuple[Round, ...] = ()

    @property
    def num_rounds(self) -> int:
        return max((r.number for r in self.rounds), default=0)

    def capacities(self) -> dict[int, float]:
        """The factor of the present model's widths, of trainers that have one that may differ from the configured."""
        ordered = sorted(self.rounds, key=lambda played: played.number)
        return {played.trainer: played.capacity for played in ordered if played.capacity is not None}

    def origins(self) -> dict[int, list[int]]:
        """For each trainer and each round, 0 for the start: in which trainer its present model began."""
        holders = [trained.trainer for trained in self.trainers]
        found = {trainer: [trainer] for trainer in holders}
        by_number: dict[int, list[Round]] = {}
        for played in self.rounds:
            by_number.setdefault(played.number, []).append(played)
        for number in range(1, self.num_rounds + 1):
            before = {trainer: found[trainer][-1] for trainer in holders}
            now = dict(before)
            for played in by_number.get(number, ()):
                if played.kept == "partner" and played.partner in before and played.trainer in now:
                    now[played.trainer] = before[played.partner]
            for trainer in holders:
                found[trainer].append(now[trainer])
        return found


def read_history(run: RunDirectory) -> History:
    """What is there; trainers that wrote nothing have no curves."""
    lines = {index: read_metrics(run.trainer(index).path / NAME) for index in run.trainers()}
    return History(
        trainers=tuple(_trained(index, found) for index, found in lines.items()),
        training=_curves(lines, "train", lambda name: name.rpartition("/")[2] == "loss"),
        validation=_curves(lines, "validation", lambda name: True),
        rounds=tuple(_rounds(lines)),
    )


def _trained(index: int, lines: list[dict[str, Any]]) -> Trained:
    last = lines[-1] if lines else {}
    paces = [line["samples_per_s"] for line in lines if line.get("samples_per_s")]
    return Trained(
        trainer=index,
        step=max((line["step"] for line in lines), default=0),
        train_s=max((line.get("time_s") or 0.0 for line in lines), default=0.0),
        samples_per_s=float(np.median(paces)) if paces else 0.0,
        state=str(last.get("state", "")) if last.get("kind") == "end" else "",
    )


def _curves(
    lines: Mapping[int, list[dict[str, Any]]], kind: str, wanted: Any
) -> dict[str, tuple[Curve, ...]]:
    points: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for index, found in lines.items():
        for line in found:
            if line["kind"] == kind:
                for name, value in line["values"].items():
                    if wanted(name):
                        at = (line["step"], float("nan") if value is None else float(value))
                        points.setdefault(name, {}).setdefault(index, []).append(at)
    return {
        name: tuple(
            Curve(index, np.array([s for s, _ in of]), np.array([v for _, v in of]))
            for index, of in by_trainer.items()
        )
        for name, by_trainer in points.items()
    }


def _rounds(lines: Mapping[int, list[dict[str, Any]]]) -> Iterable[Round]:
    for index, found in lines.items():
        for line in found:
            if line["kind"] == "round" and "round" in line:
                partner = line.get("partner")
                yield Round(
                    int(line["round"]),
                    int(line["step"]),
                    index,
                    int(partner) if isinstance(partner, int | float) else None,
                    "partner" if line.get("kept") == "partner" else "local",
                    line.get("capacity"),
                )
