"""What a model has to be better than: a linear model, and the nearest neighbour among the training samples.

Both know a bounded number of training samples, so that comparing costs a second however large the data set is. Errors
are parts of a field's spread: 0 is perfect, and 1 is as good as always saying the mean, or the most frequent class.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from math import prod
from statistics import median
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import functional as F

from merlin.base.text import count
from merlin.errors import TrainingError, UsageError
from merlin.shards.format.segments import Array
from merlin.train.config import TrainConfig
from merlin.train.data import TrainingData
from merlin.train.loading.dataset import ShardDataset
from merlin.train.models.base import Shapes
from merlin.train.models.inputs import INPUTS, predict_batch
from merlin.train.models.outputs import SCALARS, require_predictions
from merlin.train.models.registry import MODEL_ERRORS
from merlin.train.parallel.world import choose_device
from merlin.train.prepare import open_data
from merlin.train.results.best import BestModel, load_best
from merlin.train.run_directory import RunDirectory

NUM_JUDGED = 512  # samples that all are compared on
NUM_FITTED = 1024  # samples of the linear model
NUM_KNOWN = 20_000  # samples among which the nearest is looked for
MOST_FEATURES = 1024  # numbers among the inputs of a linear model
_KNOWN_BYTES = 64 << 20
_BATCH = 64
_RIDGE = 1e-6  # of the mean square of a feature, so that constant ones do no harm

LINEAR, NEAREST, MODEL = "linear", "nearest", "model"
Batch = Mapping[str, Tensor]
Matrices = dict[str, Tensor]  # by field
Guess = Callable[[Batch], Matrices]


class Comparison(Struct, frozen=True):
    """Errors by field and by who made them: "model", "nearest", and "linear" unless there are too many inputs."""

    split: str
    num_samples: int
    num_known: int  # training samples among which the nearest was looked for
    num_fitted: int  # training samples that the linear model was fitted to; 0: there was none
    fields: Mapping[str, Mapping[str, float]]

    def error(self, who: str) -> float | None:
        """The median over the fields; None if there is none."""
        known = [errors[who] for errors in self.fields.values() if who in errors]
        return median(known) if known else None

    @property
    def not_better(self) -> tuple[str, ...]:
        """The fields in which one of the baselines is as good as the model."""
        return tuple(
            name
            for name, of in self.fields.items()
            if not of[MODEL] < min(error for who, error in of.items() if who != MODEL)
        )

    def sentence(self) -> str:
        """For people: what the model is worth beside the baselines."""
        model, linear, nearest = (self.error(who) for who in (MODEL, LINEAR, NEAREST))
        others = [f"linear model {_percent(linear)}"] if linear is not None else []
        others.append(f"nearest neighbour {_percent(nearest)}")
        told = (
            f"baseline: median error of {count(len(self.fields), 'field')}, in percent of the spread, on "
            f"{count(self.num_samples, 'sample')} ({self.split}): this model {_percent(model)}, {', '.join(others)}"
        )
        if worse := self.not_better:
            which = "anything" if len(worse) == len(self.fields) else ", ".join(worse)
            told += f"; it is NO BETTER than a baseline for {which}"
        return told

    def to_json(self) -> dict[str, Any]:
        """The comparison with medians, the fields in which the model is not better, and the sentence."""
        # not `to_plain`: half of the entries are computed, and the written order has them between the others
        return {
            "sentence": self.sentence(),
            "split": self.split,
            "num_samples": self.num_samples,
            "median_error": {who: self.error(who) for who in (MODEL, LINEAR, NEAREST)},
            "num_known": self.num_known,
            "num_fitted": self.num_fitted,
            "not_better": list(self.not_better),
            "fields": dict(self.fields),
        }


def compare_run(run: RunDirectory, config: TrainConfig) -> Comparison | None:
    """The best model of a run beside the baselines, on the validation split; None if there is nothing to compare.

    Raises as `load_best`, but no consent is needed: the user who trained the model trusts it. Raises
    TrainingError if the model fails.
    """
    splits = config.splits
    if splits.validation == splits.train:
        return None
    data = open_data(run, config)
    device = choose_device(config.training.device, 0)
    best = load_best(run.path, str(device), trust_code=True)
    try:
        return compare(best, data, data.dataset(splits.validation), splits.validation)
    except MODEL_ERRORS as error:
        raise TrainingError(f"the model {best.name} fails: {type(error).__name__}: {error}") from error


def compare(best: BestModel, data: TrainingData, judged: ShardDataset, split: str) -> Comparison | None:
    """The model beside the baselines on some of `judged`; None if it does not predict from inputs."""
    train, fields = data.config.splits.train, _Fields(data.shapes)
    known = data.dataset(train)
    with torch.inference_mode():
        neighbours = _Neighbours(known, data.inputs_of(train), fields)
        linear = _fit_linear(known, fields)
        guesses: dict[str, Guess] = {
            MODEL: partial(_predict, best, fields),
            NEAREST: neighbours.guess,
        }
        if linear is not None:
            guesses[LINEAR] = linear.guess
        scores = {who: _Score() for who in guesses}
        spread = _Spread()
        for batch in fields.batches(judged, NUM_JUDGED):
            try:
                made = {who: guess(batch) for who, guess in guesses.items()}
            except (NotImplementedError, UsageError):
                return None  # for example an autoencoder, which raises this
            true = {name: values for name, values in fields.targets(batch).items() if name in made[MODEL]}
            spread.add(true)
            for who, found in made.items():
                scores[who].add(found, true, fields.classes)
    parts = {
        name: {who: _part(score.totals[name], total, name in fields.classes) for who, score in scores.items()}
        for name, total in spread.totals(fields.classes).items()
        if total > 0
    }
    num_fitted = 0 if linear is None else linear.num
    return Comparison(split, spread.num, neighbours.num, num_fitted, parts) if parts else None


def _percent(error: float | None) -> str:
    return "–" if error is None or error != error else f"{100 * error:.3g} %"


def _part(error: float, spread: float, is_class: bool) -> float:
    return error / spread if is_class else math.sqrt(error / spread)


class _Fields:
    """Batches as matrices: features (n, d), and targets (n, k) by the names of fields, classes as ones and zeros."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.classes = shapes, shapes.classes
        self.num_features = len(shapes.inputs) + sum(map(prod, shapes.input_images.values()))

    def batches(self, dataset: ShardDataset, most: int) -> Iterator[Batch]:
        """At most so many samples, evenly spread over all."""
        rows = spread_rows(len(dataset), most)
        for lo in range(0, len(rows), _BATCH):
            yield self.shapes.with_channels(dataset[rows[lo : lo + _BATCH]])

    def features(self, batch: Batch) -> Tensor:
        parts = [batch[INPUTS]] if INPUTS in batch else []
        parts += [batch[name].float().flatten(1) for name in self.shapes.input_images]
        return torch.cat(parts, 1)

    def targets(self, batch: Batch) -> Matrices:
        found = self.split({name: values for name, values in batch.items() if name not in self.classes})
        for name, values in self.classes.items():
            number = torch.searchsorted(torch.tensor(values), batch[name].long())
            found[name] = F.one_hot(number, len(values)).float()
        return found

    def split(self, made: Mapping[str, Tensor]) -> Matrices:
        """The scalars one by one, images flat, and logits of classes as they are; what there is of them."""
        shapes = self.shapes
        scalars = shapes.scalars if SCALARS in made else ()
        found = {name: made[SCALARS][:, i : i + 1] for i, name in enumerate(scalars)}
        return found | {n: made[n].flatten(1) for n in (*shapes.images, *shapes.classes) if n in made}


