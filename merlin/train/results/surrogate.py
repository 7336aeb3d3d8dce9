"""A trained model to ask: inputs in physical units in, scalars and images in physical units out.

surrogate = merlin.load_surrogate("runs/icf_20260101-120000")
surrogate.inputs, surrogate.scalars, surrogate.images
surrogate.predict({"mode_2_1": 0.01, "trans_u": np.linspace(0, 1, 100), …})["Yn"]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from merlin.errors import CheckpointError, ConfigError, ShardError, TrainingError, UsageError, command_line
from merlin.train.checkpoint import read_state, require_format
from merlin.train.config_file import load_config
from merlin.train.loading.normalise import Normaliser
from merlin.train.models.base import Shapes, Trainee
from merlin.train.models.consent import require_consent
from merlin.train.models.version import require_code
from merlin.train.quantities import Quantities, Quantity
from merlin.train.results.given import find_columns, require_finite, taken
from merlin.train.results.physical import PhysicalModel
from merlin.train.run_directory import FACTS, MODEL_FORMAT, NORMALISE, VERSION, RunDirectory, is_run

Array = np.ndarray[Any, Any]

MODEL = "model.pt"
BATCH_SIZE = 256
_ULPS = 1e-6  # relative to the range: values at its ends may have been written as text, or as float32


class ExtrapolationWarning(UserWarning):
    """Inputs lie outside of what the model was trained on."""


@dataclass(frozen=True)
class BestModel:
    """What `best/` holds."""

    directory: Path
    trainee: Trainee  # in evaluation mode
    quantities: Quantities
    normaliser: Normaliser
    facts: Mapping[str, Any]  # model, trainer, step, metric, value, metrics, run

    @property
    def name(self) -> str:
        return str(self.facts["model"]["name"])


def best_directory(path: str | os.PathLike[str]) -> Path:
    """The directory with the best model of a run, which may be given itself.

    Raises UsageError if this is no run, TrainingError if it has no model yet.
    """
    given = Path(path)
    if (given / MODEL).is_file():
        return given
    if not is_run(given):
        raise UsageError(f"{given} is no training run: it has no {FACTS}; give what `merlin train` has made")
    best = RunDirectory(given).best
    if not (best / MODEL).is_file():
        raise TrainingError(
            f"{given} has no best model yet: none of its trainers was validated and ended; "
            f"wait for it, or go on with: {command_line('train', given)}"
        )
    return best


def load_best(path: str | os.PathLike[str], device: str = "cpu", *, trust_code: bool = False) -> BestModel:
    """The best model of a run, ready to be evaluated on a device.

    Raises as `best_directory`; CheckpointError if a file is damaged, TrainingError if the model cannot be built,
    UsageError if it is somebody's own one and `trust_code` is not set.
    """
    directory = best_directory(path)
    state = read_state(directory / MODEL)
    require_format(directory / MODEL, state, MODEL_FORMAT, VERSION)
    _require_parts(directory / MODEL, state)
    try:
        normaliser = Normaliser.load(directory / NORMALISE)
    except ShardError as error:
        raise CheckpointError(str(error)) from error
    name = state["model"]["name"]
    require_consent(name, _named_in(directory, name), trust_code=trust_code)
    require_code(name, state["model"], str(directory / MODEL))
    _require_size(directory / MODEL, state)
    trainee = _build(state)
    try:
        trainee.load_state_dict(state["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / MODEL} does not fit the model {name} of this code: {error}"
        ) from error
    trainee.to(device).eval()
    try:
        quantities = Quantities.from_json(state["quantities"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory / MODEL} is damaged: its quantities: {error}") from error
    facts = {key: value for key, value in state.items() if key not in ("state_dict", "quantities")}
    return BestModel(directory, trainee, quantities, normaliser, facts)


def _require_parts(path: Path, state: Mapping[str, Any]) -> None:
    """CheckpointError unless a file of a model has what every one has."""
    known = {"model": dict, "shapes": dict, "quantities": dict, "state_dict": dict}
    wrong = [key for key, kind in known.items() if not isinstance(state.get(key), kind)]
    if not wrong and not isinstance(state["model"].get("options"), dict):
        wrong = ["the options of its model"]
    if wrong or not isinstance(state["model"].get("name"), str):
        raise CheckpointError(
            f"{path} is damaged: it does not say {', '.join(wrong) or 'the name of its model'}"
        )


def _named_in(directory: Path, name: str) -> str:
    """Where people find the name of the model: its line in the run's configuration, else the file of the weights."""
    path = RunDirectory(directory.resolve().parent).config_path
    try:
        file = load_config(path)
    except ConfigError:
        return str(directory / MODEL)
    return file.where("model", "name") if file.config.model.name == name else str(directory / MODEL)


