"""Many files in one stretch of addresses, so that a column of all shards is one array.

Address space is reserved first, without memory, and pieces of files are then mapped into it at places of our
choice. The constants are those of Linux.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from ctypes import c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from merlin.shards.format.segments import Array

PAGE = mmap.PAGESIZE
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_FAILED = c_void_p(-1).value
_USUAL_MAX_MAPS = 65530


@cache
def map_limit() -> int:
    """How many maps readers of one process may hold: a quarter of what the system allows."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        allowed = _USUAL_MAX_MAPS
    return max(64, allowed // 4)


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = c_void_p
    library.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_int64]
    library.munmap.argtypes = [c_void_p, c_size_t]
    library.mprotect.argtypes = [c_void_p, c_size_t, c_int]
    library.madvise.argtypes = [c_void_p, c_size_t, c_int]
    return library


class AddressRange:
    """`size` bytes of addresses that belong to nothing until files are placed there, read-only.

    Unmapped when it and the last array over it are gone. A place that no file was put at must not be touched.
    """

    def __init__(self, size: int) -> None:
        """Raises OSError if the system refuses."""
        self.size = -(-max(1, size) // PAGE) * PAGE
        self.address = _map(None, self.size, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
        # not at the end of the interpreter, when other threads may still read
        weakref.finalize(self, _libc().munmap, self.address, self.size).atexit = False

    def place(self, at: int, descriptor: int, offset: int, size: int) -> None:
        """Put bytes [offset, offset + size) of an open file at `at`; both are multiples of `PAGE`.

        Raises OSError if the system refuses, ValueError for what does not fit or what the file does not have:
        touching that would kill the process.
        """
        if at % PAGE or offset % PAGE or at < 0 or at + size > self.size:
            raise ValueError(f"bytes {offset} to {offset + size} cannot be placed at {at} of {self.size}")
        if offset + size > os.fstat(descriptor).st_size:
            raise ValueError(f"the file ends before byte {offset + size}")
        if size:
            _map(self.address + at, size, _PROT_READ, _MAP_SHARED | _MAP_FIXED, descriptor, offset)

    def write(self, at: int, data: bytes) -> None:
        """Put a copy of `data` at `at`, a multiple of `PAGE`; raises as `place`."""
        if at % PAGE or at < 0 or at + len(data) > self.size:
            raise ValueError(f"{len(data)} bytes cannot be put at {at} of {self.size}")
        if data:
            flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
            address = _map(self.address + at, len(data), _PROT_READ | _PROT_WRITE, flags, -1, 0)
            ctypes.memmove(address, data, len(data))
            _libc().mprotect(address, len(data), _PROT_READ)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], at: int = 0) -> Array:
        """Read-only view that keeps the range mapped."""
        return np.asarray(_Window(self, at, dtype, shape))


class _Window:
    """What NumPy makes an array of, and holds as its base."""

    def __init__(self, owner: AddressRange, at: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if at + dtype.itemsize * int(np.prod(shape, dtype=np.int64)) > owner.size:
            raise ValueError(f"an array {dtype} {shape} at {at} leaves the range of {owner.size} bytes")
        self.owner = owner
        self.__array_interface__ = {
            "data": (owner.address + at, True),
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    found = _libc().mmap(address, size, protection, flags, descriptor, offset)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    return int(found)


def map_file(descriptor: int) -> Array:
    """A complete file as read-only bytes, without keeping the file open."""
    size = os.fstat(descriptor).st_size
    if not size:
        return np.zeros(0, np.uint8)
    found = AddressRange(size)
    found.place(0, descriptor, 0, size)
    return found.array(np.dtype(np.uint8), (size,))


def ask_for(address: int, size: int) -> None:
    """Have the system begin to read these bytes of mapped files, without waiting. Only advice: nothing is raised."""
    begin = address // PAGE * PAGE
    _libc().madvise(begin, address + size - begin, mmap.MADV_WILLNEED)