def _predict(best: BestModel, fields: _Fields, batch: Batch) -> Matrices:
    device = next(iter(best.trainee.parameters())).device
    images = fields.shapes.input_images
    given = {name: batch[name].to(device) for name in (INPUTS, *images) if name in batch}
    made = predict_batch(best.trainee, given, images)
    num = len(next(iter(batch.values())))
    require_predictions(best.name, made, num, best.quantities.predicted_shapes)
    return {name: values.float().cpu() for name, values in fields.split(made).items()}


class _Score:
    """For each field, the sum of squared errors; for classes, how often a wrong one was the likeliest."""

    def __init__(self) -> None:
        self.totals: defaultdict[str, float] = defaultdict(float)

    def add(self, made: Matrices, true: Matrices, classes: Container[str]) -> None:
        for name, values in true.items():
            found = made[name]
            if name in classes:
                self.totals[name] += float((found.argmax(1) != values.argmax(1)).sum())
            else:
                self.totals[name] += float((found - values).double().square().sum())


class _Spread:
    """The same scores for always saying the mean, or the most frequent class."""

    def __init__(self) -> None:
        self.num = 0
        self._sums: dict[str, Tensor] = {}
        self._squares: defaultdict[str, float] = defaultdict(float)

    def add(self, true: Matrices) -> None:
        self.num += len(next(iter(true.values())))
        for name, values in true.items():
            total = values.double().sum(0)
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._squares[name] += float(values.double().square().sum())

    def totals(self, classes: Container[str]) -> dict[str, float]:
        """The score of each field; 0 for a field whose spread is nothing but rounding."""
        found = {}
        for name, sums in self._sums.items():
            mean = float(sums.square().sum()) / self.num
            rest = self._squares[name] - mean
            rest = 0.0 if rest <= 1e-12 * self._squares[name] else rest
            found[name] = self.num - float(sums.max()) if name in classes else rest
        return found


