"""Undo HDF5's filters outside of the HDF5 library, whose lock lets one thread work at a time.

The filters are those that HDF5 itself would call: hdf5plugin's, through the interface that HDF5 loads plugins by
(`H5PLget_plugin_info`), zlib, and the byte shuffle. A pipeline with anything else is left to the library.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Stage = Callable[
    [Array, Array], None
]  # undo one filter: from bytes, into as many bytes as there are room for

_DEFLATE, _SHUFFLE, _BITSHUFFLE = 1, 2, 32008  # HDF5's registered numbers
_PLUGINS = {32015: "zstd", 32026: "blosc2", _BITSHUFFLE: "bshuf"}
_REVERSE = 0x0100  # H5Z_FLAG_REVERSE
_CLASS_VERSION = 1


class DecodeError(Exception):
    """The bytes are not what the filter once made."""


class Pipeline:
    """The filters of one data set, undone last to first; chunks are `size` bytes when decoded."""

    def __init__(self, stages: list[Stage], size: int) -> None:
        """`stages` in the order in which they were applied."""
        self._stages = stages
        self.size = size
        self._local = threading.local()

    def decode(self, stored: Array, mask: int, out: Array) -> None:
        """Decode the bytes of one chunk into `out`, `size` contiguous bytes.

        Bit i of `mask` says that filter i was not applied. Raises DecodeError.
        """
        todo = [stage for i, stage in enumerate(self._stages) if not mask >> i & 1]
        if not todo:
            _copy(stored, out)
        for number, stage in enumerate(reversed(todo)):
            # all but the first one here, the compressor, keep the size
            target = out if number == len(todo) - 1 else self._scratch(number)
            stage(stored, target)
            stored = target

    def _scratch(self, number: int) -> Array:
        """A thread's own memory between two stages."""
        kept: dict[str, Array] = self._local.__dict__
        key = f"scratch{number}"
        if key not in kept:
            kept[key] = np.empty(self.size, np.uint8)
        return kept[key]


def make_pipeline(filters: list[tuple[int, tuple[int, ...]]], size: int) -> Pipeline | None:
    """The pipeline of a data set from its filters' (number, options); None: only the library can undo it."""
    stages = [_stage(number, options) for number, options in filters]
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages) or any(_compresses(number, options) for number, options in filters[:-1]):
        return None
    return Pipeline(known, size)


def _compresses(number: int, options: tuple[int, ...]) -> bool:
    """Whether a filter changes the number of bytes; bitshuffle may have a compressor inside."""
    if number == _BITSHUFFLE:
        return len(options) > 4 and options[4] != 0
    return number != _SHUFFLE


def _stage(number: int, options: tuple[int, ...]) -> Stage | None:
    if number == _DEFLATE:
        return _inflate
    if number == _SHUFFLE:
        return _Unshuffle(options[0]) if options else None
    if number in _PLUGINS:
        function = _plugin(_PLUGINS[number], number)
        return None if function is None else _Plugin(function, options, _PLUGINS[number])
    return None


def _copy(stored: Array, out: Array) -> None:
    if len(stored) != len(out):
        raise DecodeError(f"{len(out)} bytes expected, {len(stored)} found")
    out[:] = stored


def _inflate(stored: Array, out: Array) -> None:
    try:
        data = zlib.decompress(stored.data, bufsize=len(out))
    except zlib.error as e:
        raise DecodeError(str(e)) from e
    _copy(np.frombuffer(data, np.uint8), out)


class _Unshuffle:
    """HDF5's byte shuffle: first the first bytes of all values, then the second ones …"""

    def __init__(self, itemsize: int) -> None:
        self._itemsize = itemsize
        self._native = _native_unshuffle()

    def __call__(self, stored: Array, out: Array) -> None:
        if len(stored) != len(out) or len(out) % self._itemsize:
            raise DecodeError(f"{len(out)} bytes expected, {len(stored)} found")
        if self._itemsize == 1:
            out[:] = stored
        elif self._native is not None:
            self._native(self._itemsize, len(out), stored.ctypes.data, out.ctypes.data)
        else:
            unshuffle(stored, out, self._itemsize)


def unshuffle(stored: Array, out: Array, itemsize: int) -> None:
    """The byte shuffle undone by NumPy."""
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
def _native_unshuffle() -> Callable[[int, int, int, int], int] | None:
    """C-Blosc2's vectorised unshuffle, if hdf5plugin's library has it and it does what it should."""
    library = _plugin_library("blosc2")
    function: Any = getattr(library, "blosc2_unshuffle", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
    values = np.arange(4096, dtype=np.uint32) * np.uint32(0x9E3779B1)
    stored = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 4).T)
    found = np.zeros_like(values)
    function(4, values.nbytes, stored.ctypes.data, found.ctypes.data)
    return function if np.array_equal(values, found) else None


# hdf5plugin's filters


class _FilterClass(ctypes.Structure):
    """HDF5's H5Z_class2_t."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    )


class _Plugin:
    """Calls a filter as HDF5 does: it takes memory from malloc, and gives other memory back."""

    def __init__(self, function: Any, options: tuple[int, ...], name: str) -> None:
        self._function = function
        self._options = (ctypes.c_uint * len(options))(*options)
        self._name = name
        self._libc = _libc()

    def __call__(self, stored: Array, out: Array) -> None:
        size = len(stored)
        memory = ctypes.c_void_p(self._libc.malloc(max(1, size)))
        room = ctypes.c_size_t(size)
        try:
            ctypes.memmove(memory.value, stored.ctypes.data, size)  # type: ignore[arg-type]
            options = ctypes.addressof(self._options)
            found = self._function(
                _REVERSE, len(self._options), options, size, ctypes.byref(room), ctypes.byref(memory)
            )
            if found != len(out):
                raise DecodeError(f"{self._name}: {len(out)} bytes expected, {found} found")
            ctypes.memmove(out.ctypes.data, memory.value, found)  # type: ignore[arg-type]
        finally:
            self._libc.free(memory)


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library


@cache
def _plugin_library(name: str) -> Any:
    """hdf5plugin's library of a filter; None if there is none, or it may have another malloc than ours."""
    if sys.platform not in ("linux", "darwin"):
        return None
    try:
        import hdf5plugin

        return ctypes.CDLL(hdf5plugin.get_config().registered_filters[name])
    except (ImportError, OSError, KeyError, AttributeError):
        return None


@cache
def _plugin(name: str, number: int) -> Any:
    """The C function of a filter, called without the GIL; None if the library must be asked."""
    library = _plugin_library(name)
    describe: Any = getattr(library, "H5PLget_plugin_info", None)
    if describe is None:
        return None
    describe.restype = ctypes.POINTER(_FilterClass)
    found = describe().contents
    if found.version != _CLASS_VERSION or found.id != number or not found.decoder_present or not found.filter:
        return None
    kind = ctypes.CFUNCTYPE(
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_void_p),
    )
    return kind(found.filter)
