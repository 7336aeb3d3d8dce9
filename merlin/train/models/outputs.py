"""What a sample consists of besides its inputs, by name or as one vector, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from merlin.errors import TrainingError
from merlin.train.models.base import Shapes

SCALARS = "scalars"


class Outputs:
    """Scalars (n, m) and images (n, C, H, W); as a vector the scalars come first."""

    def __init__(self, shapes: Shapes) -> None:
        self.num_scalars = len(shapes.scalars)
        self.images = {name: tuple(shape) for name, shape in shapes.images.items()}
        sizes = [self.num_scalars] if self.num_scalars else []
        self.names = (*([SCALARS] if sizes else []), *self.images)
        self.sizes = (*sizes, *(prod(shape) for shape in self.images.values()))

    @property
    def size(self) -> int:
        """Numbers of a sample."""
        return sum(self.sizes)

    @property
    def groups(self) -> tuple[str, ...]:
        """Which of "scalars" and "images" there are."""
        return (*([SCALARS] if self.num_scalars else []), *(["images"] if self.images else []))

    def to_vector(self, values: Mapping[str, Tensor]) -> Tensor:
        """(n, size)"""
        return torch.cat([values[name].flatten(1) for name in self.names], 1)

    def from_vector(self, vector: Tensor) -> dict[str, Tensor]:
        if self.names == (SCALARS,):
            return {SCALARS: vector}
        parts = dict(zip(self.names, vector.split(self.sizes, 1), strict=True))
        for name, shape in self.images.items():
            parts[name] = parts[name].unflatten(1, shape)
        return parts

    def join_images(self, values: Mapping[str, Tensor]) -> Tensor:
        """The channels of all images, (n, C, H, W), of which H and W are the same."""
        return torch.cat([values[name] for name in self.images], 1)

    def split_images(self, images: Tensor) -> dict[str, Tensor]:
        sizes = [shape[0] for shape in self.images.values()]
        return dict(zip(self.images, images.split(sizes, 1), strict=True))

    def squared_errors(self, made: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The error of each sample and group, (n,): a mean over its numbers; every image field has the same weight."""
        found = {}
        if self.num_scalars:
            found[SCALARS] = (made[SCALARS] - true[SCALARS]).square().mean(1)
        if self.images:
            each = [(made[name] - true[name]).square().flatten(1).mean(1) for name in self.images]
            found["images"] = each[0] if len(each) == 1 else torch.stack(each).mean(0)
        return found

    def mean_squared_errors(
        self, made: Mapping[str, Tensor], true: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """For each group, the mean of `squared_errors` over the samples, in one operation where there is one field."""
        found = {}
        if self.num_scalars:
            found[SCALARS] = F.mse_loss(made[SCALARS], true[SCALARS])
        if self.images:
            each = [F.mse_loss(made[name], true[name]) for name in self.images]
            found["images"] = each[0] if len(each) == 1 else torch.stack(each).mean()
        return found


def require_predictions(model: str, made: object, num: int, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise TrainingError unless a model predicts some of what is `expected` of a sample, for so many samples."""
    if not isinstance(made, Mapping):
        raise TrainingError(
            f"the model {model} predicts a {type(made).__name__}; expected a dict with {', '.join(expected)}"
        )
    found = {name: made[name] for name in expected if name in made}
    if not found:
        keys = f"only {', '.join(map(repr, made))}" if made else "nothing"
        raise TrainingError(f"the model {model} predicts {keys}; expected {', '.join(map(repr, expected))}")
    for name, values in found.items():
        shape = (num, *expected[name])
        if not isinstance(values, Tensor) or values.shape != shape:
            is_tensor = isinstance(values, Tensor)
            what = f"of shape {tuple(values.shape)}" if is_tensor else f"as {type(values).__name__}"
            raise TrainingError(
                f"the model {model} predicts '{name}' {what} for {num} samples; expected a tensor of shape {shape}"
            )


def weighted(errors: Mapping[str, Tensor], image_weight: float) -> Tensor:
    """One error from those of scalars and images; that of images counts `image_weight` times."""
    total: Tensor | None = None
    for group, error in errors.items():
        term = error * image_weight if group == "images" else error
        total = term if total is None else total + term
    assert total is not None
    return total
