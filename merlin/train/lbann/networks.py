"""The stacks of layers of a model as plain data, read off the PyTorch modules themselves.

A layer is (key, kind, *values), where the key is PyTorch's: weights are called as they are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from torch import nn

from merlin.errors import UsageError
from merlin.train.models.layers import ConvDecoder

Layer = tuple[Any, ...]
Start = Literal["uniform", "he_normal", "file"]

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
}


class Network(Struct, frozen=True):
    """A stack, the phase that trains it ("" for none), and where its first weights come from.

    uniform: in ±1/√(fan in), as PyTorch draws them. he_normal: the last dense layer is uniform, biases of the others
    begin at 0. file: they were trained before. `gain` multiplies the first weights of the first dense layer.
    """

    path: str  # of the module in the model
    module: nn.Module
    phase: str
    start: Start = "uniform"
    gain: float = 1.0

    def table(self) -> dict[str, Any]:
        """The network as the script has it."""
        layers = list(layers_of(self.module))
        return {"phase": self.phase, "start": self.start, "gain": self.gain, "layers": layers}


def drawn(module: nn.Module) -> Start:
    """How the weights of a newly built stack were drawn; where they are He normal, biases are 0."""
    dense = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return "he_normal" if len(dense) > 1 and not bool(dense[0].bias.any()) else "uniform"


def layers_of(module: nn.Module) -> Iterator[Layer]:
    """The layers of a stack, or the one that it is. Raises UsageError for one that LBANN has no counterpart of."""
    if isinstance(module, ConvDecoder):
        for key, *rest in layers_of(module.dense):
            yield f"dense.{key}", *rest
        yield "", "reshape", list(module.code_shape)
        for key, *rest in layers_of(module.convolutions):
            yield f"convolutions.{key}", *rest
    elif isinstance(module, nn.Sequential):
        for key, child in module.named_children():
            yield (key, *_described(child))
    else:
        yield ("", *_described(module))


def _described(layer: nn.Module) -> Layer:
    """Kind and values of a layer; "dense" and convolutions have their fan in behind."""
    if isinstance(layer, nn.Linear):
        return "dense", layer.out_features, layer.in_features
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        kind = "conv" if isinstance(layer, nn.Conv2d) else "deconv"
        height, width = layer.kernel_size
        # what PyTorch takes for the fan in
        first = layer.in_channels if kind == "conv" else layer.out_channels
        sizes = (layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))
        return kind, layer.out_channels, *sizes, first * height * width
    if isinstance(layer, nn.BatchNorm1d):
        return "batch_norm", layer.num_features, 1 - (layer.momentum or 0.0), layer.eps
    if isinstance(layer, nn.Dropout):
        return "dropout", 1 - layer.p
    if isinstance(layer, nn.Flatten):
        return ("flatten",)
    if type(layer) in _ACTIVATIONS:
        return (_ACTIVATIONS[type(layer)],)
    raise UsageError(f"a layer {type(layer).__name__} cannot be written for LBANN")
