"""How a run went: what each trainer wrote into `metrics.jsonl`, as curves and rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field

from merlin.shards.format.segments import Array
from merlin.train.metrics_log import NAME, Kept, MetricsLine, read_lines
from merlin.train.run_paths import RunPaths


class Curve(Struct, frozen=True):
    """A number over the steps of one trainer."""

    trainer: int
    steps: Array
    values: Array  # NaN where it was not finite


class Round(Struct, frozen=True):
    """A round of one trainer; `partner` is the trainer whose model it was offered.

    `kept` is "merged" for the mean of both models, or, without a partner, of all models.
    """

    number: int
    step: int
    trainer: int
    partner: int | None
    kept: Kept
    capacity: float | None = None  # of the copy that was made, where widths are mutated


class Trained(Struct, frozen=True):
    """How far a trainer came."""

    trainer: int
    step: int
    train_s: float
    samples_per_s: float
    state: str  # of its last end: finished | stopped; "" while it runs, or after it was killed


class History(Struct, frozen=True):
    """Curves by name, one for each trainer."""

    trainers: tuple[Trained, ...] = ()
    # losses: "loss", "generator/loss"
    training: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)
    validation: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)  # metrics
    rounds: tuple[Round, ...] = ()

    @property
    def num_rounds(self) -> int:
        return max((r.number for r in self.rounds), default=0)

    @property
    def averaged(self) -> list[int]:
        """The known rounds in which models became the mean of all, ascending."""
        return sorted({r.number for r in self.rounds if r.kept == "merged" and r.partner is None})

    def capacities(self) -> dict[int, float]:
        """The factor of the present model's widths, by trainer; only those that may have changed."""
        ordered = sorted(self.rounds, key=lambda played: played.number)
        return {played.trainer: played.capacity for played in ordered if played.capacity is not None}

    def origins(self) -> dict[int, list[int]]:
        """For each trainer and each round, 0 for the start: in which trainer its present model began."""
        found = {trained.trainer: [trained.trainer] for trained in self.trainers}
        moves: defaultdict[int, dict[int, int]] = defaultdict(dict)  # from whom trainers took over, by round
        for played in self.rounds:
            if played.kept == "partner" and played.partner is not None and played.partner in found:
                moves[played.number][played.trainer] = played.partner
        for number in range(1, self.num_rounds + 1):
            before = {trainer: origins[-1] for trainer, origins in found.items()}
            for trainer, origins in found.items():
                origins.append(before[moves[number].get(trainer, trainer)])
        return found


def read_history(run: RunPaths) -> History:
    """The history as far as it is written. Raises TrainingError if a file cannot be read."""
    lines = {index: read_lines(run.trainer(index).path / NAME) for index in run.trainers()}
    return History(
        trainers=tuple(_trained(index, found) for index, found in lines.items()),
        training=_curves(lines, "train"),
        validation=_curves(lines, "validation"),
        rounds=tuple(_rounds(lines)),
    )


def _trained(index: int, lines: list[MetricsLine]) -> Trained:
    paces = [line.samples_per_s for line in lines if line.samples_per_s]
    return Trained(
        trainer=index,
        step=max((line.step for line in lines), default=0),
        train_s=max((line.time_s or 0.0 for line in lines), default=0.0),
        samples_per_s=float(np.median(paces)) if paces else 0.0,
        state=lines[-1].state if lines and lines[-1].kind == "end" else "",
    )


def _curves(lines: Mapping[int, list[MetricsLine]], kind: str) -> dict[str, tuple[Curve, ...]]:
    """The metrics in lines of a kind; from lines of training, only the losses."""
    points: defaultdict[str, defaultdict[int, list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for index, found in lines.items():
        for line in found:
            for name, value in line.values.items() if line.kind == kind else ():
                if kind != "train" or name.rpartition("/")[2] == "loss":
                    points[name][index].append((line.step, math.nan if value is None else value))
    return {
        name: tuple(Curve(index, *map(np.array, zip(*of, strict=True))) for index, of in by_trainer.items())
        for name, by_trainer in points.items()
    }


def _rounds(lines: Mapping[int, list[MetricsLine]]) -> Iterable[Round]:
    for index, found in lines.items():
        for line in found:
            if line.kind == "round" and line.round is not None:
                partner = None if line.partner is None else int(line.partner)
                yield Round(line.round, line.step, index, partner, line.kept, line.capacity)
