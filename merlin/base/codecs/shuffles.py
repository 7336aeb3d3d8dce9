"""Rearranges bytes or bits before compression, so that those of equal weight stand together."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from merlin.base.codecs.codec import DecodeError, Filter, MakeStage, Options, copy_exactly
from merlin.base.codecs.plugins import plugin_library, undone_by_plugin

if TYPE_CHECKING:
    from merlin.base.codecs.codec import Array

SHUFFLES = ("none", "byte", "bit")
_BYTES, _BITS = 2, 32008  # HDF5's registered numbers


def shuffle_filters(shuffle: str) -> list[Filter]:
    """The filters of a shuffle that stands before a codec's filter."""
    match shuffle:
        case "byte":
            return [Filter(_BYTES)]
        case "bit":
            import hdf5plugin  # noqa: F401 - registers the filter

            return [Filter(_BITS, (0, 0))]
    return []


def has_compressor(number: int, options: Options) -> bool:
    """Return whether a filter changes the number of bytes; the one that shuffles bits may have a compressor inside."""
    if number == _BITS:
        return len(options) > 4 and options[4] != 0
    return number != _BYTES


class _Unshuffle:
    """HDF5's byte shuffle: first the first bytes of all values, then the second ones …"""

    def __init__(self, itemsize: int) -> None:
        self._itemsize = itemsize
        self._native = native_unshuffle()

    def __call__(self, stored: Array, out: Array) -> None:
        if len(out) % self._itemsize:
            raise DecodeError(f"{len(out)} bytes are no values of {self._itemsize} bytes")
        if self._itemsize == 1 or len(stored) != len(out):
            copy_exactly(stored, out)
        elif self._native is not None:
            self._native(self._itemsize, len(out), stored.ctypes.data, out.ctypes.data)
        else:
            unshuffle(stored, out, self._itemsize)


def unshuffle(stored: Array, out: Array, itemsize: int) -> None:
    """The byte shuffle undone by NumPy."""
    import numpy as np

    planes = stored.reshape(itemsize, -1)
    if itemsize not in (2, 4, 8) or sys.byteorder != "little":
        out.reshape(-1, itemsize)[:] = planes.T
        return
    kind = np.dtype(f"u{itemsize}")
    values = out.view(kind)  # bytes are moved as parts of words, several at a time
    values[:] = planes[itemsize - 1]
    for plane in planes[itemsize - 2 :: -1]:
        np.left_shift(values, kind.type(8), out=values)
        np.bitwise_or(values, plane, out=values)


@cache
def native_unshuffle() -> Callable[[int, int, int, int], int] | None:
    """C-Blosc2's vectorised unshuffle, if hdf5plugin's library has it and a test shows that it works."""
    import numpy as np

    library = plugin_library("blosc2")
    function: Any = getattr(library, "blosc2_unshuffle", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
    values = np.arange(4096, dtype=np.uint32) * np.uint32(0x9E3779B1)
    stored = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)
    found = np.zeros_like(values)
    function(4, values.nbytes, stored.ctypes.data, found.ctypes.data)
    return function if np.array_equal(values, found) else None


UNDO: dict[int, MakeStage] = {
    _BYTES: lambda options: _Unshuffle(options[0]) if options else None,
    _BITS: undone_by_plugin("bshuf", _BITS),
}
