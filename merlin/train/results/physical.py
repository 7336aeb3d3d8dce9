"""A model in physical units: the run's normalisation before it, and its inverse behind, as layers.

Predictions and exported models are this one module, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from merlin.errors import TrainingError
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.scaling import Scaling
from merlin.train.models.base import Trainee
from merlin.train.models.inputs import INPUTS
from merlin.train.quantities import Quantities, Quantity


class Affine(nn.Module):
    """A `Scaling` whose numbers are buffers, so that they are part of an exported model.

    `forward` normalises, `inverse` goes back; both for arrays (…, *shape) of `dtype`, the vectors lying along `axis`,
    which is counted from the end.
    """

    def __init__(self, scaling: Scaling, dtype: torch.dtype, axis: int | None) -> None:
        super().__init__()
        logs = [offset is not None for offset in scaling.offset]
        vectors = {
            "centre": scaling.centre,
            "scale": scaling.scale,
            "offset": tuple(offset or 0.0 for offset in scaling.offset),
            "floor": tuple(f if log else 1.0 for f, log in zip(scaling.floor, logs, strict=True)),
            "log": tuple(map(float, logs)),
        }
        self.has_log = any(logs)
        shape = () if scaling.axis is None or axis is None else (-1, *[1] * (-1 - axis))
        for name, values in vectors.items():
            self.register_buffer(name, torch.tensor(values, dtype=dtype).reshape(shape))
        self.centre: Tensor
        self.scale: Tensor
        self.offset: Tensor
        self.floor: Tensor
        self.log: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.has_log:
            log = self.log > 0
            raised = torch.maximum(torch.where(log, x + self.offset, self.floor), self.floor)
            x = torch.where(log, torch.log10(raised), x)
        return (x - self.centre) * self.scale

    def inverse(self, y: Tensor) -> Tensor:
        x = y / self.scale + self.centre
        if not self.has_log:
            return x
        log = self.log > 0
        return torch.where(log, torch.pow(10.0, torch.where(log, x, self.centre)) - self.offset, x)


class PhysicalModel(nn.Module):
    """Inputs -> {scalar: (n,) float64, image: (n, *shape) float32, class: (n,) int64}, all in the data set's units.

    Inputs are, in the order of `input_names`, the matrix "inputs" (n, d) float64 if there are columns, and images
    (n, *shape) float32. Images are laid out as the data set stores them. Beside a class stand the probabilities of all
    classes, "<name>.probabilities" (n, K) float32.
    """

    def __init__(self, trainee: Trainee, quantities: Quantities, normaliser: Normaliser) -> None:
        super().__init__()
        self.trainee = trainee
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
        """As `forward`, of a normalised batch."""
        images = {q.name: batch[q.name] for q in self.quantities.input_images}
        inputs = batch.get(INPUTS)
        if inputs is None:
            some = next(iter(images.values()))
            inputs = some.new_zeros((some.shape[0], 0))
        return self.restored(self.trainee.predict(inputs, images) if images else self.trainee.predict(inputs))

    def restored(self, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a model made, "scalars" (n, m), images (n, C, H, W) and logits of classes, by name and in the data
        set's units."""
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
        """What the model predicts, in the order of `forward`'s dict.

        Raises TrainingError if it has no `predict`, UsageError if it says that it cannot.
        """
        try:
            found = self(*(given.to(self.inputs.centre.device) for given in _middle(self.quantities)))
        except NotImplementedError as error:
            raise TrainingError("the model has no `predict`: it tells nothing from inputs alone") from error
        outputs = (*self.quantities.outputs, *(q.probabilities for q in self.quantities.classes))
        known = {q.name: q for q in outputs}
        return tuple(known[name] for name in found)


def as_stored(images: Tensor, quantity: Quantity) -> Tensor:
    """Images (n, C, H, W) as the data set has them."""
    if len(quantity.shape) == 2:
        return images.squeeze(1)
    return images.movedim(-3, quantity.channel_axis)


def as_chw(images: Tensor, quantity: Quantity) -> Tensor:
    """Images of the data set as (n, C, H, W)."""
    if len(quantity.shape) == 2:
        return images.unsqueeze(1)
    return images.movedim(quantity.channel_axis, -3)


def _stacked(quantities: tuple[Quantity, ...], normaliser: Normaliser) -> Affine:
    widths = [len(q.column_names) for q in quantities]
    scaling = Scaling.stack([normaliser.scalings.get(q.path) for q in quantities], widths)
    return Affine(scaling, torch.float64, -1)


def _of_image(quantity: Quantity, normaliser: Normaliser) -> Affine:
    plain = Scaling((0.0,), (1.0,), (None,), (0.0,))
    return Affine(normaliser.scalings.get(quantity.path) or plain, torch.float32, -3)


def _middle(quantities: Quantities) -> list[Tensor]:
    """Two samples in the middle of the inputs' ranges."""
    columns = [_centre(q) for q in quantities.columns for _ in q.column_names]
    matrix = [torch.tensor([columns, columns], dtype=torch.float64)] if columns else []
    return [*matrix, *(torch.full((2, *q.shape), _centre(q)) for q in quantities.input_images)]


def _centre(quantity: Quantity) -> float:
    low, high = quantity.low, quantity.high
    return 0.0 if low is None or high is None else (low + high) / 2
