"""The ICF surrogate: cycle-consistent generators between inputs and the latent space of a multi-modal autoencoder.

Anirudh et al., "Improved surrogates in inertial confinement fusion with manifold and cycle consistencies", PNAS 117
(2020), and the model that Jacobs et al. trained by tournaments (IEEE CLUSTER 2019). The forward generator maps inputs
to latent codes, which the frozen decoder turns into scalars and images; the inverse generator maps codes to inputs.
A discriminator for each direction sees pairs of a code and inputs. Generators learn from copies of the discriminators
that are frozen for some steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from merlin.base.document.field_types import Block, Name, Positive, optional
from merlin.base.files import from_home
from merlin.errors import UsageError
from merlin.train.config import Above0, AtLeast0
from merlin.train.models.base import Batch, Direction, Shapes, Trainee
from merlin.train.models.icf_autoencoder import Coder, CoderOptions, Variant, judge
from merlin.train.models.inputs import refuse_input_images
from merlin.train.models.layers import dense, he_normal, scaled, stack
from merlin.train.models.outputs import weighted

if TYPE_CHECKING:
    from merlin.train.loading.normalise import Normaliser

FORWARD = {"app": dense(32, 256, 1024), "2019": dense(64, 512, 2048, activation="leaky_relu")}
INVERSE = {"app": dense(16, 128, 64), "2019": dense(16, 128, 512, activation="leaky_relu")}
DISCRIMINATORS = {"app": dense(128, 64), "2019": (*dense(512, batch_norm=True), *dense(64))}


class AutoencoderSource(Block):
    """Where the latent space comes from. What is filled in when a run begins makes the run independent of it."""

    run: Name = Field(description="The run directory of an icf_autoencoder; its best model is taken.")
    digest: str | None = optional("Of its weights; filled in.")
    coder: CoderOptions | None = optional("How it is built; filled in.")


def _as_source(value: Any) -> Any:
    return {"run": value} if isinstance(value, str) else value


class IcfSurrogate(Trainee):
    """x_ND -> latent codes -> scalars_NM and images_NCHW, and latent codes -> x_ND."""

    version = 1  # raise it with every change after which the same weights predict something else
    phases = ("discriminators", "generators")

    class Options(Block):
        autoencoder: Annotated[AutoencoderSource, BeforeValidator(_as_source)] = Field(
            description="The run directory of an icf_autoencoder that was trained on the same data."
        )
        capacity: Above0 = optional("Factor of all widths but the autoencoder's.", 1.0)
        variant: Variant = optional(
            "Widths and the defaults below: of LBANN's ICF application, or the model of 2019.", "app"
        )
        fidelity: Literal["mse", "l1"] | None = optional(
            "How far codes and inputs are from the true ones. Default: mse; 2019: l1."
        )
        cycle: AtLeast0 | None = optional(
            "Weight of the cycle from inputs to a code and back. Default: 0.001; 2019: 0.1."
        )
        output: AtLeast0 = optional(
            "Weight of the error of scalars and images behind the decoder; ours.", 1.0
        )
        image_weight: Above0 = optional("Of the images' error, relative to that of scalars.", 1.0)
        adversarial: AtLeast0 = optional("Weight of deceiving each discriminator.", 0.01)
        refresh_every: Positive | None = optional(
            "Steps that the discriminators' copies stay as they are. Default: 2; 2019: 1."
        )

        def resolved(self) -> Self:
            """These options, completed from the autoencoder's run. Raises UsageError or CheckpointError."""
            from merlin.train.models.pretrained import Pretrained

            if self.autoencoder.digest is not None:
                return self
            found = Pretrained(from_home(self.autoencoder.run).resolve())
            source = AutoencoderSource(run=str(found.run), digest=found.digest, coder=found.options)
            return self.model_copy(update={"autoencoder": source})

    def __init__(self, shapes: Shapes, options: Options) -> None:
        super().__init__()
        options = options.resolved()
        source, variant, old = options.autoencoder, options.variant, options.variant == "2019"
        assert source.coder is not None
        refuse_input_images(shapes, "icf_surrogate")
        self.shapes, self.source = shapes, source
        self.fidelity = options.fidelity or ("l1" if old else "mse")
        self.cycle = options.cycle if options.cycle is not None else 0.1 if old else 1e-3
        self.refresh_every = options.refresh_every or (1 if old else 2)
        self.output, self.adversarial = options.output, options.adversarial
        self.image_weight = options.image_weight

        num_in, latent, capacity = len(shapes.inputs), source.coder.latent, options.capacity
        self.coder = Coder(shapes, source.coder)
        self.forward_generator = stack(num_in, scaled(FORWARD[variant], capacity), latent)
        self.inverse_generator = stack(latent, scaled(INVERSE[variant], capacity), num_in)
        he_normal(self.forward_generator, self.inverse_generator)
        hidden = scaled(DISCRIMINATORS[variant], capacity)
        self.forward_discriminator = stack(latent + num_in, hidden, 1)
        self.inverse_discriminator = stack(latent + num_in, hidden, 1)
        self.frozen_forward = stack(latent + num_in, hidden, 1)
        self.frozen_inverse = stack(latent + num_in, hidden, 1)
        for module in (self.coder, self.frozen_forward, self.frozen_inverse):
            module.requires_grad_(False)
        self._refresh()

    def start(self, normaliser: Normaliser) -> None:
        """Take over the autoencoder. Raises UsageError if it is not there, is another one, or is one of other data."""
        from merlin.train.models.pretrained import Pretrained

        found = Pretrained(Path(self.source.run))
        found.check_fits(self.shapes, normaliser)
        if found.digest != self.source.digest:
            raise UsageError(
                f"model.autoencoder: {found.run} has another best model than when this configuration was written; "
                "begin a new run, with nothing but its directory as model.autoencoder"
            )
        self.coder.load_state_dict(found.weights)

    def train(self, mode: bool = True) -> Self:
        """The autoencoder stays in evaluation mode: its statistics and dropout are frozen, too."""
        super().train(mode)
        self.coder.eval()
        return self

    def parameters_of(self, phase: str) -> Iterable[Parameter]:
        if phase == "generators":
            return [*self.forward_generator.parameters(), *self.inverse_generator.parameters()]
        return [*self.forward_discriminator.parameters(), *self.inverse_discriminator.parameters()]

    def forward(self, batch: Batch, phase: str = "generators") -> dict[str, Tensor]:
        with torch.no_grad():
            code = self.coder.encode(batch)
        return self._discriminate(batch, code) if phase == "discriminators" else self._generate(batch, code)

    def _discriminate(self, batch: Batch, code: Tensor) -> dict[str, Tensor]:
        """The losses of discriminators, which tell true pairs from generated ones.

        The generators learn nothing from these losses.
        """
        inputs = batch["inputs"]
        with torch.no_grad():
            made_code, made_inputs = self.forward_generator(inputs), self.inverse_generator(code)
        pair = torch.cat([code, inputs], 1)
        found = {
            "forward_real": judge(self.forward_discriminator, pair, True),
            "forward_fake": judge(self.forward_discriminator, torch.cat([made_code, inputs], 1), False),
            "inverse_real": judge(self.inverse_discriminator, pair, True),
            "inverse_fake": judge(self.inverse_discriminator, torch.cat([code, made_inputs], 1), False),
        }
        return {"loss": torch.stack(list(found.values())).sum(), **found}

    def _generate(self, batch: Batch, code: Tensor) -> dict[str, Tensor]:
        inputs = batch["inputs"]
        made_code, made_inputs = self.forward_generator(inputs), self.inverse_generator(code)
        found = {
            "latent": self._distance(made_code, code),
            "inverse": self._distance(made_inputs, inputs),
            "cycle": F.l1_loss(self.inverse_generator(made_code), inputs),
            "adversarial": judge(self.frozen_forward, torch.cat([made_code, inputs], 1), True)
            + judge(self.frozen_inverse, torch.cat([code, made_inputs], 1), True),
        }
        loss = found["latent"] + found["inverse"] + self.cycle * found["cycle"]
        loss = loss + self.adversarial * found["adversarial"]
        if self.output:
            means = self.coder.outputs.mean_squared_errors(self.coder.decode(made_code), batch)
            loss = loss + self.output * weighted(means, self.image_weight)
            found |= means
        return {"loss": loss, **found}

    def _distance(self, made: Tensor, true: Tensor) -> Tensor:
        return F.mse_loss(made, true) if self.fidelity == "mse" else F.l1_loss(made, true)

    def after_step(self, step: int) -> None:
        if step % self.refresh_every == 0:
            self._refresh()

    def _refresh(self) -> None:
        self.frozen_forward.load_state_dict(self.forward_discriminator.state_dict())
        self.frozen_inverse.load_state_dict(self.inverse_discriminator.state_dict())

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Squared errors of scalars, images and codes; absolute errors of inputs found from outputs, and by the cycle.

        "loss" is what a surrogate is for: the error of its scalars and images, and that of the inputs it infers.
        """
        inputs, code = batch["inputs"], self.coder.encode(batch)
        made_code = self.forward_generator(inputs)
        errors = self.coder.outputs.squared_errors(self.coder.decode(made_code), batch)
        made_inputs = self.inverse_generator(code)
        inverse = (made_inputs - inputs).square().mean(1)
        return {
            "loss": weighted(errors, self.image_weight) + inverse,
            **errors,
            "latent": (made_code - code).square().mean(1),
            "inverse": (made_inputs - inputs).abs().mean(1),
            "cycle": (self.inverse_generator(made_code) - inputs).abs().mean(1),
        }

    def directions(self) -> dict[str, Direction]:
        names = ["loss", *self.coder.outputs.groups, "latent", "inverse", "cycle"]
        return dict.fromkeys(names, "min")

    def parts(self) -> dict[str, list[str]]:
        return {
            "generators": ["forward_generator.", "inverse_generator."],
            "forward": ["forward_generator."],
            "inverse": ["inverse_generator."],
            "discriminators": [
                "forward_discriminator.",
                "inverse_discriminator.",
                "frozen_forward.",
                "frozen_inverse.",
            ],
        }

    def predict(self, inputs: Tensor, images: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        return self.coder.decode(self.forward_generator(inputs))

    def infer(self, outputs: Batch) -> Tensor:
        """Inputs (n, d) that may have led to scalars and images."""
        made: Tensor = self.inverse_generator(self.coder.encode(outputs))
        return made
