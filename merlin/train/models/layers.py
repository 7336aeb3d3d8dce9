"""Stacks of layers that the models are made of: dense ones, and convolutions that halve or double an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from merlin.errors import UsageError

Activation = Literal["relu", "leaky_relu", "elu", "silu", "tanh"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
_HALVINGS = 3
_LEAST = 2**_HALVINGS  # pixels of a side
_CHANNELS = (64, 32, 16)  # from the image to the code


class Dense(Struct, frozen=True):
    """A hidden layer: its units, and what follows them."""

    units: int
    activation: str = "relu"
    batch_norm: bool = False
    dropout: float = 0.0


def dense(*units: int, activation: str = "relu", batch_norm: bool = False) -> tuple[Dense, ...]:
    """Hidden layers of one kind."""
    return tuple(Dense(n, activation, batch_norm) for n in units)


def with_activation(layers: Sequence[Dense], activation: str) -> tuple[Dense, ...]:
    return tuple(replace(layer, activation=activation) for layer in layers)


def scaled(layers: Sequence[Dense], capacity: float) -> tuple[Dense, ...]:
    """The same with `capacity` times as many units."""
    return tuple(replace(layer, units=max(1, round(layer.units * capacity))) for layer in layers)


def stack(num_in: int, layers: Sequence[Dense], num_out: int | None = None) -> nn.Sequential:
    """x (n, num_in) -> (n, num_out), the last layer linear; without `num_out` the last hidden layer's values."""
    modules: list[nn.Module] = []
    for layer in layers:
        modules.append(nn.Linear(num_in, layer.units))
        modules.append(ACTIVATIONS[layer.activation]())
        if layer.batch_norm:
            modules.append(nn.BatchNorm1d(layer.units))
        if layer.dropout:
            modules.append(nn.Dropout(layer.dropout))
        num_in = layer.units
    if num_out is not None:
        modules.append(nn.Linear(num_in, num_out))
    return nn.Sequential(*modules)


def he_normal(*stacks: nn.Module | None) -> None:
    """Draw the weights of all but the last dense layer of each stack as He et al. (2015) do for rectifiers.

    Their biases begin at 0. With smaller weights a decoder's images all look alike for hundreds of steps.
    """
    for module in stacks:
        layers = [] if module is None else [m for m in module.modules() if isinstance(m, nn.Linear)]
        for layer in layers[:-1]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)


class Pictures(Struct, frozen=True):
    """The channels (C, H, W) of all images of a sample, one field after another."""

    channels: int
    height: int
    width: int

    @staticmethod
    def of(shapes: Sequence[tuple[int, int, int]]) -> Pictures:
        """Pictures that a model makes.

        Raises UsageError if convolutions cannot see them together, or halve them often enough.
        """
        made = _side_by_side(shapes, "kind", "fields.images")
        if made.height % _LEAST or made.width % _LEAST:
            raise UsageError(
                f"model.kind: cnn needs images whose sides are multiples of {_LEAST}, not {made.height}x{made.width}; "
                "use kind: mlp"
            )
        return made

    @staticmethod
    def seen(shapes: Sequence[tuple[int, int, int]]) -> Pictures:
        """Pictures that a model only sees, so that halving may leave out a line.

        Raises UsageError if nothing would be left.
        """
        made = _side_by_side(shapes, "encoder", "fields.inputs")
        if min(made.height, made.width) < _LEAST:
            raise UsageError(
                f"model.encoder: cnn needs images of at least {_LEAST}x{_LEAST}, not {made.height}x{made.width}; "
                "use encoder: mlp"
            )
        return made

    def code_shape(self, channels: int) -> tuple[int, int, int]:
        """The shape of what the smallest convolution sees."""
        return channels, self.height >> _HALVINGS, self.width >> _HALVINGS


def _side_by_side(shapes: Sequence[tuple[int, int, int]], option: str, key: str) -> Pictures:
    """Images as convolutions see them together, for which they must have the same height and width."""
    sizes = sorted({shape[1:] for shape in shapes})
    if len(sizes) != 1:
        listed = ", ".join(f"{h}x{w}" for h, w in sizes) or "none"
        raise UsageError(
            f"model.{option}: cnn needs images of one size, and these are selected: {listed}; "
            f"choose others in {key}, or {option}: mlp"
        )
    return Pictures(sum(shape[0] for shape in shapes), *sizes[0])


def conv_channels(capacity: float) -> tuple[int, ...]:
    return tuple(max(1, round(n * capacity)) for n in _CHANNELS)


def conv_encoder(pictures: Pictures, capacity: float, activation: str) -> tuple[nn.Sequential, int]:
    """x (n, C, H, W) -> codes (n, k), and k: three convolutions of 4x4 pixels with stride 2."""
    modules: list[nn.Module] = []
    before, channels = pictures.channels, conv_channels(capacity)
    for after in channels:
        modules += [nn.Conv2d(before, after, 4, 2, 1), ACTIVATIONS[activation]()]
        before = after
    code, height, width = pictures.code_shape(before)
    return nn.Sequential(*modules, nn.Flatten()), code * height * width


class ConvDecoder(nn.Module):
    """x (n, k) -> images (n, C, H, W): a dense layer, and three transposed convolutions."""

    def __init__(self, num_in: int, pictures: Pictures, capacity: float, activation: str) -> None:
        super().__init__()
        channels = conv_channels(capacity)[::-1]
        self.code_shape = pictures.code_shape(channels[0])
        code, height, width = self.code_shape
        self.dense = nn.Sequential(nn.Linear(num_in, code * height * width), ACTIVATIONS[activation]())
        modules: list[nn.Module] = []
        for before, after in zip(channels, (*channels[1:], pictures.channels), strict=True):
            modules += [nn.ConvTranspose2d(before, after, 4, 2, 1), ACTIVATIONS[activation]()]
        self.convolutions = nn.Sequential(*modules[:-1])

    def forward(self, x: Tensor) -> Tensor:
        images: Tensor = self.convolutions(self.dense(x).unflatten(1, self.code_shape))
        return images
