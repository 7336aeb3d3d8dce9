"""The ensemble of a run: the best model of each of its trainers, as far as these differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field
from torch import Tensor

from merlin.base.records import as_kind
from merlin.errors import CheckpointError, TrainingError, UsageError
from merlin.train.checkpoint import best_checkpoint, read_best
from merlin.train.config_file import load_config
from merlin.train.models.registry import require_code
from merlin.train.random_state import seeded
from merlin.train.results.best import BestModel, ModelCall, ModelFile, build_trained
from merlin.train.results.physical import PhysicalModel, some_inputs
from merlin.train.run_directory import RunDirectory
from merlin.train.run_paths import is_run

HOW = "for an ensemble, train with tournament: {trainers: 4, strategy: none}"
_PROBED = 8  # samples on which models are compared with each other


class NoEnsembleError(UsageError):
    """A run has no two models that differ; the message says why, and how to get them."""


class Member(Struct, frozen=True):
    """The best model of one trainer."""

    trainer: int
    step: int
    value: float | None  # of the metric that decides, on the validation split
    model: PhysicalModel  # in evaluation mode


class Members(Struct, frozen=True):
    """Two or more models that differ, by trainer; `notes` say which trainers are not among them, and why."""

    models: tuple[Member, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> list[dict[str, Any]]:
        # not `to_plain`: a model is a module of torch, which JSON does not know
        return [{"trainer": each.trainer, "step": each.step, "value": each.value} for each in self.models]


class _Trained(Struct, frozen=True):
    model: dict[str, Any]
    average: dict[str, Any] | None = None
    capacity: float | None = None


class _Progress(Struct, frozen=True):
    best: float | None = None


class _Checkpoint(Struct, frozen=True):
    """The entries of a checkpoint that a model is built from."""

    step: int
    trainer: _Trained
    progress: _Progress
    code: dict[str, Any] = field(default_factory=dict)


def load_members(best: BestModel, path: Path, device: torch.device) -> Members:
    """The ensemble of the run at `path`, whose published model is `best`.

    The published model is that of one of the trainers. So the consent to load it holds for the others, too.

    Raises NoEnsembleError if there is none, UsageError if `path` is a copy of the published model alone.
    """
    if not is_run(path):
        raise UsageError(
            f"{path} is one model alone, and its uncertainty is the spread of the models of all trainers: "
            "give the run directory that it was made in"
        )
    run = RunDirectory(path)
    if best.quantities.classes:
        raise NoEnsembleError(
            "uncertainty is told of scalars and images; this model predicts classes, and tells the probability of each"
        )
    if hasattr(best.trainee, "reconstruct"):
        raise NoEnsembleError(
            "uncertainty is told of what is predicted from inputs; this model reconstructs what it sees"
        )
    if len(run.trainers()) < 2:
        raise NoEnsembleError(f"{path} has no ensemble, since it has only one trainer; {HOW}")
    if load_config(run.config_path).config.averages:
        raise NoEnsembleError(
            f"{path} has no ensemble, since averaging makes the models of its trainers one; {HOW}"
        )
    known, notes = _read_all(best, run, device)
    models, same = _distinct(known)
    if len(models) < 2:
        why = f"; {'; '.join(notes)}" if notes else ""
        what = "the models of its trainers are all the same" if same else "it has no two models yet"
        raise NoEnsembleError(f"{path} has no ensemble, since {what}{why}; {HOW}")
    return Members(tuple(models), tuple(notes + same))


def _read_all(best: BestModel, run: RunDirectory, device: torch.device) -> tuple[list[Member], list[str]]:
    """The members that can be read, and a note about each of the others."""
    found, notes = [], []
    for trainer in run.trainers():
        try:
            member = _read(best, run.trainer(trainer).checkpoints, trainer, device)
        except TrainingError as error:
            notes.append(f"the model of trainer {trainer} was left out: {error}")
            continue
        if member is None:
            notes.append(f"trainer {trainer} has no best model yet")
        else:
            found.append(member)
    return found, notes


def _read(best: BestModel, directory: Path, trainer: int, device: torch.device) -> Member | None:
    """The best model of a trainer; None if it has none. Raises CheckpointError if it cannot be used."""
    state = read_best(directory)
    if state is None:
        return None
    where = best_checkpoint(directory) or directory
    try:
        found = as_kind(state, _Checkpoint)
    except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    require_code(best.name, found.code, str(where))
    trained, options = found.trainer, dict(best.facts["model"]["options"])
    if trained.capacity is not None:  # that of this trainer's model, whose width may have changed
        options["capacity"] = trained.capacity
    weights = {**trained.model, **(trained.average or {})}
    file = ModelFile(ModelCall(best.name, options), best.facts["shapes"], best.quantities, weights)
    trainee = build_trained(where, file, str(device))
    model = PhysicalModel(best.name, trainee, best.quantities, best.normaliser).to(device).eval()
    return Member(trainer, found.step, found.progress.best, model)


def _distinct(members: list[Member]) -> tuple[list[Member], list[str]]:
    """The members that predict something else than those before them, and a note about each of the others."""
    kept: list[tuple[Member, dict[str, Tensor]]] = []
    notes = []
    for member in members:
        made = _probe(member.model)
        twin = next((other for other, known in kept if _equal(made, known)), None)
        if twin is None:
            kept.append((member, made))
        else:
            notes.append(f"trainer {member.trainer} has the same model as trainer {twin.trainer}")
    return [member for member, _ in kept], notes


@torch.inference_mode()
def _probe(model: PhysicalModel) -> dict[str, Tensor]:
    """What a model predicts for some samples in the ranges of its inputs, the same for each model."""
    device = model.inputs.centre.device
    given = (values.to(device) for values in some_inputs(model.quantities, _PROBED))
    with seeded(0, device):
        made: dict[str, Tensor] = model(*given)
    return made


def _equal(made: dict[str, Tensor], known: dict[str, Tensor]) -> bool:
    return all(torch.equal(values, known[name]) for name, values in made.items())
