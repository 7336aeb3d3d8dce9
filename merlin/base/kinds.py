"""The kinds of fields and the parts of graphs. A new kind is one entry in `_KINDS`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct


class SampleKind(Struct, frozen=True):
    """What one sample of a field is."""

    name: str
    chart: str = ""  # the charts that show them; "" for none
    axes: range = range(0)  # how many a sample (of a ragged field: an item) may have; empty: nothing is said
    example: str = ""  # shapes, as messages show them
    spatial: str = ""  # the letters of its spatial axes; an axis of channels may come with them
    holds: Literal["numbers", "text", "members"] = "numbers"
    is_ragged: bool = False  # always; the only axis of an item is one of channels

    @property
    def is_number(self) -> bool:
        """A sample, or an item, is one number."""
        return self.holds == "numbers" and self.axes == range(1)

    @property
    def is_picture(self) -> bool:
        """A sample is a picture as it is, with or without channels."""
        return len(self.spatial) == 2

    @property
    def is_text(self) -> bool:
        return self.holds == "text"

    @property
    def has_members(self) -> bool:
        """It has parts, each of which is a field."""
        return self.holds == "members"

    def has_layout(self, letters: str) -> bool:
        """Return whether the letters are those of its axes, each once, in any order."""
        return bool(self.spatial) and sorted(letters) in (sorted(self.spatial), sorted(self.spatial + "c"))


class GraphRole(Struct, frozen=True):
    """What a member of a graph is."""

    name: str
    item: str  # what its items belong to: "node", "edge", or "" for the graph itself
    dtype: str = ""  # if nothing is said; "" = the graph's
    shape: tuple[int | None, ...] = ()  # if nothing is said; None first: any number of items


_KINDS = (
    SampleKind("scalar", "scalars", range(1)),
    SampleKind("series", "series", range(1, 3), "[128]"),
    SampleKind("image", "images", range(2, 4), "[64, 64] or [64, 64, 4]", spatial="hw"),
    SampleKind("volume", "volumes", range(3, 5), "[32, 32, 32]", spatial="dhw"),
    SampleKind("text", "", range(1), holds="text"),
    SampleKind("ragged", "series", range(9), '["*"] or ["*", 3]', is_ragged=True),
    SampleKind("graph", "graphs", range(0), holds="members"),
)
_ROLES = (
    GraphRole("nodes", "node"),
    GraphRole("positions", "node"),
    GraphRole("edges", "edge", "int64", (None, 2)),
    GraphRole("edge_features", "edge"),
    GraphRole("node_targets", "node"),
    GraphRole("targets", ""),
)
KINDS = {kind.name: kind for kind in _KINDS}
# the kinds of charts, in their order: two of them show no values of fields, but inputs and numbers of items
CHARTS = ("inputs", *dict.fromkeys(kind.chart for kind in _KINDS if kind.chart), "ragged")
ROLES = {role.name: role for role in _ROLES}
NODE_ROLES = tuple(role.name for role in _ROLES if role.item == "node")
# of files that hold values of fields
OUTPUT_SUFFIXES = (*(".json", ".npy", ".npz"), *(".csv", ".tab", ".tsv"), *(".h5", ".hdf5"))
DTYPES = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128"),
)
MAX_GUESSED_CHANNELS = 4  # a first or last axis up to here is taken for channels, if nothing is said
MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10}

AXIS_NAMES = {"h": "y", "w": "x", "d": "z", "c": "channel"}  # what axes are called if nothing else is said
_LETTERS = {name: letter for letter, name in AXIS_NAMES.items()}
_LETTERS |= {"height": "h", "width": "w", "depth": "d", "channels": "c"}


def sample_kind(name: str) -> SampleKind:
    """The kind of this name.

    One of a later version has no chart, no axes and no spatial axes: its values can only be read.
    """
    return KINDS.get(name) or SampleKind(name)


def kind_of_shape(shape: Sequence[int]) -> SampleKind | None:
    """The kind that numbers of this shape have if nothing is said about them; None for too many axes.

    That is the kind with so many axes beside channels, unless the first or the last axis is as short as one of
    channels; else the kind that has so many axes together with channels.
    """
    usual = {
        kind.axes.start: kind for kind in reversed(_KINDS) if kind.holds == "numbers" and not kind.is_ragged
    }
    num, less = len(shape), usual.get(len(shape) - 1)
    has_channels = less is not None and less.spatial and min(shape[0], shape[-1]) <= MAX_GUESSED_CHANNELS
    return less if has_channels or num not in usual else usual[num]


def layout_of(kind: str, num_axes: int, axes: Sequence[str] = ()) -> str:
    """The layout that the names of the axes suggest, else channels last; "" if it is not an image or volume."""
    spatial = sample_kind(kind).spatial
    if not spatial or num_axes not in (len(spatial), len(spatial) + 1):
        return ""
    wanted = spatial + "c" * (num_axes - len(spatial))
    named = "".join(_LETTERS.get(name.lower(), "?") for name in axes)
    if sorted(named) == sorted(wanted):
        return named
    if len(wanted) > len(spatial) and named.count("c") == 1 and len(named) == num_axes:
        at = named.index("c")
        return spatial[:at] + "c" + spatial[at:]
    return wanted


def axes_of(layout: str, *, ragged: bool = False) -> tuple[str, ...]:
    """The names of the axes of a layout; () without a layout."""
    if not layout:
        return ()
    return (*(["item"] if ragged else []), *(AXIS_NAMES[letter] for letter in layout))
