"""From columns and images to classes, by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from merlin.errors import UsageError
from merlin.train.models.base import Batch, Direction, Shapes, Trainee
from merlin.train.models.inputs import BodyOptions, InputEncoder, inputs_of
from merlin.train.models.layers import dense, scaled, stack


class Classifier(Trainee):
    """x_ND and images_NCHW -> logits_NK of each field of classes."""

    version = 1  # raise it with every change after which the same weights predict something else

    class Options(BodyOptions):
        pass

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        _check(shapes)
        self.sizes = {name: len(values) for name, values in shapes.classes.items()}
        self._values = {name: f"values_{i}" for i, name in enumerate(shapes.classes)}  # names of buffers
        for name, values in shapes.classes.items():
            known = torch.tensor(values, dtype=torch.float32)
            self.register_buffer(self._values[name], known, persistent=False)
        self.encoder = InputEncoder(shapes, options)
        hidden = scaled(dense(*[options.width] * options.depth, activation="silu"), options.capacity)
        self.layers = stack(self.encoder.size, hidden, sum(self.sizes.values()))

    def predict(self, inputs: Tensor | None, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Logits (n, K)."""
        logits = self.layers(self.encoder(inputs, images))
        return dict(zip(self.sizes, logits.split(tuple(self.sizes.values()), 1), strict=True))

    def forward(self, batch: Batch, phase: str = "model") -> dict[str, Tensor]:
        made = self.predict(*inputs_of(batch))
        errors = [F.cross_entropy(made[name], self._index(name, batch)) for name in self.sizes]
        return {"loss": torch.stack(errors).mean()}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        made = self.predict(*inputs_of(batch))
        errors, hits = [], []
        for name in self.sizes:
            index = self._index(name, batch)
            errors.append(F.cross_entropy(made[name].float(), index, reduction="none"))
            hits.append((made[name].argmax(1) == index).float())
        return {"loss": torch.stack(errors).mean(0), "accuracy": torch.stack(hits).mean(0)}

    def directions(self) -> dict[str, Direction]:
        return {"loss": "min", "accuracy": "max"}

    def _index(self, name: str, batch: Batch) -> Tensor:
        """The class of each sample, as its index, (n,) int64."""
        values = self.get_buffer(self._values[name])
        return torch.searchsorted(values, batch[name].to(values.dtype))


def _check(shapes: Shapes) -> None:
    """Raise UsageError unless classes are all that is to be predicted."""
    if not shapes.classes:
        raise UsageError(
            "the model classifier needs fields.classes: the fields whose whole numbers tell a sample's class, "
            "e.g. fields: {inputs: [image], classes: [label]}"
        )
    others = [*shapes.scalars, *shapes.images]
    if others:
        raise UsageError(
            f"the model classifier predicts classes alone; leave {', '.join(others)} out of fields.scalars and "
            "fields.images"
        )
