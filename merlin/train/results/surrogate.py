"""A trained model to ask: inputs in physical units in, scalars and images in physical units out.

surrogate = merlin.load_surrogate("runs/icf_20260101-120000")
surrogate.inputs, surrogate.scalars, surrogate.images
surrogate.predict({"mode_2_1": 0.01, "trans_u": np.linspace(0, 1, 100), …})["Yn"]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from merlin.errors import UsageError
from merlin.shards.format.segments import Array
from merlin.train.parallel.world import choose_device
from merlin.train.quantities import Quantity
from merlin.train.results.best import BestModel, load_best
from merlin.train.results.ensemble_model import SUFFIX, EnsembleModel, with_std
from merlin.train.results.given import as_real, checked_images, checked_matrix, matrix_of, require_columns
from merlin.train.results.intervals import reach
from merlin.train.results.members import Members, load_members
from merlin.train.results.physical import PhysicalModel
from merlin.train.results.scales import Scales, find_scales
from merlin.train.run_directory import RunDirectory

BATCH_SIZE = 256
TOO_FAR = "is too far outside of the range of the training data for the model to compute with"
_ULPS = 1e-6  # relative to the range: values at its ends may have been written as text, or as float32


class ExtrapolationWarning(UserWarning):
    """Inputs lie outside of what the model was trained on."""


def load_surrogate(
    path: str | os.PathLike[str], *, device: str = "auto", trust_code: bool = False, uncertainty: bool = False
) -> Surrogate:
    """Load the best model of a run: the run's directory, or a copy of the directory `best` in it.

    `device` is auto, cpu, cuda or cuda:N. A model of your own, which the run names as "module:callable", is imported
    only with `trust_code`, for the run may be anybody's. With `uncertainty`, the surrogate is an `UncertainSurrogate`
    of the best models of all trainers, which takes the run's directory.

    Raises UsageError if `path` is no run or its model predicts nothing or is not trusted, or there are no two trainers
    with different models, TrainingError if it has no model yet, CheckpointError if a file is damaged. With
    `uncertainty`, NotADataSetError or ShardError if the run was not evaluated and its data set is gone or has changed.
    """
    chosen = choose_device(device, 0)
    best = load_best(path, str(chosen), trust_code=trust_code)
    surrogate = Surrogate(best, chosen)
    if not uncertainty:
        return surrogate
    members = load_members(best, Path(path), chosen)
    return UncertainSurrogate(best, chosen, members, find_scales(best, RunDirectory(Path(path)), members))


class Surrogate:
    """Predicts scalars and images for inputs, all in the units of the data set that it was trained on."""

    def __init__(self, best: BestModel, device: torch.device) -> None:
        self.best = best
        self.device = device
        model = PhysicalModel(best.name, best.trainee, best.quantities, best.normaliser).to(device).eval()
        self.model: PhysicalModel | EnsembleModel = model
        self._normalised = model.inputs
        self.predicted = model.predicted()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of inputs, in the order of an array's; a series has one for each of its numbers."""
        return tuple(name for q in self.best.quantities.columns for name in q.column_names)

    @property
    def input_images(self) -> dict[str, tuple[int, ...]]:
        """The images among the inputs, each with its shape, laid out as in the data set."""
        return {q.name: q.shape for q in self.best.quantities.input_images}

    @property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that are predicted."""
        return tuple(q.name for q in self.predicted if not q.shape and not q.classes)

    @property
    def images(self) -> dict[str, tuple[int, ...]]:
        """The images that are predicted, each with its shape, laid out as in the data set."""
        return {q.name: q.shape for q in self.predicted if q.is_image}

    @property
    def classes(self) -> dict[str, tuple[int, ...]]:
        """The fields of classes, with their values; the columns of "<name>.probabilities" are in their order."""
        return {q.name: q.classes for q in self.predicted if q.classes}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Everything predicted."""
        return tuple(q.name for q in self.predicted)

    @property
    def units(self) -> dict[str, str]:
        """The units of everything predicted; "" where the data set says nothing."""
        return {q.name: q.units for q in self.predicted}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of each input in the data set that the model was trained on."""
        quantities = self.best.quantities
        known = [(name, q) for q in quantities.columns for name in q.column_names]
        known += [(q.name, q) for q in quantities.input_images]
        return {name: (q.low, q.high) for name, q in known if q.low is not None and q.high is not None}

    def __repr__(self) -> str:
        given = [f"{q.name} {q.shape}" if q.shape else q.name for q in self.best.quantities.inputs]
        what = [*self.scalars, *self.classes, *(f"{name} {shape}" for name, shape in self.images.items())]
        return f"Surrogate({self.best.name}: {', '.join(given)} -> {', '.join(what)})"

    def predict(
        self, inputs: Any, *, fields: Sequence[str] | None = None, batch_size: int = BATCH_SIZE
    ) -> dict[str, Array]:
        """Predictions for n samples: scalars (n,) float64, images (n, *shape) float32, classes (n,) int64 and their
        "<name>.probabilities" (n, K) float32.

        `inputs` is an array (n, d) with the columns `self.inputs`, or a mapping or a DataFrame with a column of each
        name; single numbers stand for all samples. Columns z0, z1, … may be given as z (n, k), and images (n, *shape)
        by their names. `fields` choose among what is predicted. Inputs outside of the range that the model was trained
        on are warned about (ExtrapolationWarning).

        Raises UsageError for columns that are missing, values that are not finite or too large, unknown fields, and a
        `batch_size` below 1.
        """
        given = self.arrays(inputs)
        for row, number in self.too_far(given):
            value = given[0][row, number]
            raise UsageError(f"inputs: row {row}, '{self.inputs[number]}': {value:g} {TOO_FAR}")
        if outside := self.outside(given):
            warnings.warn(describe_outside(outside, self.ranges), ExtrapolationWarning, stacklevel=2)
        return self.predict_arrays(given, self.chosen(fields), batch_size)

    @torch.inference_mode()
    def predict_arrays(
        self, given: Sequence[Array], wanted: Sequence[Quantity], batch_size: int
    ) -> dict[str, Array]:
        """Predictions as `predict` makes them, for what `arrays` gave."""
        if not isinstance(batch_size, int | Integral) or batch_size < 1:
            raise UsageError(f"batch_size has to be a whole number from 1 on, not {batch_size!r}")
        num = len(given[0])
        out = {q.name: np.empty((num, *q.shape), dtype_of(q)) for q in wanted}
        for lo in range(0, num, batch_size):
            batch = (np.require(x[lo : lo + batch_size], requirements=["C", "W"]) for x in given)
            made = self.model(*(torch.from_numpy(x).to(self.device) for x in batch))
            for name, values in out.items():
                values[lo : lo + batch_size] = made[name].cpu().numpy()
        return out

    def chosen(self, fields: Sequence[str] | None) -> tuple[Quantity, ...]:
        """The predicted quantities of these names, all for None. Raises UsageError for an unknown one."""
        if fields is None:
            return self.predicted
        known = {q.name: q for q in self.predicted}
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise UsageError(f"the model predicts no '{unknown[0]}'; it predicts: {', '.join(known)}")
        return tuple(known[name] for name in fields)

    def arrays(self, inputs: Any) -> list[Array]:
        """Inputs as the model takes them: a finite matrix (n, d) float64 if it has columns, and images (n, *shape)
        float32. Raises UsageError for what cannot be that."""
        named = isinstance(inputs, Mapping) or (hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"))
        if self.input_images and not named:
            names = ", ".join((*self.inputs, *self.input_images))
            raise UsageError(f"inputs: the model sees images; give a mapping with {names}")
        require_columns(tuple(self.input_images), list(inputs.keys()) if named else [], "inputs")
        given = []
        if self.inputs:
            matrix = matrix_of(inputs, self.inputs) if named else as_real(inputs, np.float64)
            given.append(checked_matrix(matrix, self.inputs))
        for name, shape in self.input_images.items():
            given.append(checked_images(as_real(inputs[name], np.float32, f"inputs: '{name}'"), name, shape))
        several = {len(values) for values in given} - {1}
        if len(several) > 1:
            found = zip(self.model.input_names, given, strict=True)
            listed = ", ".join(f"{name} {len(values):,}" for name, values in found)
            raise UsageError(f"inputs: expected as many samples of each; found {listed}")
        num = next(iter(several), 1)
        return [values if len(values) == num else np.repeat(values, num, axis=0) for values in given]

    @torch.inference_mode()
    def too_far(self, given: Sequence[Array]) -> list[tuple[int, int]]:
        """(row, column) of the values of the matrix that are not finite when they are normalised, in float32."""
        if not self.inputs:
            return []
        x = torch.from_numpy(np.require(given[0], requirements=["C", "W"])).to(self.device)
        found = self._normalised(x).float().isfinite().logical_not().nonzero()
        return [(row, number) for row, number in found.tolist()]

    def outside(self, given: Sequence[Array]) -> dict[str, int]:
        """Columns and images with values outside of the data set's range, and in how many samples."""
        columns = dict(zip(self.inputs, given[0].T, strict=True)) if self.inputs else {}
        images = given[1:] if self.inputs else given
        found, ranges = {}, self.ranges
        for name, values in {**columns, **dict(zip(self.input_images, images, strict=True))}.items():
            if name in ranges:
                low, high = ranges[name]
                slack = _ULPS * (high - low)
                wrong = (values < low - slack) | (values > high + slack)
                num = int(wrong.any(axis=tuple(range(1, wrong.ndim))).sum())
                if num:
                    found[name] = num
        return found


