"""Compressed chunks decoded by what a sidecar or the file says of them, without the HDF5 library."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.codecs import Codec, filters
from merlin.shards.format.shard_info import DatasetInfo
from merlin.shards.reading.decode import DecodeError, Pipeline, make_pipeline

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where the stored bytes of rows [lo, hi) are."""

    offset: int
    nbytes: int
    lo: int
    hi: int
    mask: int  # bit i: filter i was left out


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one data set and how they are decoded; many threads may share it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    pipeline: Pipeline
    table: tuple[Chunk, ...]  # ascending

    @property
    def chunk_bytes(self) -> int:
        """Of a decoded chunk."""
        return self.pipeline.size

    def decode(self, stored: Array, chunk: Chunk, out: Array | None = None) -> Array:
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
    codec = Codec(dataset.compression, dataset.shuffle or "byte")
    pipeline = _pipeline(codec, dataset.dtype, (rows, *dataset.shape[1:]))
    table = tuple(Chunk(e.offset, e.nbytes, e.lo, e.hi, e.mask) for e in dataset.extents)
    return Chunks(
        dataset.name, np.dtype(dataset.dtype), dataset.shape[1:], _known(pipeline, dataset.name), table
    )


def chunks_described(name: str, dtype: str, shape: tuple[int, ...], found: dict[str, Any]) -> Chunks:
    """The chunks of a data set (n, *…) as the file itself describes them (see probe); raises as `chunks_of`."""
    rows, kind = int(found["chunk"][0]), np.dtype(dtype)
    size = kind.itemsize * int(np.prod(found["chunk"], dtype=np.int64))
    pipeline = make_pipeline([(number, tuple(options)) for number, options in found["filters"]], size)
    table = tuple(
        Chunk(offset, nbytes, lo, min(lo + rows, shape[0]), mask)
        for lo, offset, nbytes, mask in found["chunks"]
    )
    if found["chunk"][1:] != list(shape[1:]):
        raise ShardError(f"'{name}': its chunks are not whole rows")
    return Chunks(name, kind, shape[1:], _known(pipeline, name), table)


def _known(pipeline: Pipeline | None, name: str) -> Pipeline:
    if pipeline is None:
        raise ShardError(f"'{name}': only the HDF5 library can undo its compression")
    return pipeline


@lru_cache(maxsize=256)
def _pipeline(codec: Codec, dtype: str, chunk: tuple[int, ...]) -> Pipeline | None:
    """HDF5 completes the options of some filters when it creates a data set, so one is created in memory."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(chunk)
    for wanted in filters(codec):
        properties.set_filter(wanted.id, h5py.h5z.FLAG_OPTIONAL, wanted.options)
    name = f"merlin-filters-{threading.get_ident()}"  # no other thread may have a file of this name open
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
        dataset = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(chunk), properties)
        made = dataset.get_create_plist()
        found = [made.get_filter(i) for i in range(made.get_nfilters())]
    size = np.dtype(dtype).itemsize * int(np.prod(chunk, dtype=np.int64))
    return make_pipeline([(entry[0], tuple(int(x) for x in entry[2])) for entry in found], size)
