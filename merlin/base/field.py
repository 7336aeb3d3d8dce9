"""One field of a data set: what a sample of it is. Planning, writing, reading and learning all use this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from merlin.base.kinds import SampleKind, layout_of, sample_kind

if TYPE_CHECKING:
    import numpy as np

TEXT_DTYPE = "text"  # of text, wherever a dtype is written down


class Field(Struct, frozen=True, kw_only=True):
    """A field; of a ragged one, `shape`, `layout` and `channels` are those of an item."""

    name: str  # of a member of a graph: "<graph>.<role>"
    kind: str = "scalar"  # one of merlin.base.kinds
    dtype: str = "float64"  # a NumPy dtype, little-endian; of text it means nothing
    shape: tuple[int, ...] = ()  # of one sample
    ragged: bool = False  # a sample has any number of items, along a first axis that `shape` leaves out
    units: str = ""
    description: str = ""
    axes: tuple[str, ...] = ()  # names of a sample's axes, e.g. ("y", "x", "channel"), the variable one first
    layout: str = ""  # of images and volumes, a letter per axis of `shape`: h w d c, e.g. "hwc"
    channels: tuple[str, ...] = ()  # names along the channel axis
    graph: str = ""  # the graph that it is a member of, in the part `role`
    role: str = ""
    finite: bool = True  # False: NaN and infinity are values, too
    expression: str = ""  # of a derived field: over fields, input labels and parameters
    compression: str = ""  # the codec's name
    shuffle: str = ""  # none | byte | bit
    keep_bits: int | None = None  # mantissa bits that are kept; None = all

    @property
    def path(self) -> str:
        """Its path in a shard: of a data set, or for a ragged field of a group with `values` and `offsets`."""
        return f"fields/{self.graph}/{self.role}" if self.graph else f"fields/{self.name}"

    @property
    def ndim(self) -> int:
        """Axes of one sample, with the one of variable length."""
        return len(self.shape) + self.ragged

    @property
    def sample_kind(self) -> SampleKind:
        """What one sample of it is; of a kind of a later version nothing is known."""
        return sample_kind(self.kind)

    @property
    def is_compressed(self) -> bool:
        return self.compression not in ("", "none")

    @property
    def is_text(self) -> bool:
        return self.sample_kind.is_text

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Little-endian, in memory and in files; text is objects in memory, which are str."""
        return dtype_of(TEXT_DTYPE if self.is_text else self.dtype)

    @property
    def item_bytes(self) -> int:
        """Bytes of one sample, or of one item of a ragged field; a text counts as a reference."""
        return self.value_dtype.itemsize * prod(self.shape)

    @property
    def full_layout(self) -> str:
        """The layout, if need be from the names of the axes; "" for a field that is not an image or volume."""
        return self.layout or layout_of(self.kind, len(self.shape), self.axes[self.ragged :])

    @property
    def channel_axis(self) -> int | None:
        """The axis of `shape` that separates channels; None if there is none."""
        return channel_axis(
            self.kind, len(self.shape), layout=self.layout, axes=self.axes, ragged=self.ragged
        )

    @property
    def channel_axis_from_end(self) -> int | None:
        """The same axis as a negative number, which is right for samples and for batches of them."""
        axis = self.channel_axis
        return None if axis is None else axis - len(self.shape)

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The axes of `shape` in the order depth, height, width; none for a field that is not an image or volume."""
        layout = self.full_layout
        return tuple(layout.index(letter) for letter in "dhw" if letter in layout)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns that a number or a series has in a matrix."""
        return column_names(self.name, self.shape)


def channel_axis(
    kind: str, num_axes: int, *, layout: str = "", axes: Sequence[str] = (), ragged: bool = False
) -> int | None:
    """Which of the axes of a sample (of a ragged field: of an item) separates channels; None if none does.

    It is the layout's c, else the axis named "channel", else the only axis of an item of kind ragged, else the last
    axis of an image or volume that has one more than its spatial ones. `axes` are the names of all axes, the variable
    one first.
    """
    if layout:
        return layout.index("c") if "c" in layout else None
    if "channel" in axes and len(axes) == num_axes + ragged:
        return axes.index("channel") - ragged
    known = sample_kind(kind)
    if known.is_ragged:
        return 0 if num_axes == 1 else None
    return num_axes - 1 if known.spatial and num_axes > len(known.spatial) else None


@cache
def dtype_of(written: str) -> np.dtype[Any]:
    """The little-endian NumPy type that a plan, a sidecar or a manifest names; objects for text."""
    import numpy as np

    return np.dtype(object) if written == TEXT_DTYPE else np.dtype(written).newbyteorder("<")


def column_names(name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The names of the columns that a number or a series has in a matrix: "x", or "x[0]", "x[1]", …"""
    return tuple(f"{name}[{i}]" for i in range(shape[0])) if shape else (name,)
