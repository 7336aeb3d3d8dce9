"""A check value for every row of a shard: tells which rows of a damaged block are still what was written.

A block's digest proves all of its rows or none. The check value of a row is a 64-bit hash of its number and its
values over all columns of a group, so a row can be proven on its own, wherever it is found: in a damaged file, or
in an older version of the shard. Sidecars keep two per row: of `fields/` (what a task made), and of `inputs/` and
`parameters/` (what it was given).

Of a wide row, the beginning of its digest is hashed, which is computed anyway for the digest of its block.
The values of a narrow one are taken as 64-bit words, mixed, and summed with odd weights modulo 2^64 (a
multilinear hash): a change of a single word is always seen, any other with a probability of about 1 - 2^-64.
It is no protection against an adversary; the digests are. It runs at several times their speed.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.digest import WIDE_BYTES, hash64, is_wide, row_digests
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import mix64

FIELDS, GIVEN = 0, 1
NUM_GROUPS = 2
_GROUPS = {"fields": FIELDS, "inputs": GIVEN, "parameters": GIVEN}

# few long operations: each one lets other threads run, and has to wait for its turn again
_WORK_BYTES = 1 << 20
_NARROW_BYTES = 64  # rows up to here whose size is no multiple of 8 are widened word by word
_HALF, _ONE = np.uint64(32), np.uint64(1)
_ITEM = np.uint64(0x9E3779B97F4A7C15)
# memory for intermediate values; fresh memory costs more than the arithmetic in it
_local = threading.local()


def group_of(name: str) -> int | None:
    """The group that a data set belongs to; None if it is in no check value."""
    return None if name.endswith("/offsets") else _GROUPS.get(name.partition("/")[0])


class RowChecks:
    """The check values of some rows, added up column by column while the columns are written or read."""

    def __init__(self, rows: Array) -> None:
        """`rows` (n,): the rows' numbers in the data set."""
        base = mix64(np.asarray(rows, dtype=np.int64).astype(np.uint64))
        self.values = np.stack([base] * NUM_GROUPS, axis=1)  # (n, NUM_GROUPS)
        self.offsets: dict[str, Array] = {}  # (n + 1,) of the ragged columns that `add` will see

    def add(self, name: str, lo: int, block: Array, digests: Sequence[bytes] | None = None) -> None:
        """Add a block of any column: little-endian and C-contiguous, or str objects.

        It holds rows, or items of a column that `offsets` has, and begins with number `lo` of them. `digests` are
        those of its rows, where they are wide and known (`digest.row_digests`).
        """
        if group_of(name) is None or not len(block):
            return
        hashes = _hashes(block) if digests is None else _beginnings(digests)
        if name in self.offsets:
            self._add_items(name, lo, hashes, self.offsets[name])
        else:
            self.values[lo : lo + len(hashes), group_of(name)] += hashes * _column_weight(name)

    def part(self, lo: int, hi: int) -> RowChecks:
        """Rows [lo, hi), sharing the memory of their values."""
        part = RowChecks.__new__(RowChecks)
        part.values, part.offsets = self.values[lo:hi], {}
        return part

    def add_items(self, name: str, lo: int, block: Array, offsets: Array) -> None:
        """Add items [lo, lo + len(block)) of a ragged column; row r has items [offsets[r], offsets[r + 1])."""
        if group_of(name) is not None and len(block):
            self._add_items(name, lo, _hashes(block), offsets)

    def _add_items(self, name: str, lo: int, hashes: Array, offsets: Array) -> None:
        hi = lo + len(hashes)
        first = int(np.searchsorted(offsets, lo, side="right")) - 1
        last = int(np.searchsorted(offsets, hi, side="left"))
        ends = np.clip(offsets[first : last + 1], lo, hi)
        places = np.arange(lo, hi, dtype=np.int64) - np.repeat(offsets[first:last], np.diff(ends))
        mixed = (_mix(hashes) + _ITEM) * (places.astype(np.uint64) * np.uint64(2) + _ONE)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
        self.values[first:last, group_of(name)] += np.diff(sums[ends - lo]) * _column_weight(name)


def encode(values: Array) -> str:
    """Check values (n, NUM_GROUPS) as text."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<u8").tobytes()).decode()


def decode(text: str) -> Array:
    """(n, NUM_GROUPS) uint64; n = 0 for "". Raises ShardError for what `encode` has not made."""
    try:
        data = base64.b64decode(text, validate=True)
        return np.frombuffer(data, dtype="<u8").reshape(-1, NUM_GROUPS).astype(np.uint64)
    except ValueError as e:
        raise ShardError(f"not a list of check values: {e}") from e


def _hashes(block: Array) -> Array:
    """(m,) uint64 of the rows of a block."""
    if block.dtype.kind == "O":
        return _beginnings(hash64(text.encode(errors="surrogateescape")) for text in block.tolist())
    if is_wide(block):
        return _beginnings(row_digests(block))
    row_bytes = block.dtype.itemsize * int(np.prod(block.shape[1:], dtype=np.int64))
    out = np.zeros(len(block), np.uint64)
    if row_bytes == 0:
        return out
    raw = np.ascontiguousarray(block).reshape(-1).view(np.uint8).reshape(len(block), row_bytes)
    step = max(1, _WORK_BYTES // row_bytes)
    for lo in range(0, len(raw), step):
        words = _words(raw[lo : lo + step])
        mixed = _scratch(words.size).reshape(words.shape)
        np.right_shift(words, _HALF, out=mixed)
        np.bitwise_xor(mixed, words, out=mixed)
        np.einsum("ij,j->i", mixed, _weights()[: words.shape[1]], out=out[lo : lo + step])
    return out


def _beginnings(digests: Iterable[bytes]) -> Array:
    """The first 64 bits of each digest."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), dtype="<u8").astype(np.uint64)


def _scratch(size: int) -> Array:
    """`size` words of the thread's own."""
    memory: Array | None = getattr(_local, "words", None)
    if memory is None or len(memory) < size:
        memory = _local.words = np.empty(size, np.uint64)
    return memory[:size]


def _words(raw: Array) -> Array:
    """Rows of bytes (m, b) as rows of 64-bit words."""
    num_bytes = raw.shape[1]
    if num_bytes % 8 == 0:
        return np.asarray(raw.view("<u8"))
    if num_bytes <= _NARROW_BYTES:
        unit = num_bytes & -num_bytes  # the largest power of two that divides it: 1, 2 or 4
        return raw.view(f"<u{unit}").astype(np.uint64)
    padded = np.zeros((len(raw), -(-num_bytes // 8) * 8), np.uint8)
    padded[:, :num_bytes] = raw
    return padded.view("<u8")


def _mix(words: Array) -> Array:
    """A bijection that carries high bits down, where a product with an odd number would lose them."""
    return np.asarray(words ^ (words >> _HALF))


@lru_cache(maxsize=1)
def _weights() -> Array:
    return mix64(np.arange(WIDE_BYTES // 8, dtype=np.uint64)) | _ONE


@lru_cache(maxsize=1024)
def _column_weight(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hash64(name.encode()), "little") | 1)
