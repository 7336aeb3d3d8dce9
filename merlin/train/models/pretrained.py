"""The autoencoder of another training run, for a surrogate to be trained on top of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from merlin.base.text import some_of
from merlin.errors import CheckpointError, ShardError, UsageError, command_line
from merlin.train.loading.normalise import Normaliser
from merlin.train.models.base import Shapes
from merlin.train.models.icf_autoencoder import CoderOptions, IcfAutoencoder
from merlin.train.models.registry import require_code
from merlin.train.run_paths import MODEL_FORMAT
from merlin.train.state_file import read_state, require_format

if TYPE_CHECKING:
    from merlin.train.loading.scaling import Scaling

NAME = "icf_autoencoder"
_CODER = "coder."


class Pretrained:
    """The best model of a run of `icf_autoencoder`."""

    def __init__(self, run: Path) -> None:
        """Raises UsageError if there is none in `run`, or it is another model; CheckpointError if it is damaged."""
        self.run = run
        self.path = run / "best" / "model.pt"
        if not self.path.is_file():
            raise UsageError(_nothing_there(run))
        state = read_state(self.path)
        require_format(self.path, state, MODEL_FORMAT)
        found = state["model"]["name"]
        if found != NAME:
            raise UsageError(f"model.autoencoder: {run} is a run of the model {found}, and not of {NAME}")
        require_code(NAME, state["model"], f"model.autoencoder: {run}")
        self.shapes = Shapes.from_json(state["shapes"])
        self.options: CoderOptions = IcfAutoencoder.coder_options(state["model"]["options"])
        self.weights: dict[str, Tensor] = {
            key.removeprefix(_CODER): value
            for key, value in state["state_dict"].items()
            if key.startswith(_CODER)
        }

    @property
    def digest(self) -> str:
        """The digest of the weights of encoder and decoder."""
        found = hashlib.sha256()
        for key in sorted(self.weights):
            value = self.weights[key].contiguous()
            found.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
            found.update(value.numpy().tobytes())
        return found.hexdigest()

    def check_fits(self, shapes: Shapes, normaliser: Normaliser) -> None:
        """Raise UsageError, naming the differences, unless that data means the same to it as its own did."""
        self._check_fields("scalars", self.shapes.scalars, shapes.scalars)
        self._check_fields("images", tuple(self.shapes.images), tuple(shapes.images))
        for name, shape in shapes.images.items():
            if shape != self.shapes.images[name]:
                was, now = ("x".join(map(str, s)) for s in (self.shapes.images[name], shape))
                raise UsageError(
                    f"model.autoencoder: {self.run} was trained on images '{name}' of {was}, and here they have {now}"
                )
        try:
            own = Normaliser.load(self.path.parent / "normalise.json").scalings
        except ShardError as error:
            raise CheckpointError(f"the normalisation of {self.run} cannot be read: {error}") from error
        paths = [f"fields/{name}" for name in (*shapes.scalars, *shapes.images)]
        differing = [path for path in paths if _facts(own, path) != _facts(normaliser.scalings, path)]
        if differing:
            names = some_of(path.partition("/")[2] for path in differing)
            raise UsageError(
                f"model.autoencoder: {self.run} was trained on values that were normalised otherwise: {names}\n"
                "  Give both runs the same data set and the same normalise block; "
                "if the data set has grown, train the autoencoder again."
            )

    def _check_fields(self, group: str, own: tuple[str, ...], given: tuple[str, ...]) -> None:
        if own == given:
            return
        lacking, more = sorted(set(own) - set(given)), sorted(set(given) - set(own))
        reasons = [f"it has {', '.join(lacking)}"] if lacking else []
        reasons += [f"it has no {', '.join(more)}"] if more else []
        reasons += ["their order differs"] if not reasons else []
        listing = ", ".join(own)
        raise UsageError(
            f"model.autoencoder: {self.run} was trained on other {group}: {'; '.join(reasons)}\n"
            f"  Write fields.{group}: [{listing}], or train the autoencoder on what is selected here."
        )


def _facts(scalings: Mapping[str, Scaling], path: str) -> Any:
    """What a scaling does, whatever the layout of the stored array; None if the field is left as it is."""
    found = scalings.get(path)
    return None if found is None else (found.centre, found.scale, found.offset, found.floor)


def _nothing_there(run: Path) -> str:
    if (run / "run.json").is_file():
        return f"model.autoencoder: the run {run} has no best model yet; let it end: {command_line('train', run)}"
    return (
        f"model.autoencoder: there is no training run {run}; "
        "train one with model: {name: icf_autoencoder}, and give its run directory"
    )