def _require_size(path: Path, state: Mapping[str, Any]) -> None:
    """CheckpointError if a model of ours would be larger than its weights are, before it takes any memory."""
    from merlin.train.models.registry import MODELS

    model, weights = state["model"], state["state_dict"]
    if model["name"] not in MODELS:
        return
    depth = model["options"].get("depth")
    with torch.device("meta"):
        fits = not isinstance(depth, int) or depth <= len(weights)
        made = _build(state).state_dict() if fits else {}
    num = sum(value.numel() for value in made.values())
    stored = sum(value.numel() for value in weights.values() if isinstance(value, torch.Tensor))
    if not fits or num > stored:
        what = f"{num:,} numbers" if fits else f"{depth:,} layers"
        raise CheckpointError(
            f"{path} is damaged: its options are those of a model with {what}, and it holds {stored:,} numbers"
        )


def _build(state: Mapping[str, Any]) -> Trainee:
    from merlin.train.models.registry import build

    model = state["model"]
    try:
        return build(model["name"], Shapes.from_json(state["shapes"]), model["options"])
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainingError(
            f"the model {model['name']} cannot be built: {type(error).__name__}: {error}"
        ) from error


def load_surrogate(
    path: str | os.PathLike[str], *, device: str = "auto", trust_code: bool = False
) -> Surrogate:
    """Load the best model of a run: the run's directory, or a copy of the directory `best` in it.

    `device` is auto, cpu, cuda or cuda:N. A model of your own, which the run names as "module:callable", is imported
    only with `trust_code`, for the run may be anybody's.

    Raises UsageError if `path` is no run or its model predicts nothing or is not trusted, TrainingError if it has no
    model yet, CheckpointError if a file is damaged.
    """
    from merlin.train.distributed import choose_device

    chosen = choose_device(device, 0)
    return Surrogate(load_best(path, str(chosen), trust_code=trust_code), chosen)


