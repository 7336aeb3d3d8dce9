"""A surrogate with a latent space in its middle, whose parts are all trained together.

Inputs become a code of a few numbers, and the code scalars and images: a regressor that goes through a
bottleneck. An encoder learns which code given scalars and images have, and an inverse model the inputs of a
code, as in Anirudh et al., PNAS 117 (2020). What the encoder and the inverse model learn does not affect the
way from inputs to predictions, except through the weight of the cycle, so predictions are as good as a
regressor's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from merlin.base.document.field_types import Block, Positive, optional
from merlin.train.config import Above0, AtLeast0
from merlin.train.models.base import Batch, Direction, Shapes, Trainee
from merlin.train.models.image_basis import ImageBasis
from merlin.train.models.inputs import INPUTS, refuse_classes, refuse_input_images
from merlin.train.models.layers import dense, he_normal, scaled, stack
from merlin.train.models.outputs import SCALARS, Outputs, weighted


class LatentSurrogate(Trainee):
    """x_ND -> code -> scalars_NM and images_NCHW; scalars_NM and images_NCHW -> code -> x_ND."""

    version = 1  # raise it with every change after which the same weights predict something else

    class Options(Block):
        latent: Positive = optional("Numbers of a latent code.", 20)
        width: Positive = optional("Units of each hidden layer.", 512)
        depth: Positive = optional(
            "Hidden layers from inputs to the code; from there to outputs one less.", 3
        )
        capacity: Above0 = optional("Factor of the width.", 1.0)
        components: Positive = optional("Principal components that images are made of.", 256)
        cycle: AtLeast0 = optional("Weight of the cycle from inputs to a code and back.", 1e-3)
        image_weight: Above0 = optional("Of the images' error, relative to that of scalars.", 1.0)

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        refuse_input_images(shapes, "latent_surrogate")
        refuse_classes(shapes, "latent_surrogate")
        self.outputs = outputs = Outputs(shapes)
        self.cycle, self.image_weight = options.cycle, options.image_weight
        self.basis = ImageBasis(outputs, options.components) if outputs.images else None
        self.num_fitted = 0 if self.basis is None else 6 * self.basis.size
        num_in, latent, width = len(shapes.inputs), options.latent, options.width
        num_out = outputs.num_scalars + (0 if self.basis is None else self.basis.size)

        def network(num_before: int, num_after: int, *units: int) -> nn.Sequential:
            return stack(num_before, scaled(dense(*units, activation="silu"), options.capacity), num_after)

        self.forward_generator = network(num_in, latent, *[width] * options.depth)
        self.decoder = network(latent, num_out, *[width] * max(1, options.depth - 1))
        self.encoder = network(num_out, latent, width, width)
        self.inverse_generator = network(latent, num_in, width, width)
        he_normal(self.forward_generator, self.decoder, self.encoder, self.inverse_generator)

    def fit(self, samples: Batch) -> None:
        if self.basis is not None:
            self.basis.fit(samples)

    def forward(self, batch: Batch, phase: str = "model") -> dict[str, Tensor]:
        inputs, (true, rest) = batch[INPUTS], self._seen(batch)
        code, found = self.forward_generator(inputs), self.encoder(true)
        errors = {name: error.mean() for name, error in self._errors(self.decoder(code), true, rest).items()}
        # the decoder's weights are for predictions alone
        fixed = {name: value.detach() for name, value in self.decoder.named_parameters()}
        restored = self._errors(functional_call(self.decoder, fixed, (found,)), true, rest)
        learned = {
            "reconstruction": weighted(restored, self.image_weight).mean(),
            "latent": F.mse_loss(found, code.detach()),
            "inverse": F.mse_loss(self.inverse_generator(found), inputs),
        }
        cycle = F.l1_loss(self.inverse_generator(code), inputs)
        loss = weighted(errors, self.image_weight) + torch.stack(list(learned.values())).sum()
        return {"loss": loss + self.cycle * cycle, **errors, **learned, "cycle": cycle}

    def _seen(self, values: Batch) -> tuple[Tensor, Tensor]:
        """Scalars and the images' coefficients (n, m + size), and what these leave out of the images (n,)."""
        parts = [values[SCALARS]] if self.outputs.num_scalars else []
        rest = next(iter(values.values())).new_zeros(())
        if self.basis is not None:
            coefficients, rest = self.basis.encode(values)
            parts.append(coefficients)
        return torch.cat(parts, 1), rest

    def _errors(self, made: Tensor, true: Tensor, rest: Tensor) -> dict[str, Tensor]:
        """The errors as `Outputs.squared_errors` gives them."""
        num, found = self.outputs.num_scalars, {}
        if num:
            found[SCALARS] = (made[:, :num] - true[:, :num]).square().mean(1)
        if self.basis is not None:
            found["images"] = self.basis.squared_errors(made[:, num:], true[:, num:], rest)
        return found

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Squared errors of scalars, images and codes; absolute errors of inputs found from outputs, and by the cycle.

        "loss" is the error of scalars and images, which are the main purpose of the model.
        """
        inputs, (true, rest) = batch[INPUTS], self._seen(batch)
        code, found = self.forward_generator(inputs), self.encoder(true)
        errors = self._errors(self.decoder(code), true, rest)
        restored = self._errors(self.decoder(found), true, rest)
        return {
            "loss": weighted(errors, self.image_weight),
            **errors,
            "reconstruction": weighted(restored, self.image_weight),
            "latent": (found - code).square().mean(1),
            "inverse": (self.inverse_generator(found) - inputs).abs().mean(1),
            "cycle": (self.inverse_generator(code) - inputs).abs().mean(1),
        }

    def directions(self) -> dict[str, Direction]:
        names = ["loss", *self.outputs.groups, "reconstruction", "latent", "inverse", "cycle"]
        return dict.fromkeys(names, "min")

    def parts(self) -> dict[str, list[str]]:
        forward = ["forward_generator.", "decoder.", "basis."]
        return {"forward": forward, "backward": ["encoder.", "inverse_generator."]}

    def predict(self, inputs: Tensor, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        made = self.decoder(self.forward_generator(inputs))
        num = self.outputs.num_scalars
        scalars = {SCALARS: made[:, :num]} if num else {}
        return scalars if self.basis is None else scalars | self.basis.decode(made[:, num:])

    def infer(self, outputs: Batch) -> Tensor:
        """Inputs (n, d) that may have led to scalars and images."""
        made: Tensor = self.inverse_generator(self.encoder(self._seen(outputs)[0]))
        return made
