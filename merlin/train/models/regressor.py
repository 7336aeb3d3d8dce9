"""The baseline: an MLP from the inputs to the scalars, by mean squared error."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from merlin.errors import UsageError
from merlin.spec.field_types import Positive
from merlin.spec.model import Block
from merlin.train.models.base import Direction, Shapes, Trainee


class Regressor(Trainee):
    """x_ND -> scalars_NM."""

    class Options(Block):
        width: Positive = Field(default=256, description="Units of each hidden layer.")
        depth: Positive = Field(default=3, description="Hidden layers.")

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        if not shapes.scalars:
            raise UsageError("the regressor predicts scalars, and the data has none selected")
        sizes = [len(shapes.inputs), *[options.width] * options.depth]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], len(shapes.scalars)))

    def forward(self, batch: Mapping[str, Tensor], phase: str = "model") -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(batch["inputs"]), batch["scalars"])}

    def metrics(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        error = self.layers(batch["inputs"]) - batch["scalars"]
        return {"loss": error.square().mean(dim=1), "mae": error.abs().mean(dim=1)}

    def directions(self) -> dict[str, Direction]:
        return {"loss": "min", "mae": "min"}

    def predict(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"scalars": torch.as_tensor(self.layers(inputs))}