class UncertainSurrogate(Surrogate):
    """Predicts means of the models of several trainers, and behind each field "<name>_std", the standard deviation of
    what is predicted.

    That is the standard deviation of the M trainers' predictions (M - 1 in the denominator) times the factor
    of the field in `scales`, which was fitted to the validation split. An interval of 90 % reaches
    `reach(0.9)` standard deviations to each side.
    """

    def __init__(self, best: BestModel, device: torch.device, members: Members, scales: Scales) -> None:
        super().__init__(best, device)
        names = {q.name for q in self.predicted}
        if taken := sorted(name for name in names if name + SUFFIX in names):
            raise UsageError(
                f"the model predicts '{taken[0]}{SUFFIX}' itself, which would be the name of the standard deviation of "
                f"'{taken[0]}'; call the field differently"
            )
        self.members, self.scales = members, scales
        self.model = EnsembleModel(members, scales.by_field).to(device).eval()
        self.predicted = with_std(self.predicted)

    def chosen(self, fields: Sequence[str] | None) -> tuple[Quantity, ...]:
        """The quantities that one model would give, each with its standard deviation."""
        known = {q.name: q for q in self.predicted}
        pairs = ((q, known.get(q.name + SUFFIX, q)) for q in super().chosen(fields))
        return tuple({q.name: q for pair in pairs for q in pair}.values())

    def reach(self, level: float) -> float:
        """How many standard deviations the central interval of a level, such as 0.9, reaches to each side of the
        mean: the quantile of Student's distribution with M - 1 degrees of freedom."""
        return reach(level, len(self.members.models))


def dtype_of(quantity: Quantity) -> np.dtype[Any]:
    return np.dtype("<i8" if quantity.classes else "<f4" if quantity.shape else "<f8")


def describe_outside(outside: Mapping[str, int], ranges: Mapping[str, tuple[float, float]]) -> str:
    """Which columns leave the range of the data set, and how often."""
    listed = ", ".join(
        f"{name} in {num:,} (range {ranges[name][0]:.6g} to {ranges[name][1]:.6g})"
        for name, num in outside.items()
    )
    return f"samples outside of the range that the model was trained on: {listed}"