class Surrogate:
    """Predicts scalars and images for inputs, all in the units of the data set that it was trained on."""

    def __init__(self, best: BestModel, device: torch.device) -> None:
        self.best = best
        self.device = device
        self.model = PhysicalModel(best.trainee, best.quantities, best.normaliser).to(device).eval()
        self._predicted = self.model.predicted()

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
        return tuple(q.name for q in self._predicted if not q.shape and not q.classes)

    @property
    def images(self) -> dict[str, tuple[int, ...]]:
        """The images that are predicted, each with its shape, laid out as in the data set."""
        return {q.name: q.shape for q in self._predicted if q.is_image}

    @property
    def classes(self) -> dict[str, tuple[int, ...]]:
        """What tells classes, with their values; the columns of "<name>.probabilities" are in their order."""
        return {q.name: q.classes for q in self._predicted if q.classes}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Everything predicted."""
        return tuple(q.name for q in self._predicted)

    @cached_property
    def units(self) -> dict[str, str]:
        """Of everything predicted; "" where the data set says nothing."""
        return {q.name: q.units for q in self._predicted}

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

    def quantity(self, name: str) -> Quantity:
        """What is known about something predicted; KeyError if it is not."""
        return {q.name: q for q in self._predicted}[name]

    def predict(
        self, inputs: Any, *, fields: Sequence[str] | None = None, batch_size: int = BATCH_SIZE
    ) -> dict[str, Array]:
        """Predictions for n samples: scalars (n,) float64, images (n, *shape) float32, classes (n,) int64 and their
        "<name>.probabilities" (n, K) float32.

        `inputs` is an array (n, d) with the columns `self.inputs`, or a mapping or a DataFrame with a column of each
        name; single numbers stand for all samples. Columns z0, z1, … may be given as z (n, k), and images (n, *shape)
        by their names. `fields` choose among what is predicted. Inputs outside of the range that the model was trained
        on are warned about (ExtrapolationWarning).

        Raises UsageError for columns that are missing, values that are not finite, and unknown fields.
        """
        given = self.arrays(inputs)
        self._warn(self.outside(given))
        wanted, num = self.chosen(fields), len(given[0])
        out = {q.name: np.empty((num, *q.shape), dtype_of(q)) for q in wanted}
        for lo in range(0, num, batch_size):
            batch = [values[lo : lo + batch_size] for values in given]
            for name, values in self.predict_batch(batch, wanted).items():
                out[name][lo : lo + batch_size] = values
        return out

    def chosen(self, fields: Sequence[str] | None) -> tuple[Quantity, ...]:
        """What of these names is predicted; everything for None. Raises UsageError for an unknown one."""
        if fields is None:
            return self._predicted
        known = {q.name: q for q in self._predicted}
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise UsageError(f"the model predicts no '{unknown[0]}'; it predicts: {', '.join(known)}")
        return tuple(known[name] for name in fields)

    @torch.inference_mode()
    def predict_batch(self, given: Sequence[Array], wanted: Sequence[Quantity]) -> dict[str, Array]:
        """As `predict`, for what `arrays` gave, as far as it fits into memory at once."""
        made = self.model(
            *(torch.from_numpy(np.require(x, requirements=["C", "W"])).to(self.device) for x in given)
        )
        return {q.name: made[q.name].cpu().numpy() for q in wanted}

    def arrays(self, inputs: Any) -> list[Array]:
        """Inputs as the model takes them: a finite matrix (n, d) float64 if it has columns, and images (n, *shape)
        float32. Raises UsageError for what cannot be that."""
        if not self.input_images:
            return [self._matrix(inputs)]
        if not _has_columns(inputs):
            names = ", ".join((*self.inputs, *self.input_images))
            raise UsageError(f"inputs: the model sees images; give a mapping with {names}")
        require_columns(tuple(self.input_images), list(inputs.keys()), "inputs")
        images = [self._image(name, shape, inputs[name]) for name, shape in self.input_images.items()]
        given = [*([self._matrix(inputs)] if self.inputs else []), *images]
        lengths = dict(zip(self.model.input_names, map(len, given), strict=True))
        several = {length for length in lengths.values() if length != 1}
        if len(several) > 1:
            listed = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise UsageError(f"inputs: expected as many samples of each; found {listed}")
        num = next(iter(several), 1)
        return [values if len(values) == num else np.repeat(values, num, axis=0) for values in given]

    def _image(self, name: str, shape: tuple[int, ...], given: Any) -> Array:
        """(n, *shape); a single image is one sample."""
        values = np.asarray(given, np.float32)
        if values.shape == shape:
            values = values[np.newaxis]
        if values.shape[1:] != shape:
            raise UsageError(
                f"inputs: '{name}' of shape {values.shape}: expected (samples, {', '.join(map(str, shape))})"
            )
        require_finite(values, "inputs", name)
        return values

    def _matrix(self, inputs: Any) -> Array:
        """(n, d)"""
        x = self._from_columns(inputs) if _has_columns(inputs) else np.asarray(inputs, np.float64)
        if x.ndim != 2 or x.shape[1] != len(self.inputs):
            raise UsageError(
                f"inputs of shape {x.shape}: expected (samples, {len(self.inputs)}), the columns "
                f"{', '.join(self.inputs)}"
            )
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            row, column = bad[0].tolist()
            raise UsageError(
                f"inputs: row {row}, '{self.inputs[column]}' is {x[row, column]}, which is no finite number"
                + (f"; so are {len(bad) - 1:,} more values" if len(bad) > 1 else "")
            )
        return x

    def _from_columns(self, inputs: Any) -> Array:
        keys = list(inputs.keys())
        is_complete = set(self.inputs) <= set(keys)
        shapes = {key: () if is_complete else np.shape(inputs[key])[1:] for key in keys}
        places = find_columns(self.inputs, shapes, "inputs")
        require_columns(self.inputs, [*keys, *places], "inputs")
        columns = [np.asarray(taken(inputs, place), np.float64) for place in places.values()]
        lengths = {name: c.shape for name, c in zip(self.inputs, columns, strict=True) if c.ndim}
        if len(set(lengths.values())) > 1 or any(len(shape) > 1 for shape in lengths.values()):
            listed = ", ".join(f"{name} {shape}" for name, shape in lengths.items())
            raise UsageError(f"inputs: columns are numbers, or arrays of one length; found {listed}")
        num = next(iter(lengths.values()), (1,))
        return np.stack([np.broadcast_to(column, num) for column in columns], axis=1)

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

    def _warn(self, outside: Mapping[str, int]) -> None:
        if outside:
            warnings.warn(describe_outside(outside, self.ranges), ExtrapolationWarning, stacklevel=3)


def dtype_of(quantity: Quantity) -> np.dtype[Any]:
    """Of what is predicted."""
    return np.dtype("<i8" if quantity.classes else "<f4" if quantity.shape else "<f8")


def describe_outside(outside: Mapping[str, int], ranges: Mapping[str, tuple[float, float]]) -> str:
    """Which columns leave the range of the data set, and how often."""
    listed = ", ".join(
        f"{name} in {num:,} (range {ranges[name][0]:.6g} to {ranges[name][1]:.6g})"
        for name, num in outside.items()
    )
    return f"samples outside of the range that the model was trained on: {listed}"


def require_columns(wanted: Sequence[str], found: Sequence[Any], what: str) -> None:
    """UsageError that names every column that is not there."""
    missing = [name for name in wanted if name not in found]
    if missing:
        there = ", ".join(map(str, found[:20])) + (", …" if len(found) > 20 else "") or "none"
        plural = "columns" if len(missing) > 1 else "column"
        raise UsageError(f"{what}: missing {plural} {', '.join(missing)}; there are: {there}")


def _has_columns(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) or (hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"))