class _Neighbours:
    """Guesses the outputs of the known sample with the nearest inputs."""

    def __init__(self, known: ShardDataset, inputs: ShardDataset, fields: _Fields) -> None:
        """`inputs` are the inputs of the samples that are `known`, without the rest."""
        most = max(1, min(NUM_KNOWN, _KNOWN_BYTES // (4 * max(1, fields.num_features))))
        self._known, self._fields = known, fields
        self._rows = spread_rows(len(known), most)
        parts = [self._rows[lo : lo + NUM_FITTED] for lo in range(0, len(self._rows), NUM_FITTED)]
        self._features = torch.cat(
            [fields.features(fields.shapes.with_channels(inputs[part])) for part in parts]
        )
        self.num = len(self._rows)

    def guess(self, batch: Batch) -> Matrices:
        nearest = torch.cdist(self._fields.features(batch), self._features).argmin(1).numpy()
        found = self._fields.shapes.with_channels(self._known[self._rows[nearest]])
        return self._fields.targets(found)


class _Linear:
    """Least squares from all numbers among the inputs, and a constant."""

    def __init__(self, fields: _Fields, weights: Tensor, sizes: Mapping[str, int], num: int) -> None:
        self._fields, self._weights, self._sizes, self.num = fields, weights, sizes, num

    def guess(self, batch: Batch) -> Matrices:
        made = _with_one(self._fields.features(batch)) @ self._weights
        return dict(zip(self._sizes, made.split(list(self._sizes.values()), 1), strict=True))


def _fit_linear(known: ShardDataset, fields: _Fields) -> _Linear | None:
    """Fit the linear model; None if there are too many inputs."""
    if not 0 < fields.num_features <= MOST_FEATURES:
        return None
    products: Tensor | float = 0.0
    outcomes: Tensor | float = 0.0
    num, sizes = 0, {}
    for batch in fields.batches(known, NUM_FITTED):
        x, targets = _with_one(fields.features(batch)), fields.targets(batch)
        sizes = {name: values.shape[1] for name, values in targets.items()}
        products = products + x.T.double() @ x.double()
        outcomes = outcomes + x.T @ torch.cat(list(targets.values()), 1)
        num += len(x)
    assert isinstance(products, Tensor) and isinstance(outcomes, Tensor)
    products = products + _RIDGE * num * torch.eye(len(products), dtype=products.dtype)
    return _Linear(fields, torch.linalg.solve(products, outcomes.double()).float(), sizes, num)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def spread_rows(num: int, most: int) -> Array:
    """At most so many of the numbers below `num`, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.int64))
