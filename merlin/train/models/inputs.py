"""What a sample's inputs are to a model, columns and images, as one vector; and models that do not take all of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from merlin.base.document.field_types import Block, Positive, optional
from merlin.errors import UsageError
from merlin.train.config import Above0
from merlin.train.models.base import Batch, Shapes, Trainee
from merlin.train.models.layers import Pictures, conv_encoder

INPUTS = "inputs"


class BodyOptions(Block):
    """The options of models that are an MLP on their inputs."""

    width: Positive = optional("Units of each hidden layer.", 256)
    depth: Positive = optional("Hidden layers.", 3)
    capacity: Above0 = optional("Factor of the width, and of channels.", 1.0)
    encoder: Literal["cnn", "mlp"] = optional(
        "How images among the inputs are seen: by convolutions, or number by number.", "cnn"
    )


class InputEncoder(nn.Module):
    """Columns (n, d) and images (n, C, H, W) -> (n, size): the columns as they are, then the images."""

    def __init__(self, shapes: Shapes, options: BodyOptions) -> None:
        super().__init__()
        self.num_columns = len(shapes.inputs)
        self.images = tuple(shapes.input_images)
        self.convolutions: nn.Sequential | None = None
        num_codes = sum(prod(shape) for shape in shapes.input_images.values())
        if self.images and options.encoder == "cnn":
            pictures = Pictures.seen(list(shapes.input_images.values()))
            self.convolutions, num_codes = conv_encoder(pictures, options.capacity, "silu")
        self.size = self.num_columns + num_codes

    def forward(self, inputs: Tensor | None, images: Mapping[str, Tensor] | None) -> Tensor:
        parts = [inputs] if inputs is not None and self.num_columns else []
        if self.images:
            assert images is not None
            seen = [images[name].float() for name in self.images]  # whole numbers that are not normalised
            if self.convolutions is None:
                parts += [values.flatten(1) for values in seen]
            else:
                parts.append(self.convolutions(torch.cat(seen, 1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def predict_batch(trainee: Trainee, batch: Batch, images: Iterable[str]) -> dict[str, Tensor]:
    """What a model predicts from a normalised batch; `images` are the names of those among its inputs."""
    seen = {name: batch[name] for name in images}
    inputs = batch.get(INPUTS)
    if inputs is None:
        some = next(iter(seen.values()))
        inputs = some.new_zeros((some.shape[0], 0))
    return trainee.predict(inputs, seen) if seen else trainee.predict(inputs)


def inputs_of(batch: Batch) -> tuple[Tensor | None, Batch]:
    """What `predict` takes, of a batch."""
    return batch.get(INPUTS), batch


def refuse_input_images(shapes: Shapes, model: str) -> None:
    """Raise UsageError if there are images among the inputs."""
    if shapes.input_images:
        raise UsageError(
            f"the model {model} takes numbers for inputs, and no images ({', '.join(shapes.input_images)}); "
            "regressor and classifier do"
        )


def refuse_classes(shapes: Shapes, model: str) -> None:
    """Raise UsageError if classes are to be predicted."""
    if shapes.classes:
        raise UsageError(
            f"the model {model} predicts no classes ({', '.join(shapes.classes)}); use model: {{name: classifier}}, or "
            "name them in fields.scalars as numbers"
        )
