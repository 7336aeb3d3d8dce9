"""The baseline: from columns and images straight to scalars and images, by mean squared error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from merlin.base.document.field_types import optional
from merlin.train.config import Above0
from merlin.train.models.base import Batch, Direction, Shapes, Trainee
from merlin.train.models.inputs import BodyOptions, InputEncoder, inputs_of, refuse_classes
from merlin.train.models.layers import ConvDecoder, Pictures, dense, he_normal, scaled, stack
from merlin.train.models.outputs import SCALARS, Outputs, weighted


class Regressor(Trainee):
    """x_ND and images_NCHW -> scalars_NM and images_NCHW."""

    version = 1  # raise it with every change after which the same weights predict something else

    class Options(BodyOptions):
        kind: Literal["mlp", "cnn"] = optional(
            "What makes images: a dense layer, or transposed convolutions.", "mlp"
        )
        image_weight: Above0 = optional("Of the images' error, relative to that of scalars.", 1.0)

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        refuse_classes(shapes, "regressor")
        self.encoder = InputEncoder(shapes, options)
        self.outputs = Outputs(shapes)
        self.image_weight = options.image_weight
        hidden = scaled(dense(*[options.width] * options.depth, activation="silu"), options.capacity)
        by_convolutions = bool(shapes.images) and options.kind == "cnn"
        num_dense = self.outputs.num_scalars if by_convolutions else self.outputs.size
        self.layers = stack(self.encoder.size, hidden, num_dense) if num_dense else None
        self.image_body: nn.Sequential | None = None
        if by_convolutions:
            pictures = Pictures.of(list(shapes.images.values()))
            self.image_body = stack(self.encoder.size, hidden)
            self.image_head = ConvDecoder(hidden[-1].units, pictures, options.capacity, "silu")
        if shapes.images:
            he_normal(self.layers, self.image_body)

    def predict(self, inputs: Tensor | None, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        x = self.encoder(inputs, images)
        if self.image_body is None:
            assert self.layers is not None
            return self.outputs.from_vector(self.layers(x))
        made = {} if self.layers is None else {SCALARS: self.layers(x)}
        return made | self.outputs.split_images(self.image_head(self.image_body(x)))

    def forward(self, batch: Batch, phase: str = "model") -> dict[str, Tensor]:
        means = self.outputs.mean_squared_errors(self.predict(*inputs_of(batch)), batch)
        loss = weighted(means, self.image_weight)
        return {"loss": loss} if len(means) == 1 else {"loss": loss, **means}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        made = self.predict(*inputs_of(batch))
        errors = self.outputs.squared_errors(made, batch)
        found = {"loss": weighted(errors, self.image_weight)}
        if SCALARS in made:
            found["mae"] = (made[SCALARS] - batch[SCALARS]).abs().mean(1)
        return found | (errors if len(errors) > 1 else {})

    def directions(self) -> dict[str, Direction]:
        groups = self.outputs.groups
        names = ["loss", *(["mae"] if SCALARS in groups else []), *(groups if len(groups) > 1 else [])]
        return dict.fromkeys(names, "min")
