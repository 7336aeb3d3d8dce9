"""What a codec is: the filters of HDF5's pipeline that compress a data set, and how they are undone without HDF5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

Options = tuple[int, ...]


class Filter(NamedTuple):
    """A filter of HDF5's pipeline."""

    number: int  # as it is registered with HDF5
    options: Options = ()


class DecodeError(Exception):
    """The bytes are not what the filter once made."""


# undoes one filter: decodes bytes into an array, which they have to fill exactly; raises DecodeError
Stage = Callable[["Array", "Array"], None]
# the stage for a filter's options; None if only the HDF5 library can undo it
MakeStage = Callable[[Options], Stage | None]


class Codec(Struct, frozen=True):
    """A way of compressing. Files of any level are read alike."""

    name: str
    levels: range
    usual_level: int
    filters: Callable[[str, int], list[Filter]]  # for a shuffle and a level
    undo: Mapping[int, MakeStage]  # by the number of the filter that compresses


def copy_exactly(stored: Array, out: Array) -> None:
    """Copy bytes into an array of the same size. Raises DecodeError if the sizes differ."""
    if len(stored) != len(out):
        raise DecodeError(f"{len(out)} bytes expected, {len(stored)} found")
    out[:] = stored
