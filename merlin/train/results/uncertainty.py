"""How far a surrogate may be wrong: what its run's ensemble says of that, measured on samples that it has not seen.

The mean of all members is compared with the published model, and it is counted how many true values the central
intervals hold: with the members' standard deviations as they are, and scaled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite, nan
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from merlin.base.text import count
from merlin.errors import NotADataSetError, ShardError
from merlin.shards.format.segments import Array
from merlin.train.data import OnProgress
from merlin.train.quantities import Quantity
from merlin.train.results.best import BestModel
from merlin.train.results.ensemble_model import EnsembleModel
from merlin.train.results.intervals import LEVELS, held_shares, reach
from merlin.train.results.members import Members, NoEnsembleError, load_members
from merlin.train.results.scales import (
    Judged,
    Ratios,
    Scales,
    find_scales,
    fit_scales,
    predictions,
    validation_samples,
)
from merlin.train.results.scores import ImageScores, ScalarScores
from merlin.train.run_directory import RunDirectory

_TOLD = 0.9  # the one in a sentence


class FieldUncertainty(Struct, frozen=True):
    """The uncertainty of one field; `raw` and `scaled` are the shares of true values in the intervals of `LEVELS`."""

    units: str
    measure: str  # of the errors: rmse, or relative_l2 of an image
    best: float  # the error of the published model
    mean: float  # and of the mean of all members
    scale: float
    raw: tuple[float, ...]
    scaled: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        # not `to_plain`: the file groups the numbers by what they measure, and has an error that is computed
        shares = {"raw": self.raw, "scaled": self.scaled}
        return {
            "units": self.units,
            "error": {"measure": self.measure, "best": self.best, "mean": self.mean},
            "scale": self.scale,
            "coverage": {name: list(of) for name, of in shares.items()},
            "calibration_error": {name: _distance(of) for name, of in shares.items()},
        }


def _distance(shares: tuple[float, ...]) -> float:
    """The mean distance of shares from their levels; 0 is perfect."""
    return fmean(abs(share - level) for share, level in zip(shares, LEVELS, strict=True))


class Uncertainty(Struct, frozen=True):
    """The ensemble of a run, measured on the samples of a split."""

    members: Members
    scales: Scales
    split: str
    num_samples: int
    fields: Mapping[str, FieldUncertainty]

    def sentence(self) -> str:
        """For people: what the ensemble is worth."""
        fields, at = self.fields.values(), LEVELS.index(_TOLD)
        ratio = _median(of.mean / of.best for of in fields if of.best > 0)
        raw, scaled = _median(of.raw[at] for of in fields), _median(of.scaled[at] for of in fields)
        return (
            f"ensemble of {count(len(self.members.models), 'trainer')}, medians of {count(len(fields), 'field')}: the "
            f"error of the mean is {_shown(100 * ratio)} % of this model's, and intervals of {100 * _TOLD:.0f} % hold "
            f"{_shown(100 * raw)} % of the true values, {_shown(100 * scaled)} % when scaled on {self.scales.split}"
        )

    def to_json(self) -> dict[str, Any]:
        # not `to_plain`: models are no JSON, and half of the entries are computed
        num = len(self.members.models)
        return {
            "sentence": self.sentence(),
            "members": self.members.to_json(),
            "notes": list(self.members.notes),
            "split": self.split,
            "num_samples": self.num_samples,
            "fitted_on": {"split": self.scales.split, "num_samples": self.scales.num_samples},
            "levels": list(LEVELS),
            "reach": [reach(level, num) for level in LEVELS],
            "fields": {name: of.to_json() for name, of in self.fields.items()},
        }


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if isfinite(value)]
    return median(known) if known else nan


def _shown(value: float) -> str:
    return "–" if value != value else f"{value:.3g}"


class Assessment(Struct, frozen=True):
    """An ensemble without factors, the samples to measure it on, and those that factors are to be fitted to.

    `fitting` is None if factors are fitted to the same samples, and the factors themselves if they are known.
    """

    ensemble: EnsembleModel
    judged: Judged
    fitting: Judged | Scales | None

    @property
    def num_samples(self) -> int:
        """How many samples the ensemble is to predict."""
        more = len(self.fitting.dataset) if isinstance(self.fitting, Judged) else 0
        return more + len(self.judged.dataset)

    def run(self, best: Mapping[str, Any], progress: OnProgress) -> Uncertainty:
        """Measure it; `best` are the published model's scores on the samples, as in `evaluation.json`."""
        fitting, judged, num = self.fitting, self.judged, len(self.ensemble.models)
        scales = fit_scales(self.ensemble, fitting, progress) if isinstance(fitting, Judged) else fitting
        ratios, scores = Ratios(len(judged.dataset)), _Scores()
        known = {}
        for quantity, mean, std, true in predictions(self.ensemble, judged, progress):
            known[quantity.name] = quantity
            ratios.add(quantity, mean, std, true)
            scores.add(quantity, mean, true)
        scales = scales or ratios.scales(judged, self.ensemble)
        fields = {}
        for name, quantity in known.items():
            measure, error = scores.error(quantity)
            published = best["images" if quantity.shape else "scalars"][name][measure]
            scale, of = scales.by_field.get(name, 1.0), ratios.of(name)
            raw, scaled = (held_shares(of, factor, LEVELS, num) for factor in (1.0, scale))
            fields[name] = FieldUncertainty(quantity.units, measure, published, error, scale, raw, scaled)
        return Uncertainty(self.ensemble.members, scales, judged.split, len(judged.dataset), fields)


def find_assessment(
    run: RunDirectory, best: BestModel, judged: Judged, is_own: bool, device: torch.device
) -> tuple[Assessment | None, str]:
    """How the uncertainty of a run is measured; None if it has no ensemble, and why, unless it has only one trainer.

    `is_own` says that the trainers have learned from this data set, so that factors are fitted anew.
    """
    if len(run.trainers()) < 2:
        return None, ""
    try:
        members = load_members(best, run.path, device)
        if not is_own:
            return Assessment(EnsembleModel(members), judged, find_scales(best, run, members)), ""
        fitting = validation_samples(judged.data)
        is_same = fitting.split == judged.split
        return Assessment(EnsembleModel(members), judged, None if is_same else fitting), ""
    except (NoEnsembleError, NotADataSetError, ShardError) as error:
        return None, f"No uncertainty: {error}"


class _Scores:
    """The errors of the mean, scored as those of a single model are."""

    def __init__(self) -> None:
        self._scalars: defaultdict[str, ScalarScores] = defaultdict(ScalarScores)
        self._images: dict[str, ImageScores] = {}

    def add(self, quantity: Quantity, mean: Array, true: Array) -> None:
        if not quantity.shape:
            self._scalars[quantity.name].add(mean, true)
            return
        scores = self._images.setdefault(quantity.name, ImageScores(quantity.shape_chw[0]))
        scores.add(mean, true, np.zeros(mean.shape[:2]))  # nobody asks for their structural similarity

    def error(self, quantity: Quantity) -> tuple[str, float]:
        """The error of a field, and the name of its measure."""
        if not quantity.shape:
            return "rmse", self._scalars[quantity.name].result()["rmse"]
        scores = self._images[quantity.name]
        found = scores.result([quantity.channel(i) for i in range(scores.channels)])
        return "relative_l2", found["relative_l2"]
