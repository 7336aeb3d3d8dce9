"""Read every stored byte of a column once: hash it, and hold its values against their recorded range.

Reading, hashing and comparing release the GIL, so threads scale. Memory: a piece and a compressed chunk per
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from msgspec import Struct, field

from merlin.base.field import TEXT_DTYPE
from merlin.errors import ShardError
from merlin.shards.evidence.bounds import Bounds
from merlin.shards.format.aligned import aligned_empty
from merlin.shards.format.digest import BlockDigest, digest_bytes
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo, Extent, ShardInfo
from merlin.shards.reading.chunks import Chunks, chunks_of
from merlin.shards.reading.column_reader import read_into

Tick = Callable[[int], None]  # called with the number of bytes that were just read

PIECE_BYTES = 1 << 21  # read, hashed and compared while it is in a cache
JOB_BYTES = 1 << 25

_local = threading.local()


class ColumnFindings(Struct):
    """What is wrong with a column; places are rows of the file, for ragged values items."""

    bad: list[tuple[int, int]] = field(default_factory=list)  # the stored bytes differ, or cannot be decoded
    broken: list[Array] = field(default_factory=list)  # the bytes are right, values are out of range

    def add(self, other: ColumnFindings) -> None:
        self.bad += other.bad
        self.broken += other.broken


class Job(Struct, frozen=True):
    """Some neighbouring extents of one column."""

    dataset: DatasetInfo
    extents: tuple[Extent, ...]
    bounds: Bounds | None

    def run(self, descriptor: int, tick: Tick) -> ColumnFindings:
        """Read and check these extents of an open file."""
        if self.dataset.is_compressed:
            return _scan_chunks(self, descriptor, tick)
        return _scan_raw(self, descriptor, tick)


def jobs_of(info: ShardInfo, bounds: Callable[[DatasetInfo], Bounds | None]) -> Iterator[Job]:
    """All columns of a shard in jobs of about 32 MiB, each of complete blocks."""
    for dataset in info.datasets:
        if dataset.dtype == TEXT_DTYPE:
            continue
        promised, some, size = bounds(dataset), list[Extent](), 0
        for extent in dataset.extents:
            if size >= JOB_BYTES and extent.lo % dataset.block_rows == 0:
                yield Job(dataset, tuple(some), promised)
                some, size = [], 0
            some.append(extent)
            size += extent.nbytes
        if some:
            yield Job(dataset, tuple(some), promised)


def _scan_raw(job: Job, descriptor: int, tick: Tick) -> ColumnFindings:
    dataset, bounds, found = job.dataset, job.bounds, ColumnFindings()
    dtype, shape, row_bytes = np.dtype(dataset.dtype), dataset.shape[1:], _row_bytes(dataset)
    rows_at_once = PIECE_BYTES // row_bytes
    size = rows_at_once * row_bytes or PIECE_BYTES // dtype.itemsize * dtype.itemsize
    for extent in job.extents:
        state, broken = BlockDigest(row_bytes), list[Array]()
        for done in range(0, extent.nbytes, size):
            piece = _read(descriptor, extent.offset + done, min(size, extent.nbytes - done))
            state.update(piece)
            tick(len(piece))
            if bounds is None or len(piece) < min(size, extent.nbytes - done):
                continue
            row = extent.lo + done // row_bytes
            if rows_at_once:
                wrong = bounds.broken(piece.view(dtype).reshape(-1, *shape))
                broken += [] if wrong is None else [row + np.flatnonzero(wrong)]
            elif bounds.broken_anywhere(piece.view(dtype)):
                broken.append(np.array([row]))
        if state.hexdigest() != extent.digest:
            found.bad.append((extent.lo, extent.hi))
        else:
            found.broken += broken
    return found


def _row_bytes(dataset: DatasetInfo) -> int:
    return np.dtype(dataset.dtype).itemsize * prod(dataset.shape[1:])


def _read(descriptor: int, at: int, size: int) -> Array:
    """Bytes of the file in the thread's own memory; fewer at its end."""
    memory = getattr(_local, "memory", None)
    if memory is None or len(memory) < size:
        memory = _local.memory = aligned_empty((max(size, PIECE_BYTES),), np.dtype(np.uint8))
    return memory[: read_into(descriptor, memory[:size], at)]


def _scan_chunks(job: Job, descriptor: int, tick: Tick) -> ColumnFindings:
    """Compressed columns: the stored bytes of every chunk, then what they decode to, block by block."""
    dataset, found = job.dataset, ColumnFindings()
    chunks, memory = _chunks(dataset), np.empty(0, np.uint8)
    states: dict[int, BlockDigest] = {}  # of the decoded values, by block
    row_bytes = _row_bytes(dataset)
    for extent in job.extents:
        stored = _read(descriptor, extent.offset, extent.nbytes)
        tick(len(stored))
        state = states.setdefault(extent.lo // dataset.block_rows, BlockDigest(row_bytes))
        if digest_bytes(stored.data) != extent.digest:
            found.bad.append((extent.lo, extent.hi))
            continue
        if chunks is None:
            continue
        if not len(memory):
            memory = np.empty(chunks.chunk_bytes, np.uint8)
        try:
            values = chunks.decode(stored, extent, memory)
        except ShardError:
            found.bad.append((extent.lo, extent.hi))
            continue
        state.update(values.reshape(-1).view(np.uint8))
        wrong = None if job.bounds is None else job.bounds.broken(values)
        found.broken += [] if wrong is None else [extent.lo + np.flatnonzero(wrong)]
    if chunks is not None:
        _compare(dataset, states, found)
    return found


def _chunks(dataset: DatasetInfo) -> Chunks | None:
    """How chunks are decoded; None if only the HDF5 library can: the stored bytes are then the proof."""
    try:
        return chunks_of(dataset)
    except ShardError:
        return None


def _compare(dataset: DatasetInfo, states: dict[int, BlockDigest], found: ColumnFindings) -> None:
    """Add the blocks whose decoded values are wrong, although their stored bytes are right."""
    for number, state in states.items():
        lo = number * dataset.block_rows
        hi = min(lo + dataset.block_rows, dataset.shape[0])
        is_known = any(a < hi and b > lo for a, b in found.bad)
        if not is_known and state.hexdigest() != dataset.blocks[number]:
            found.bad.append((lo, hi))
