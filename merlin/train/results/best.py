"""The best model of a run, read from its directory `best/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

from merlin.base.records import as_kind
from merlin.errors import CheckpointError, ConfigError, ShardError, TrainingError, UsageError, command_line
from merlin.train.config_file import load_config
from merlin.train.loading.normalise import Normaliser
from merlin.train.models.base import Shapes, Trainee
from merlin.train.models.registry import MODEL_ERRORS, MODELS, build, require_code, require_consent
from merlin.train.quantities import Quantities
from merlin.train.run_directory import RunDirectory
from merlin.train.run_paths import FACTS, MODEL_FORMAT, NORMALISE, is_run
from merlin.train.state_file import read_state, require_format

MODEL = "model.pt"


class BestModel(Struct, frozen=True):
    """The content of `best/`."""

    directory: Path
    trainee: Trainee  # in evaluation mode
    quantities: Quantities
    normaliser: Normaliser
    facts: Mapping[str, Any]  # model, trainer, step, metric, value, metrics, run

    @property
    def name(self) -> str:
        return str(self.facts["model"]["name"])


class ModelCall(Struct, frozen=True):
    """A model's name, and the options that it is built with."""

    name: str
    options: dict[str, Any]


class ModelFile(Struct, frozen=True):
    """The entries that every file of a model has."""

    model: ModelCall
    shapes: dict[str, Any]
    quantities: Quantities
    state_dict: dict[str, Any]


def best_directory(path: str | os.PathLike[str]) -> Path:
    """The directory with the best model of a run; `path` may be this directory, too.

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

    Raises as `best_directory`; CheckpointError if a file is damaged, TrainingError if the model cannot be
    built, UsageError if it is a user's own model and `trust_code` is not set.
    """
    directory = best_directory(path)
    where = directory / MODEL
    state = read_state(where)
    require_format(where, state, MODEL_FORMAT)
    try:
        file = as_kind(state, ModelFile)
        normaliser = Normaliser.load(directory / NORMALISE)
    except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    except ShardError as error:
        raise CheckpointError(str(error)) from error
    if not file.quantities.outputs:
        raise CheckpointError(f"{where} is damaged: it does not say what its model predicts")
    name = file.model.name
    require_consent(name, _named_in(directory, name), trust_code=trust_code)
    require_code(name, state["model"], str(where))
    trainee = build_trained(where, file, device)
    facts = {key: value for key, value in state.items() if key not in ("state_dict", "quantities")}
    return BestModel(directory, trainee, file.quantities, normaliser, facts)


def build_trained(where: Path, file: ModelFile, device: str) -> Trainee:
    """The model of a file, with its weights, in evaluation mode.

    Raises CheckpointError if the weights are not those of the model, TrainingError if that cannot be built.
    """
    _require_size(where, file)
    trainee = _build(file)
    try:
        trainee.load_state_dict(file.state_dict)
    except (RuntimeError, TypeError, AttributeError) as error:
        name = file.model.name
        raise CheckpointError(f"{where} does not fit the model {name} of this code: {error}") from error
    return trainee.to(device).eval()


def _named_in(directory: Path, name: str) -> str:
    """Where people find the name of the model: its line in the run's configuration, else the file of the weights."""
    path = RunDirectory(directory.resolve().parent).config_path
    try:
        file = load_config(path)
    except ConfigError:
        return str(directory / MODEL)
    return file.where("model", "name") if file.config.model.name == name else str(directory / MODEL)


def _require_size(path: Path, file: ModelFile) -> None:
    """Raise CheckpointError, before it takes memory, if Merlin's model would be larger than its weights."""
    if file.model.name not in MODELS:
        return
    tensors = (value for value in file.state_dict.values() if isinstance(value, torch.Tensor))
    depth, stored = file.model.options.get("depth"), sum(value.numel() for value in tensors)
    if isinstance(depth, int) and depth > len(file.state_dict):
        what = f"{depth:,} layers"
    else:
        with torch.device("meta"):
            num = sum(value.numel() for value in _build(file).state_dict().values())
        if num <= stored:
            return
        what = f"{num:,} numbers"
    raise CheckpointError(
        f"{path} is damaged: its options are those of a model with {what}, and it holds {stored:,} numbers"
    )


def _build(file: ModelFile) -> Trainee:
    name = file.model.name
    try:
        return build(name, Shapes.from_json(file.shapes), file.model.options)
    except MODEL_ERRORS as error:
        raise TrainingError(f"the model {name} cannot be built: {type(error).__name__}: {error}") from error
