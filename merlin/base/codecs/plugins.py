"""Filters of hdf5plugin, called as HDF5 calls them: by the interface through which it loads plugins
(`H5PLget_plugin_info`), but without its lock, which lets one thread work at a time."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from merlin.base.codecs.codec import DecodeError, Filter, MakeStage, Options, Stage

if TYPE_CHECKING:
    from merlin.base.codecs.codec import Array

_REVERSE = 0x0100  # H5Z_FLAG_REVERSE
_CLASS_VERSION = 1


def plugin_filter(made: Any) -> Filter:
    """The filter that an option of hdf5plugin (`hdf5plugin.Zstd(…)`) stands for."""
    return Filter(int(made["compression"]), tuple(int(option) for option in made["compression_opts"]))


def undone_by_plugin(name: str, number: int) -> MakeStage:
    """How a filter is undone by the plugin that hdf5plugin calls `name`."""

    def make(options: Options) -> Stage | None:
        function = plugin_function(name, number)
        return None if function is None else _Plugin(function, options, name)

    return make


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
    """A stage that calls the filter. It takes memory from malloc, and gives other memory back."""

    def __init__(self, function: Any, options: Options, name: str) -> None:
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
def plugin_library(name: str) -> Any:
    """hdf5plugin's library of a filter; None if there is none, or it may have another malloc than ours."""
    if sys.platform not in ("linux", "darwin"):
        return None
    try:
        import hdf5plugin

        return ctypes.CDLL(hdf5plugin.get_config().registered_filters[name])
    except (ImportError, OSError, KeyError, AttributeError):
        return None


@cache
def plugin_function(name: str, number: int) -> Any:
    """The C function of a filter, called without the GIL; None if the library must be asked."""
    library = plugin_library(name)
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
