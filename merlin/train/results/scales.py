"""The factors that make an ensemble's standard deviations as large as its errors, one for each field.

They are fitted to the validation split of the run, which no trainer has learned from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from merlin.base.records import as_kind
from merlin.errors import TrainingError
from merlin.shards.format.segments import Array
from merlin.train.config_file import load_config
from merlin.train.data import OnProgress, TrainingData
from merlin.train.loading.dataset import ShardDataset
from merlin.train.quantities import Quantity
from merlin.train.random_state import seeded
from merlin.train.results.best import BestModel
from merlin.train.results.ensemble_model import SUFFIX, EnsembleModel
from merlin.train.results.evaluation_file import read_evaluation
from merlin.train.results.held_out import open_held_out, rows_at_once
from merlin.train.results.intervals import fitted_scale
from merlin.train.results.members import Members, NoEnsembleError
from merlin.train.results.physical import as_chw
from merlin.train.run_directory import RunDirectory

_MAX_PIXELS = 1 << 18  # of an image field, spread over all samples
_LEAST_SPREAD = 1e-6  # relative to an image's greatest value: errors of rounding
_SEED = 0


class Judged(Struct, frozen=True):
    """Samples, and the name of their split."""

    data: TrainingData
    dataset: ShardDataset
    split: str


class Scales(Struct, frozen=True):
    """The factors by field, and the samples that they were fitted to."""

    by_field: Mapping[str, float]
    split: str
    num_samples: int


def find_scales(best: BestModel, run: RunDirectory, members: Members) -> Scales:
    """The factors for the ensemble of a run: those of its last evaluation, else fitted now.

    Raises as `open_held_out` and `validation_samples`.
    """
    known = _evaluated(run, members)
    if known is not None:
        return known
    config, facts = load_config(run.config_path).config, run.facts()
    data = open_held_out(best, config, facts, None)
    return fit_scales(EnsembleModel(members), validation_samples(data))


def validation_samples(data: TrainingData) -> Judged:
    """What the factors of a run are fitted to. Raises NoEnsembleError if its trainers have learned from that."""
    splits = data.config.splits
    if splits.validation == splits.train:
        raise NoEnsembleError(
            "uncertainty is scaled on samples that no trainer has learned from, and this run validates on the split "
            f"that it trains on, '{splits.train}'; name another one as splits.validation"
        )
    return Judged(data, data.dataset(splits.validation), splits.validation)


def fit_scales(
    ensemble: EnsembleModel, judged: Judged, progress: OnProgress = lambda done, total: None
) -> Scales:
    """The factors with which the true values of some samples are most likely, for an ensemble without factors."""
    ratios = Ratios(len(judged.dataset))
    for quantity, mean, std, true in predictions(ensemble, judged, progress):
        ratios.add(quantity, mean, std, true)
    return ratios.scales(judged, ensemble)


def predictions(
    ensemble: EnsembleModel, judged: Judged, progress: OnProgress
) -> Iterator[tuple[Quantity, Array, Array, Array]]:
    """Each field with its mean, standard deviation and true value, batch by batch: (n,) or (n, C, H, W) float64, in
    the data set's units."""
    data, dataset, quantities = judged.data, judged.dataset, ensemble.quantities
    columns = {column.name: column for column in (*data.selection.scalars, *data.selection.images)}
    known = {q.name: q for q in (*quantities.scalars, *quantities.images)}
    num, step = len(dataset), rows_at_once((*quantities.images, *quantities.input_images))
    for lo in range(0, num, step):
        index = np.arange(lo, min(lo + step, num))
        made = _made(ensemble, data.shapes.with_channels(dataset[index]))
        for name, quantity in known.items():
            if name not in made:
                continue
            column = data.ens.column_at(columns[name].path)
            expected = torch.from_numpy(np.asarray(column[dataset.rows[index]], np.float64))
            mean, std, true = (_plain(x, quantity) for x in (made[name], made[name + SUFFIX], expected))
            yield quantity, mean, std, true
        progress(lo + len(index), num)


@torch.inference_mode()
def _made(ensemble: EnsembleModel, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The predictions for a normalised batch; models that draw random numbers draw the same ones for each."""
    device = next(ensemble.parameters()).device
    with seeded(_SEED, device):
        return ensemble.predicted_from({key: values.to(device) for key, values in batch.items()})


def _plain(values: Tensor, quantity: Quantity) -> Array:
    values = values.double().cpu()
    return (as_chw(values, quantity) if quantity.shape else values).numpy()


class Ratios:
    """How many standard deviations true values are from the mean, of all samples so far, by field.

    Of images, a few pixels are kept, the same ones in each sample. Pixels that are right and in which all
    members agree, apart from rounding, are left out: nothing about them is uncertain.
    """

    def __init__(self, num_samples: int) -> None:
        self._num_pixels = max(1, _MAX_PIXELS // max(1, num_samples))
        self._parts: dict[str, list[Array]] = {}
        self._pixels: dict[str, Array] = {}

    def add(self, quantity: Quantity, mean: Array, std: Array, true: Array) -> None:
        """Add arrays (n,), or (n, C, H, W) of images."""
        error, least = np.abs(true - mean), np.zeros_like(mean)
        if quantity.shape:
            least += _LEAST_SPREAD * np.abs(mean).max(axis=(2, 3), keepdims=True)
            pixels = self._chosen(quantity)
            error, std, least = (values.reshape(len(true), -1)[:, pixels] for values in (error, std, least))
        counts = ~((error <= least) & (std <= least))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = error[counts] / np.maximum(std, least)[counts]
        # an interval around a prediction that is no number contains nothing
        self._parts.setdefault(quantity.name, []).append(np.where(np.isnan(ratios), np.inf, ratios))

    def _chosen(self, quantity: Quantity) -> Array:
        """The places of the pixels that are kept, in an image (C, H, W) laid out flat."""
        if quantity.name not in self._pixels:
            num, random = prod(quantity.shape), np.random.default_rng(_SEED)
            self._pixels[quantity.name] = random.choice(num, min(num, self._num_pixels), replace=False)
        return self._pixels[quantity.name]

    def of(self, name: str) -> Array:
        """The ratios of a field, (n,)."""
        return np.concatenate(self._parts[name])

    def scales(self, judged: Judged, ensemble: EnsembleModel) -> Scales:
        """The factors that fit the ratios best."""
        num = len(ensemble.models)
        found = {name: fitted_scale(self.of(name), num) for name in self._parts}
        return Scales(found, judged.split, len(judged.dataset))


class _Fitted(Struct, frozen=True):
    split: str
    num_samples: int


class _Scale(Struct, frozen=True):
    scale: float


class _Evaluated(Struct, frozen=True):
    """What an evaluation says of an ensemble, as far as it is needed again."""

    members: list[dict[str, Any]]
    fitted_on: _Fitted
    fields: dict[str, _Scale]


def _evaluated(run: RunDirectory, members: Members) -> Scales | None:
    """The factors in `evaluation.json`; None unless they are of these members."""
    with suppress(TrainingError, ValueError):
        facts = as_kind((read_evaluation(run) or {}).get("uncertainty"), _Evaluated)
        if facts.members == members.to_json():
            by_field = {name: found.scale for name, found in facts.fields.items()}
            return Scales(by_field, facts.fitted_on.split, facts.fitted_on.num_samples)
    return None
