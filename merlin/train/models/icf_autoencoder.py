"""A Wasserstein autoencoder of scalars and images together, whose latent codes are normally distributed.

Tolstikhin et al., "Wasserstein auto-encoders", ICLR 2018, with the adversarial penalty: a discriminator learns to tell
the encoder's codes from draws of N(0, 1), and the encoder to deceive it. Widths are those of LBANN's model zoo.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from merlin.base.document.field_types import Block, Positive, optional
from merlin.errors import UsageError
from merlin.train.config import Above0, AtLeast0
from merlin.train.models.base import Batch, Direction, Shapes, Trainee
from merlin.train.models.inputs import refuse_classes
from merlin.train.models.layers import (
    Activation,
    ConvDecoder,
    Dense,
    Pictures,
    conv_encoder,
    dense,
    he_normal,
    scaled,
    stack,
    with_activation,
)
from merlin.train.models.outputs import SCALARS, Outputs, weighted

Variant = Annotated[Literal["app", "2019"], BeforeValidator(str)]

ENCODERS = {
    "app": dense(32, 256, 128),
    "2019": (*dense(1024, activation="elu", batch_norm=True), *dense(256, 32, activation="tanh", batch_norm=True)),
}  # fmt: skip
DECODERS = {
    "app": dense(64, 128, 256),
    "2019": (Dense(32, "tanh", dropout=0.1), *dense(256, activation="tanh"), *dense(1024, activation="elu")),
}
LATENT_DISCRIMINATORS = {"app": dense(128, 64), "2019": dense(512, 256, 128, 64)}
# An optimiser such as Adam moves all weights by the same small amount. For a unit that sees many neighbouring
# pixels these changes add up: its output would jump from step to step. So inputs are made smaller, and
# weights greater.
_FEW_INPUTS = 32
_CNN_SCALARS = dense(64, 128)  # hidden layers from the latent code to scalars, beside transposed convolutions


class CoderOptions(Block):
    """The options of the encoder and the decoder."""

    kind: Literal["mlp", "cnn"] = optional("What sees images: dense layers, or convolutions.", "mlp")
    latent: Positive = optional("Numbers of a latent code.", 20)
    capacity: Above0 = optional("Factor of all widths and channels.", 1.0)
    variant: Variant = optional("Widths: of LBANN's ICF application, or of the model of 2019.", "app")
    activation: Activation = optional("Between hidden layers; variant 2019 has its own.", "silu")


class Coder(nn.Module):
    """Scalars and images -> latent codes (n, latent), and back."""

    def __init__(self, shapes: Shapes, options: CoderOptions) -> None:
        super().__init__()
        if options.kind == "cnn" and options.variant != "app":
            raise UsageError("model.variant: 2019 has no convolutions; use variant: app, or kind: mlp")
        refuse_classes(shapes, "icf_autoencoder")
        self.outputs = outputs = Outputs(shapes)
        self.by_convolutions = options.kind == "cnn"
        latent, capacity = options.latent, options.capacity
        encoder, decoder = (self._hidden(table[options.variant], options) for table in (ENCODERS, DECODERS))
        if not self.by_convolutions:
            self.encoder = stack(outputs.size, encoder, latent)
            self.decoder = stack(latent, decoder, outputs.size)
            he_normal(self.encoder, self.decoder)
            self.input_scale = min(1.0, math.sqrt(_FEW_INPUTS / outputs.size))
            first = self.encoder[0]
            assert isinstance(first, nn.Linear)
            with torch.no_grad():
                first.weight /= self.input_scale
            return
        pictures = Pictures.of(list(shapes.images.values()))
        self.image_encoder, num_codes = conv_encoder(pictures, capacity, options.activation)
        self.encoder = stack(num_codes + outputs.num_scalars, encoder[-1:], latent)
        hidden = self._hidden(_CNN_SCALARS, options)
        self.decoder = stack(latent, hidden)
        units = hidden[-1].units
        self.scalar_head = nn.Linear(units, outputs.num_scalars) if outputs.num_scalars else None
        self.image_head = ConvDecoder(units, pictures, capacity, options.activation)
        he_normal(self.encoder, self.decoder)

    @staticmethod
    def _hidden(layers: Sequence[Dense], options: CoderOptions) -> tuple[Dense, ...]:
        own = layers if options.variant == "2019" else with_activation(layers, options.activation)
        return scaled(own, options.capacity)

    def encode(self, values: Batch) -> Tensor:
        """(n, latent)"""
        if self.by_convolutions:
            scalars = [values[SCALARS]] if self.outputs.num_scalars else []
            images = self.image_encoder(self.outputs.join_images(values))
            vector = torch.cat([*scalars, images], 1)  # what grows with the capacity comes last
        else:
            vector = self.outputs.to_vector(values) * self.input_scale
        code: Tensor = self.encoder(vector)
        return code

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Scalars (n, m) and images (n, C, H, W)."""
        made = self.decoder(code)
        if not self.by_convolutions:
            return self.outputs.from_vector(made)
        scalars = {} if self.scalar_head is None else {SCALARS: self.scalar_head(made)}
        return scalars | self.outputs.split_images(self.image_head(made))


