"""Digests of data sets' contents, block by block, so that damage can be narrowed down to rows.

Numeric values are hashed as their little-endian bytes, text as (u64 length, UTF-8 bytes) per value. Blocks
hold a fixed number of rows, so a digest depends on the values alone: not on the host, the time, or how the
run was cut into chunks. SHA-256 is used because current CPUs have instructions for it; it is twice as fast as
BLAKE2 there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

ALGORITHM = "sha256"
BLOCK_BYTES = 1 << 21
TEXT_BLOCK_ROWS = 1024
TEXT_DTYPE = "text"


def block_rows(row_bytes: int) -> int:
    """Rows per block: a power of two whose bytes fit a core's cache."""
    rows = max(1, BLOCK_BYTES // max(1, row_bytes))
    return int(1 << (rows.bit_length() - 1))


def digest_bytes(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_text(values: Iterable[str]) -> str:
    """Digest of a block of strings."""
    state = hashlib.sha256()
    for value in values:
        encoded = value.encode()
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    return state.hexdigest()


def digest_array(block: np.ndarray[Any, Any]) -> str:
    """Digest of a C-contiguous little-endian numeric block, or of a block of str."""
    if block.dtype.kind == "O":
        return digest_text(block.tolist())
    return digest_bytes(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def combine(*parts: Any) -> str:
    """Digest of a JSON-able structure, e.g. of (dtype, shape, block digests)."""
    return digest_bytes(json.dumps(parts, separators=(",", ":"), sort_keys=True).encode())
