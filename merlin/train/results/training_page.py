"""A training run as a page shows it; it needs no torch."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import stamp
from merlin.errors import TrainingError
from merlin.shards.format.segments import Array
from merlin.status.live import lock_holder
from merlin.train.metrics_log import NAME as METRICS
from merlin.train.metrics_log import finite_or_none
from merlin.train.results.history import Curve, History, Round, Trained, read_history
from merlin.train.run_paths import BEST, FACTS, RunPaths, TrainerDirectory, read_facts

MAX_POINTS = 500  # of a curve
SILENT_S = 600.0  # without a line before a trainer on another host is doubted
# the state of a run is the first one that one of its trainers has
STATES = ("running", "silent", "killed", "stopped", "finished")


class CurvePoints(Struct, frozen=True, kw_only=True):
    """A number over the steps of one trainer; None where it was not finite. Long curves are thinned out."""

    trainer: int
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


class TrainingPage(Struct, frozen=True, kw_only=True):
    """A run at one moment. state: that of a trainer, the first of `STATES`, or new before there is one.

    A trainer without an end is running, killed, or silent: it runs on another host, and has not written for long.
    """

    path: str
    name: str
    state: str
    created: str
    data_path: str
    num_parameters: int
    trainers: tuple[Trained, ...]
    losses: Mapping[str, Sequence[CurvePoints]]  # a curve for each trainer
    validation: Mapping[str, Sequence[CurvePoints]]
    rounds: tuple[Round, ...]
    origins: Mapping[int, Sequence[int]]  # trainer -> after each round, the trainer in which its model began
    best: Mapping[str, Any] | None  # trainer, step, metric, direction, value, metrics


def training_page(path: Path) -> TrainingPage:
    """The run in directory `path`. Raises TrainingError if there is none, or it cannot be read."""
    facts = read_facts(path / FACTS)
    if facts is None:
        raise TrainingError(f"{path} is not a training run: it has no {FACTS}")
    run = RunPaths(path)
    history = _history_of(
        path, tuple((index, stamp(run.trainer(index).path / METRICS)) for index in run.trainers())
    )
    trainers = tuple(
        trained if trained.state else replace(trained, state=_state_without_end(run.trainer(trained.trainer)))
        for trained in history.trainers
    )
    return TrainingPage(
        path=str(path),
        name=path.name,
        state=next((state for state in STATES if any(line.state == state for line in trainers)), "new"),
        created=str(facts.get("created", "")),
        data_path=str(facts.get("data_path", "")),
        num_parameters=facts.get("num_parameters", 0),
        trainers=trainers,
        losses=_thinned(history.training),
        validation=_thinned(history.validation),
        rounds=history.rounds,
        origins=history.origins(),
        best=read_facts(run.best / BEST),
    )


@lru_cache(maxsize=16)
def _history_of(path: Path, stamps: Hashable) -> History:
    return read_history(RunPaths(path))


def _state_without_end(trainer: TrainerDirectory) -> str:
    """The state of a trainer that has not said how it ended.

    A trainer on another host counts as running as long as it writes.
    """
    holder = lock_holder(trainer.path / "lock")
    if holder is None:
        return "killed"
    if holder.is_here:
        return "running"
    with suppress(OSError):
        if time.time() - (trainer.path / METRICS).stat().st_mtime < SILENT_S:
            return "running"
    return "silent"


def _thinned(curves: Mapping[str, Sequence[Curve]]) -> dict[str, tuple[CurvePoints, ...]]:
    return {name: tuple(_points(curve) for curve in of_trainers) for name, of_trainers in curves.items()}


def _points(curve: Curve) -> CurvePoints:
    chosen = thin_out(curve.values, MAX_POINTS)
    return CurvePoints(
        trainer=curve.trainer,
        steps=tuple(int(step) for step in curve.steps[chosen]),
        values=tuple(finite_or_none(float(value)) for value in curve.values[chosen]),
    )


def thin_out(values: Array, most: int) -> Array:
    """Indices of at most `most` values, ascending: of each stretch the least, and the greatest or one not finite."""
    if len(values) <= most:
        return np.arange(len(values))
    bounds = np.linspace(0, len(values), most // 2 + 1).astype(int)
    chosen: set[int] = set()
    for lo, hi in pairwise(bounds.tolist()):
        stretch = values[lo:hi]
        finite = np.flatnonzero(np.isfinite(stretch))
        if len(finite):
            chosen.add(lo + int(finite[stretch[finite].argmin()]))
        if len(finite) < len(stretch):
            chosen.add(lo + int(np.flatnonzero(~np.isfinite(stretch))[0]))
        else:
            chosen.add(lo + int(stretch.argmax()))
    return np.array(sorted(chosen))
