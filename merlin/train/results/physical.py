"""A model in physical units: the run's normalisation before it, and its inverse behind, as layers.

Predictions and exported models are this one module, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from merlin.errors import TrainingError
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.scaling import IDENTITY, Scaling, Vectors
from merlin.train.models.base import Trainee
from merlin.train.models.inputs import INPUTS, predict_batch
from merlin.train.models.outputs import require_predictions
from merlin.train.models.registry import MODEL_ERRORS
from merlin.train.quantities import Quantities, Quantity


class Affine(nn.Module):
    """A `Scaling` whose numbers are buffers, so that they are part of an exported model.

    `forward` normalises, `inverse` goes back; both for arrays (…, *shape) of `dtype`, the vectors lying along `axis`,
    which is counted from the end.
    """

    def __init__(self, scaling: Scaling, dtype: torch.dtype, axis: int | None) -> None:
        super().__init__()
        for name, values in scaling.arrays(None if scaling.axis is None else axis)._asdict().items():
            kept = None if values is None else torch.from_numpy(values)
            self.register_buffer(name, kept if kept is None or name == "log" else kept.to(dtype))
        self.centre: Tensor

    @property
    def _vectors(self) -> Vectors:
        return Vectors(*(getattr(self, name) for name in Vectors._fields))

    def forward(self, x: Tensor) -> Tensor:
        return self._vectors.forward(x, torch)  # type: ignore[no-any-return]

    def inverse(self, y: Tensor) -> Tensor:
        return self._vectors.inverse(y, torch)  # type: ignore[no-any-return]


class PhysicalModel(nn.Module):
    """Inputs -> {scalar: (n,) float64, image: (n, *shape) float32, class: (n,) int64}, all in the data set's units.

    Inputs are, in the order of `input_names`, the matrix "inputs" (n, d) float64 if there are columns, and images
    (n, *shape) float32. Images are laid out as the data set stores them. Beside a class stand the probabilities of all
    classes, "<name>.probabilities" (n, K) float32.
    """

    def __init__(self, name: str, trainee: Trainee, quantities: Quantities, normaliser: Normaliser) -> None:
        super().__init__()
        self.name, self.trainee = name, trainee
        self.quantities = quantities
        self.inputs = _stacked(quantities.columns, normaliser)
        self.input_images = nn.ModuleList(_of_image(q, normaliser) for q in quantities.input_images)
        columns = (INPUTS,) if quantities.columns else ()
        self.input_names: tuple[str, ...] = (*columns, *(q.name for q in quantities.input_images))
        self.scalars = _stacked(quantities.scalars, normaliser) if quantities.scalars else None
        self.images = nn.ModuleList(_of_image(q, normaliser) for q in quantities.images)
        for i, quantity in enumerate(quantities.classes):
            self.register_buffer(f"classes_{i}", torch.tensor(quantity.classes), persistent=False)

    def forward(self, *given: Tensor) -> dict[str, Tensor]:
        batch = dict(zip(self.input_names, given, strict=True))
        if INPUTS in batch:
            batch[INPUTS] = self.inputs(batch[INPUTS]).float()
        for quantity, affine in zip(self.quantities.input_images, self.input_images, strict=True):
            batch[quantity.name] = affine(as_chw(batch[quantity.name].float(), quantity))
        return self.predicted_from(batch)

    def predicted_from(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of `forward` for a normalised batch."""
        images = [q.name for q in self.quantities.input_images]
        num = next(iter(batch.values())).shape[0]
        return self.restored(predict_batch(self.trainee, batch, images), num)

    def restored(self, made: Mapping[str, Tensor], num: int) -> dict[str, Tensor]:
        """The outputs of a model for so many samples, "scalars" (n, m), images (n, C, H, W) and logits of classes, by
        name and in the data set's units. Raises TrainingError if they are not what the data set has."""
        require_predictions(self.name, made, num, self.quantities.predicted_shapes)
        found: dict[str, Tensor] = {}
        if self.scalars is not None and "scalars" in made:
            scalars = self.scalars.inverse(made["scalars"].double())
            found |= {q.name: scalars[:, i] for i, q in enumerate(self.quantities.scalars)}
        for i, quantity in enumerate(self.quantities.classes):
            if quantity.name in made:
                logits = made[quantity.name].float()
                found[quantity.name] = self.get_buffer(f"classes_{i}")[logits.argmax(1)]
                found[quantity.probabilities.name] = logits.softmax(1)
        for quantity, affine in zip(self.quantities.images, self.images, strict=True):
            if quantity.name in made:
                found[quantity.name] = as_stored(affine.inverse(made[quantity.name].float()), quantity)  # type: ignore[operator]
        return found

    @torch.inference_mode()
    def predicted(self) -> tuple[Quantity, ...]:
        """The quantities that the model predicts, in the order of `forward`'s dict.

        Raises TrainingError if it has no `predict`, or one that fails, UsageError if it says that it cannot.
        """
        some = some_inputs(self.quantities, self.quantities.num_tried(2))
        try:
            found = self(*(given.to(self.inputs.centre.device) for given in some))
        except NotImplementedError as error:
            raise TrainingError("the model has no `predict`: it tells nothing from inputs alone") from error
        except MODEL_ERRORS as error:
            raise TrainingError(
                f"the model {self.name} fails to predict: {type(error).__name__}: {error}"
            ) from error
        outputs = (*self.quantities.outputs, *(q.probabilities for q in self.quantities.classes))
        known = {q.name: q for q in outputs}
        return tuple(known[name] for name in found)


def as_stored(images: Tensor, quantity: Quantity) -> Tensor:
    """Images (n, C, H, W) as the data set has them."""
    return images.squeeze(1) if quantity.axis is None else images.movedim(-3, quantity.axis)


def as_chw(images: Tensor, quantity: Quantity) -> Tensor:
    """Images of the data set as (n, C, H, W)."""
    return images.unsqueeze(1) if quantity.axis is None else images.movedim(quantity.axis, -3)


def _stacked(quantities: tuple[Quantity, ...], normaliser: Normaliser) -> Affine:
    widths = [len(q.column_names) for q in quantities]
    scaling = Scaling.stack([normaliser.scalings.get(q.path) for q in quantities], widths)
    return Affine(scaling, torch.float64, -1)


def _of_image(quantity: Quantity, normaliser: Normaliser) -> Affine:
    return Affine(normaliser.scalings.get(quantity.path) or IDENTITY, torch.float32, -3)


def some_inputs(quantities: Quantities, num: int) -> tuple[Tensor, ...]:
    """Samples from the ranges of the inputs, always the same ones, as a `PhysicalModel` takes them."""
    random = np.random.default_rng(0)

    def draw(quantity: Quantity, shape: tuple[int, ...]) -> Tensor:
        low, high = quantity.low, quantity.high
        if low is None or high is None:
            low, high = 0.0, 1.0
        return torch.from_numpy(low + (high - low) * random.random((num, *shape)))

    columns = [draw(q, (len(q.column_names),)) for q in quantities.columns]
    images = (draw(q, q.shape).float() for q in quantities.input_images)
    return (*([torch.cat(columns, 1)] if columns else []), *images)
