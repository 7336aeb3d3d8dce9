"""Arrays that start on a cache line.

`np.empty` of a large array often starts 16 bytes after a page. Copying a mapped row into such a place takes
four times as long on processors whose block moves want both ends aligned alike (seen on AMD EPYC).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from merlin.shards.format.segments import Array

CACHE_LINE = 64


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = CACHE_LINE) -> Array:
    """Like `np.empty`, starting at a multiple of `alignment` bytes (text, being Python objects, excepted)."""
    if dtype.kind == "O":
        return np.empty(shape, dtype)
    num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    memory = np.empty(num_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + num_bytes].view(dtype).reshape(shape)


def copy_rows(source: Array, rows: Sequence[int], out: Array, places: Sequence[int]) -> None:
    """out[places[k]] = source[rows[k]] for C-contiguous arrays of large rows, at any alignment."""
    unit = np.uint64 if source[:1].nbytes % 8 == 0 else np.uint8
    wide = source.reshape(len(source), -1).view(unit)
    target = out.reshape(len(out), -1).view(unit)
    if target.ctypes.data % CACHE_LINE == 0:
        for i, j in zip(places, rows, strict=True):
            target[i] = wide[j]
    else:  # a vector loop that copies the bits, as a block move would crawl
        for i, j in zip(places, rows, strict=True):
            np.bitwise_or(wide[j], unit(0), out=target[i])
