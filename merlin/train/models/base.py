"""What a trainer trains: a module that knows its losses, its metrics, and which of its parts may be exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from torch import Tensor, nn
from torch.nn import Parameter

from merlin.base.field import Field

if TYPE_CHECKING:
    from merlin.train.loading.normalise import Normaliser

# normalised float32: "inputs" (n, d), "scalars" (n, m), images (n, C, H, W); classes (n,) as they are stored
Batch = Mapping[str, Tensor]
Direction = Literal["min", "max"]
ImageShapes = Mapping[str, tuple[int, int, int]]


class Shapes(Struct, frozen=True, dict=True):
    """What a batch consists of: the name, kind, shape and layout of every field, as the loader delivers it.

    Numbers among the inputs stand side by side under the key "inputs", those that are predicted under "scalars", each
    in the order of the fields. Every other field has a key of its own, its name.
    """

    given: tuple[Field, ...]
    predicted: tuple[Field, ...]
    classes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the values of a class, ascending

    def __post_init__(self) -> None:
        entries: tuple[object, ...] = (*self.given, *self.predicted)
        for entry in entries:
            if not isinstance(entry, Field):
                message = "Shapes takes two tuples of Field, the given and the predicted ones"
                raise TypeError(f"{message}, not {entry!r}; Shapes.of takes names and shapes")

    @staticmethod
    def of(
        inputs: Iterable[str],
        scalars: Iterable[str] = (),
        images: ImageShapes | None = None,
        input_images: ImageShapes | None = None,
        classes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Shapes:
        """The shapes of numbers, of images (C, H, W), and of classes with their values."""
        return Shapes(
            (*map(number, inputs), *_images(input_images or {})),
            (*map(number, scalars), *_images(images or {}), *map(number, classes or {})),
            dict(classes or {}),
        )

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The columns of "inputs"; without any, a batch has no such key."""
        return tuple(f.name for f in self.given if f.sample_kind.is_number)

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """The columns of "scalars"."""
        return tuple(f.name for f in self.predicted if f.sample_kind.is_number and f.name not in self.classes)

    @cached_property
    def images(self) -> dict[str, tuple[int, int, int]]:
        """The images that are predicted, (C, H, W)."""
        return {f.name: image_shape(f) for f in self.predicted if f.sample_kind.is_picture}

    @cached_property
    def input_images(self) -> dict[str, tuple[int, int, int]]:
        """The images among the inputs, (C, H, W)."""
        return {f.name: image_shape(f) for f in self.given if f.sample_kind.is_picture}

    @cached_property
    def _without_channels(self) -> tuple[str, ...]:
        fields = (*self.given, *self.predicted)
        return tuple(f.name for f in fields if f.spatial_axes and f.channel_axis is None)

    def with_channels(self, batch: Batch) -> dict[str, Tensor]:
        """A loader's batch as models see it: images (n, H, W) get an axis of one channel, (n, 1, H, W)."""
        return {**batch, **{key: batch[key].unsqueeze(1) for key in self._without_channels if key in batch}}

    def to_json(self) -> dict[str, Any]:
        # not `to_plain`: `model.pt` has names and sizes by group, as it had before there were fields
        groups = {"inputs": list(self.inputs), "scalars": list(self.scalars), "images": self.images}
        more = {"input_images": self.input_images, "classes": dict(self.classes)}
        return groups | {key: values for key, values in more.items() if values}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Shapes:
        """The shapes that `to_json` gave, or that a run's facts hold. Raises LookupError or TypeError for others."""
        images, input_images, classes = (
            {name: tuple(numbers) for name, numbers in data.get(key, {}).items()}
            for key in ("images", "input_images", "classes")
        )
        return Shapes.of(data["inputs"], data["scalars"], images, input_images, classes)


def number(name: str) -> Field:
    """A field that is one number of a sample."""
    return Field(name=name, dtype="float32")


def image_shape(image: Field) -> tuple[int, int, int]:
    """(C, H, W) of an image, whatever its layout, which may put the width before the height."""
    height, width = (image.shape[axis] for axis in image.spatial_axes)
    axis = image.channel_axis
    return (1 if axis is None else image.shape[axis]), height, width


def _images(shapes: ImageShapes) -> Iterable[Field]:
    for name, shape in shapes.items():
        yield Field(name=name, kind="image", dtype="float32", shape=tuple(shape), layout="chw")


class Trainee(nn.Module):
    """Base of all models. A subclass sets up its layers and overrides what is below.

    `phases` are run one after another in each step, each with an optimiser of its own; a GAN has two or more.
    A class (or a function that builds one) may have a `version`: weights are refused by code of another one.
    """

    phases: tuple[str, ...] = ("model",)
    num_fitted: int = 0  # number of training samples that `fit` gets; if it is 0, `fit` is not called

    def start(self, normaliser: Normaliser) -> None:
        """Called before the first step of a new run, e.g. to take weights from elsewhere; not when a run goes on."""

    def fit(self, samples: Batch) -> None:
        """Called after `start` with some training samples, the same for all trainers, e.g. to choose a basis."""

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
        classes logits (n, K). `images` are the images among the inputs, and given only if there are some.
        """
        raise NotImplementedError
