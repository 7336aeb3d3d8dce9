"""What a trainer trains: a module that knows its losses, its metrics, and which of its parts may be exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.nn import Parameter

if TYPE_CHECKING:
    from merlin.train.loading.normalise import Normaliser

# normalised float32: "inputs" (n, d), "scalars" (n, m), images (n, C, H, W); classes (n,) as they are stored
Batch = Mapping[str, Tensor]
Direction = Literal["min", "max"]


@dataclass(frozen=True)
class Shapes:
    """What a batch consists of, by name and in order; an image's shape is (C, H, W)."""

    inputs: tuple[str, ...]  # the columns of "inputs"; without any, a batch has no such entry
    scalars: tuple[str, ...] = ()
    images: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # to be predicted
    input_images: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    # the values that tell a class, ascending
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        groups = {"inputs": list(self.inputs), "scalars": list(self.scalars), "images": dict(self.images)}
        more = {"input_images": dict(self.input_images), "classes": dict(self.classes)}
        return groups | {key: values for key, values in more.items() if values}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Shapes:
        named = {
            key: {name: tuple(numbers) for name, numbers in data.get(key, {}).items()}
            for key in ("images", "input_images", "classes")
        }
        return Shapes(tuple(data["inputs"]), tuple(data["scalars"]), **named)


class Trainee(nn.Module):
    """Base of all models. A subclass sets up its layers and overrides what is below.

    `phases` are run one after another in each step, each with an optimiser of its own; a GAN has two or more.
    A class (or a function that builds one) may have a `version`: weights are refused by code of another one.
    """

    phases: tuple[str, ...] = ("model",)

    def start(self, normaliser: Normaliser) -> None:
        """Called before the first step of a new run, e.g. to take weights from elsewhere; not when a run goes on."""

    def parameters_of(self, phase: str) -> Iterable[Parameter]:
        """What the optimiser of a phase changes; all parameters by default."""
        return self.parameters()

    def forward(self, batch: Batch, phase: str = "model") -> dict[str, Tensor]:
        """Losses of a batch, each a mean over its samples; "loss" is what the phase minimises."""
        raise NotImplementedError

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """One value per sample, (n,) each, "loss" among them; called in evaluation mode, without gradients."""
        raise NotImplementedError

    def directions(self) -> dict[str, Direction]:
        """The names of all metrics, and whether they are to become small or large."""
        return {"loss": "min"}

    def after_step(self, step: int) -> None:
        """Called when all phases of step `step` (from 1) are done, e.g. to refresh frozen copies."""

    def parts(self) -> dict[str, list[str]]:
        """Named parts of the state dict, as prefixes of its keys, that a tournament may exchange."""
        return {}

    def predict(self, inputs: Tensor, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Predictions for normalised inputs (n, d): "scalars" (n, m) and images (n, C, H, W), normalised, and for
        what tells classes logits (n, K). `images` are the images among the inputs, and given only if there are some.
        """
        raise NotImplementedError
