"""Weights of a model as those of the same model with other widths, without looking at what the model is.

A wider model computes what the narrower one did: units that were there get nothing from new ones, whose own weights
are as they were drawn and whose outgoing ones begin at 0 (function-preserving as in Chen et al., "Net2Net", ICLR 2016,
who split units instead). A narrower one keeps the first units, which are the ones that were there longest.

This is right wherever what grows comes last in its dimension: in dense layers, convolutions, and normalisations of
single features; in the code of an image that is flattened channel by channel; in a vector that has what does not grow
in front.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from merlin.train.models.base import Trainee

_BY_UNIT = (_NormBase, nn.PReLU)  # what they do to a unit does not depend on the others
MOST = 4.0  # a capacity stays within this factor of the configured one


class Widths(Struct, frozen=True):
    """How models of other widths are made; `capacity` is the factor of widths in the configuration."""

    capacity: float
    build: Callable[[float], Trainee]


def is_allowed(capacity: float, configured: float) -> bool:
    """True if a model may become this wide or narrow."""
    return configured / MOST <= capacity <= configured * MOST


def transposed(model: nn.Module) -> set[str]:
    """Weights whose first dimension is the layer's input, not its output."""
    layers = (path for path, layer in model.named_modules() if isinstance(layer, _ConvTransposeNd))
    return {f"{path}.weight" if path else "weight" for path in layers}


def fitted(old: Tensor, drawn: Tensor, is_transposed: bool = False) -> Tensor:
    """Weights in the shape of those that were drawn; ValueError if more than their numbers of units differ."""
    common = _common(old.shape, drawn.shape)
    new = drawn.clone()
    if new.ndim > 1:
        source = 0 if is_transposed else 1
        unsource = list(common)
        unsource[source] = slice(common[source].stop, None)
        new[tuple(unsource)] = 0.0
    new[common] = old[common].to(new.device)
    return new


def fitted_moment(name: str, old: Tensor, like: Tensor) -> Tensor:
    """An optimiser's record of a weight in the shape of that weight; other records as they are.

    What is new has no gradients behind it, but its second moment is the mean of the others: from 0 on, Adam would
    make its steps several times too large, because it knows nothing of new weights.
    """
    if not old.ndim or old.shape == like.shape:
        return old.to(like.device, copy=True)
    common = _common(old.shape, like.shape)
    usual = float(old.mean()) if name == "exp_avg_sq" else 0.0
    new = torch.full_like(like, usual, dtype=old.dtype)
    new[common] = old[common].to(new.device)
    return new


def _common(old: torch.Size, new: torch.Size) -> tuple[slice, ...]:
    if len(old) != len(new) or old[2:] != new[2:]:
        raise ValueError(f"{tuple(old)} is no other width of {tuple(new)}")
    return tuple(slice(min(sizes)) for sizes in zip(old, new, strict=True))


def obstacle(model: nn.Module, narrow: nn.Module) -> str | None:
    """Why a model cannot become as wide as another one that was built for less capacity; None if it can."""
    one, other = ({name: p.shape for name, p in m.state_dict().items()} for m in (model, narrow))
    if one.keys() != other.keys():
        return "its layers depend on its capacity, and not their widths alone"
    if one == other:
        return "its capacity changes none of its widths"
    for path, layer in model.named_modules():
        for name, weight in layer.named_parameters(path, recurse=False):
            small = other[name]
            if small == weight.shape:
                continue
            known = isinstance(layer, nn.Linear) or (isinstance(layer, _ConvNd) and layer.groups == 1)
            known = known or (isinstance(layer, _BY_UNIT) and weight.ndim == 1 == len(small))
            if not known or small[2:] != weight.shape[2:]:
                return f"{name} is a weight of {type(layer).__name__}, which cannot be made wider by its ends"
    return None
