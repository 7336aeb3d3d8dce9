"""Compressed chunks decoded by what a sidecar or the file says of them, without the HDF5 library."""

from __future__ import annotations

import threading
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.codecs.codec import DecodeError
from merlin.base.codecs.pipeline import Pipeline, make_pipeline
from merlin.base.compression import Compression
from merlin.errors import ShardError
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo, Extent


class Chunks(Struct, frozen=True):
    """The chunks of one data set and how they are decoded; many threads may share it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    pipeline: Pipeline
    table: tuple[Extent, ...]  # ascending

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a decoded chunk."""
        return self.pipeline.size

    def decode(self, stored: Array, chunk: Extent, out: Array | None = None) -> Array:
        """The rows of a chunk from its stored bytes (uint8).

        `out`, at least `chunk_bytes` bytes, is used as memory. Raises ShardError for damaged bytes.
        """
        memory = np.empty(self.chunk_bytes, np.uint8) if out is None else out[: self.chunk_bytes]
        try:
            self.pipeline.decode(stored, chunk.mask, memory)
        except DecodeError as e:
            raise ShardError(f"'{self.name}': rows {chunk.lo}-{chunk.hi - 1}: {e}") from e
        rows = memory.view(self.dtype).reshape(-1, *self.shape)
        return np.asarray(rows[: chunk.hi - chunk.lo])


def chunks_of(dataset: DatasetInfo) -> Chunks:
    """The chunks of a compressed data set as its sidecar has them.

    Raises ShardError if only the HDF5 library could decode them.
    """
    rows = dataset.extents[0].hi - dataset.extents[0].lo
    codec = Compression(dataset.compression, dataset.shuffle or "byte")
    pipeline = _pipeline(codec, dataset.dtype, (rows, *dataset.shape[1:]))
    return _chunks(dataset.name, dataset.dtype, dataset.shape, pipeline, dataset.extents)


def chunks_described(name: str, dtype: str, shape: tuple[int, ...], found: dict[str, Any]) -> Chunks:
    """The chunks of a data set (n, *…) as the file itself describes them (see probe); raises as `chunks_of`."""
    rows, size = found["chunk"][0], np.dtype(dtype).itemsize * prod(found["chunk"])
    pipeline = make_pipeline(found["filters"], size)
    if found["chunk"][1:] != list(shape[1:]):
        raise ShardError(f"'{name}': its chunks are not of complete rows")
    table = (
        Extent(offset, nbytes, lo, min(lo + rows, shape[0]), "", mask)
        for lo, offset, nbytes, mask in found["chunks"]
    )
    return _chunks(name, dtype, shape, pipeline, tuple(table))


def _chunks(
    name: str, dtype: str, shape: tuple[int, ...], pipeline: Pipeline | None, table: tuple[Extent, ...]
) -> Chunks:
    if pipeline is None:
        raise ShardError(f"'{name}': only the HDF5 library can undo its compression")
    return Chunks(name, np.dtype(dtype), shape[1:], pipeline, table)


def stored_filters(properties: Any) -> list[tuple[int, tuple[int, ...]]]:
    """(number, options) of the filters in a data set's properties, as h5py has them."""
    found = (properties.get_filter(i) for i in range(properties.get_nfilters()))
    return [(entry[0], tuple(int(option) for option in entry[2])) for entry in found]


def stored_chunks(dataset: Any) -> list[tuple[int, int, int, int]]:
    """(first row, offset in the file, bytes, mask) of every chunk of an h5py data set, ascending."""
    found: list[tuple[int, int, int, int]] = []
    dataset.id.chunk_iter(
        lambda c: found.append((int(c.chunk_offset[0]), c.byte_offset, c.size, c.filter_mask))
    )
    return sorted(found)


@lru_cache(maxsize=256)
def _pipeline(codec: Compression, dtype: str, chunk: tuple[int, ...]) -> Pipeline | None:
    """The filters with all their options, which HDF5 completes in a data set that is made in memory."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(chunk)
    for wanted in codec.filters():
        properties.set_filter(wanted.number, h5py.h5z.FLAG_OPTIONAL, wanted.options)
    name = f"merlin-filters-{threading.get_ident()}"  # no other thread may have a file of this name open
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
        dataset = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(chunk), properties)
        found = stored_filters(dataset.get_create_plist())
    return make_pipeline(found, np.dtype(dtype).itemsize * prod(chunk))
