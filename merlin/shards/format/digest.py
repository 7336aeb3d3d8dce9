"""Digests of data sets' contents, block by block, so that damage can be narrowed down to rows.

Numeric values are hashed as their little-endian bytes, text as (u64 length, UTF-8 bytes) per value. Wide rows
(`WIDE_BYTES` and more) have digests of their own first, and a block of them is hashed as these: so one pass over the
bytes proves the block and each of its rows (row_check). Blocks hold a fixed number of rows, so a digest depends on
the values alone: not on the host, the time, or how the run was cut into chunks. BLAKE3 is as strong as SHA-256 and
takes half its time or less, even where the processor has instructions for that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from blake3 import blake3

from merlin.shards.format.segments import Array

ALGORITHM = "blake3"
BLOCK_BYTES = 1 << 21
TEXT_BLOCK_ROWS = 1024
WIDE_BYTES = 4096  # of a row; hashing it costs much more than the call that does it


def block_rows(row_bytes: int) -> int:
    """Rows per block: a power of two whose bytes fit a core's cache."""
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    return int(1 << (rows.bit_length() - 1))


def digest_bytes(data: Any) -> str:
    """Return the digest of anything with a buffer of bytes."""
    return blake3(data).hexdigest()


def digest_file_ranges(descriptor: int, ranges: Iterable[tuple[int, int]]) -> str:
    """Return the digest of the bytes [lo, hi) of an open file, range after range; a range ends where the file ends."""
    state = blake3()
    for lo, hi in ranges:
        while lo < hi and (data := os.pread(descriptor, min(1 << 20, hi - lo), lo)):
            state.update(data)
            lo += len(data)
    return state.hexdigest()


def hash64(data: bytes) -> bytes:
    """The first 64 bits of the digest."""
    return blake3(data).digest(length=8)


def digest_text(values: Iterable[str]) -> str:
    """Digest of a block of strings."""
    state = blake3()
    for value in values:
        encoded = value.encode()
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    return state.hexdigest()


def row_digests(block: Array) -> list[bytes]:
    """BLAKE3 of each row of a C-contiguous little-endian numeric block."""
    raw = np.ascontiguousarray(block).reshape(-1).view(np.uint8).reshape(len(block), -1)
    return [blake3(row.data).digest() for row in raw]


def digest_rows(digests: Iterable[bytes]) -> str:
    """Digest of a block of wide rows."""
    return digest_bytes(b"".join(digests))


def digest_array(block: Array) -> str:
    """Digest of a C-contiguous little-endian numeric block (m, *shape of a row), or of a block of str."""
    if block.dtype.kind == "O":
        return digest_text(block.tolist())
    if is_wide(block):
        return digest_rows(row_digests(block))
    return digest_bytes(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def is_wide(block: Array) -> bool:
    """Return whether the rows of a block have digests of their own."""
    return block.dtype.kind != "O" and len(block) > 0 and block.nbytes // len(block) >= WIDE_BYTES


class BlockDigest:
    """`digest_array` of a numeric block that comes in pieces, whose borders need not be those of rows."""

    def __init__(self, row_bytes: int) -> None:
        self._state = blake3()
        self._row_bytes = row_bytes if row_bytes >= WIDE_BYTES else 0
        self._row, self._left = blake3(), row_bytes

    def update(self, content: Array) -> None:
        """Add bytes (n,)."""
        if not self._row_bytes:
            self._state.update(content.data)
            return
        data = content.data
        while len(data):
            part = data[: self._left]
            self._row.update(part)
            self._left -= len(part)
            data = data[len(part) :]
            if not self._left:
                self._state.update(self._row.digest())
                self._row, self._left = blake3(), self._row_bytes

    def hexdigest(self) -> str:
        """Return the digest of the rows that were added; a row that has not ended is no part of it."""
        return self._state.hexdigest()


def combine(*parts: Any) -> str:
    """Digest of a JSON-able structure, e.g. of (dtype, shape, block digests)."""
    return digest_bytes(json.dumps(parts, separators=(",", ":"), sort_keys=True).encode())