def judge(discriminator: nn.Module, seen: Tensor, real: bool) -> Tensor:
    """Binary cross-entropy of what a discriminator says of `seen` (n, d), with what it ought to say."""
    said = discriminator(seen)
    return F.binary_cross_entropy_with_logits(said, torch.full_like(said, float(real)))


class IcfAutoencoder(Trainee):
    """The first half of the ICF surrogate: what `icf_surrogate` takes its latent space from."""

    version = 1  # raise it with every change after which the same weights reconstruct something else
    phases = ("discriminator", "autoencoder")

    class Options(CoderOptions):
        discriminator: Literal["latent", "joint"] | None = optional(
            "What the discriminator sees: codes, or codes beside the data. "
            "Default: latent, and joint for variant 2019."
        )
        adversarial: AtLeast0 = optional("Weight of deceiving the discriminator.", 0.01)
        image_weight: Above0 = optional("Of the images' error, relative to that of scalars.", 1.0)

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        self.coder = Coder(shapes, options)
        self.outputs = self.coder.outputs
        self.latent, self.adversarial = options.latent, options.adversarial
        self.image_weight = options.image_weight
        usual = "joint" if options.variant == "2019" else "latent"
        self.joint = (options.discriminator or usual) == "joint"
        num_seen = options.latent + (self.outputs.size if self.joint else 0)
        hidden = scaled(LATENT_DISCRIMINATORS[options.variant], options.capacity)
        self.discriminator = stack(num_seen, hidden, 1)

    def parameters_of(self, phase: str) -> Iterable[Parameter]:
        return (self.discriminator if phase == "discriminator" else self.coder).parameters()

    def forward(self, batch: Batch, phase: str = "autoencoder") -> dict[str, Tensor]:
        if phase == "discriminator":
            with torch.no_grad():
                code = self.coder.encode(batch)
            prior = judge(self.discriminator, self._seen(torch.randn_like(code), batch), True)
            posterior = judge(self.discriminator, self._seen(code, batch), False)
            return {"loss": prior + posterior, "prior": prior, "posterior": posterior}
        code = self.coder.encode(batch)
        means = self.outputs.mean_squared_errors(self.coder.decode(code), batch)
        deceived = judge(self.discriminator, self._seen(code, batch), True)
        loss = weighted(means, self.image_weight) + self.adversarial * deceived
        return {"loss": loss, **means, "adversarial": deceived}

    def _seen(self, code: Tensor, batch: Batch) -> Tensor:
        return torch.cat([code, self.outputs.to_vector(batch)], 1) if self.joint else code

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """The errors of reconstructions; "loss" is their weighted sum."""
        errors = self.outputs.squared_errors(self.reconstruct(batch), batch)
        return {"loss": weighted(errors, self.image_weight), **errors}

    def directions(self) -> dict[str, Direction]:
        return dict.fromkeys(["loss", *self.outputs.groups], "min")

    def parts(self) -> dict[str, list[str]]:
        return {"autoencoder": ["coder."], "discriminator": ["discriminator."]}

    def reconstruct(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars and images, by way of their latent codes."""
        return self.coder.decode(self.coder.encode(batch))

    def predict(self, inputs: Tensor, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        raise UsageError(
            "an autoencoder predicts nothing from inputs: train a surrogate on top of it, with "
            "model: {name: icf_surrogate, autoencoder: RUN_DIRECTORY}"
        )

    @classmethod
    def coder_options(cls, options: dict[str, Any]) -> CoderOptions:
        """What of the options of an autoencoder makes its encoder and decoder."""
        full = cls.Options.model_validate(options)
        return CoderOptions(**{name: getattr(full, name) for name in CoderOptions.model_fields})
