"""Images as coefficients of their principal components: a linear decoder that is fitted once, and not learned.

Hesthaven, Ubbiali, "Non-intrusive reduced order modeling of nonlinear problems using neural networks", J. Comput. Phys.
363 (2018): a network that predicts a few hundred coefficients is trained in a small part of the time of one that
predicts pixels. The basis is orthonormal, so that errors of coefficients are errors of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from merlin.train.models.outputs import Outputs

_LEAST = 1e-7  # a component's share of the largest one's spread, below which it is rounding


class ImageBasis(nn.Module):
    """All images of a sample <-> (n, size) coefficients, each with a standard deviation of 1 in the samples seen."""

    def __init__(self, outputs: Outputs, size: int) -> None:
        """`size` is the greatest number of components; before `fit`, all images are 0."""
        super().__init__()
        self.outputs = outputs
        numbers = [prod(shape) for shape in outputs.images.values()]
        total = sum(numbers)
        self.size = min(size, total)
        # so that the square of a vector's length is a mean over pixels, and over fields
        factors = [1.0 / (num * len(numbers)) ** 0.5 for num in numbers]
        each = torch.cat([torch.full((n,), f) for n, f in zip(numbers, factors, strict=True)])
        self.register_buffer("factors", each, persistent=False)
        self.register_buffer("mean", torch.zeros(total))
        self.register_buffer("components", torch.zeros(total, self.size))
        self.register_buffer("scale", torch.zeros(self.size))
        self.factors: Tensor
        self.mean: Tensor
        self.components: Tensor
        self.scale: Tensor

    @torch.no_grad()
    def fit(self, values: Mapping[str, Tensor]) -> None:
        """Find the components of these images, at most one less than there are images."""
        vectors = self._vectors(values)
        self.mean.copy_(vectors.mean(0))
        vectors = vectors - self.mean
        # of far fewer samples than pixels, the products of samples tell the same
        spreads, mixtures = torch.linalg.eigh((vectors @ vectors.T).double())
        kept = min(self.size, int((spreads > _LEAST * spreads[-1].clamp(min=1e-30)).sum()))
        mixed = (
            vectors.T @ mixtures[:, -kept:].flip(1).float() if kept else vectors.new_zeros(len(self.mean), 0)
        )
        found = torch.linalg.qr(mixed).Q
        self.components.zero_()
        self.components[:, :kept] = found
        self.scale.zero_()
        self.scale[:kept] = (vectors @ found).square().mean(0).sqrt()

    def encode(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Coefficients (n, size), and what they leave out of each sample's images (n,), as a mean over pixels."""
        # mixed precision would not tell small components
        with torch.no_grad(), torch.autocast(self.mean.device.type, enabled=False):
            vectors = self._vectors(values) - self.mean
            parts = vectors @ self.components
            rest = vectors.square().sum(1) - parts.square().sum(1)
        return parts / self.scale.where(self.scale > 0, torch.inf), rest.clamp(min=0.0)

    def squared_errors(self, made: Tensor, true: Tensor, rest: Tensor) -> Tensor:
        """The errors of the images that coefficients stand for, (n,): a mean over pixels, and over fields."""
        return ((made - true) * self.scale).square().sum(1) + rest

    def decode(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Images (n, C, H, W)."""
        with torch.autocast(self.mean.device.type, enabled=False):
            vectors = ((coefficients.float() * self.scale) @ self.components.T + self.mean) / self.factors
        sizes = [prod(shape) for shape in self.outputs.images.values()]
        parts = vectors.split(sizes, 1)
        images = zip(self.outputs.images.items(), parts, strict=True)
        return {name: part.unflatten(1, shape) for (name, shape), part in images}

    def _vectors(self, values: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([values[name].flatten(1) for name in self.outputs.images], 1) * self.factors
