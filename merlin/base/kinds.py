"""The kinds of fields and the parts of graphs. A new kind is one entry in `KINDS`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class SampleKind(Struct, frozen=True):
    """What one sample of a field is."""

    name: str
    axes: range  # how many axes a sample may have (of a ragged field: an item); empty: its members say
    example: str = ""  # shapes, as messages show them
    spatial: str = ""  # the letters of its spatial axes; an axis of channels may come with them
    items_are_vectors: bool = False  # the only axis of an item is one of channels

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
    SampleKind("scalar", range(1)),
    SampleKind("series", range(1, 3), "[128]"),
    SampleKind("image", range(2, 4), "[64, 64] or [64, 64, 4]", spatial="hw"),
    SampleKind("volume", range(3, 5), "[32, 32, 32]", spatial="dhw"),
    SampleKind("text", range(1)),
    SampleKind("ragged", range(9), '["*"] or ["*", 3]', items_are_vectors=True),
    SampleKind("graph", range(0)),
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
ROLES = {role.name: role for role in _ROLES}
# of files that hold values of fields
OUTPUT_SUFFIXES = (*(".json", ".npy", ".npz"), *(".csv", ".tab", ".tsv"), *(".h5", ".hdf5"))
DTYPES = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128"),
)
MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10}

AXIS_NAMES = {"h": "y", "w": "x", "d": "z", "c": "channel"}  # what axes are called if nothing else is said
_LETTERS = {
    **{name: letter for letter, name in AXIS_NAMES.items()},
    "height": "h",
    "width": "w",
    "depth": "d",
    "channels": "c",
}


def layout_of(kind: str, num_axes: int, axes: Sequence[str] = ()) -> str:
    """The layout that the names of the axes suggest, else channels last; "" if it is not an image or volume."""
    spatial = KINDS[kind].spatial if kind in KINDS else ""
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
