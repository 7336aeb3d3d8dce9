"""Write and read columnar HDF5 files at the speed of the disk.

HDF5 lays out a contiguous data set when it is created; its bytes are then written (and later read, or mapped)
at that offset without going through the library. Compressed data sets and text go through it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.aligned import aligned_empty
from merlin.shards.digest import TEXT_BLOCK_ROWS, TEXT_DTYPE, block_rows, digest_array, digest_bytes
from merlin.shards.shard_info import DatasetInfo, Extent
from merlin.shards.statistics import Accumulator, Statistics

PAGE = 4096
CHUNK_BYTES = 1 << 17
COMPRESSIONS = ("none", "gzip", "zstd", "blosc2")
_WRITE_BACK_BYTES = 1 << 18
_BUFFERS = 8  # blocks in flight between filling, hashing and writing

Fill = Callable[[int, int, np.ndarray[Any, Any]], None]  # put rows [lo, hi) into the array


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One data set to write: `fill` is called for consecutive blocks of rows."""

    name: str  # "fields/image"
    dtype: np.dtype[Any]  # object: text
    shape: tuple[int, ...]  # rows first
    fill: Fill
    compression: str = "none"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    channel_axis: int | None = None
    with_statistics: bool = False

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "O"

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def block_rows(self) -> int:
        return TEXT_BLOCK_ROWS if self.is_text else block_rows(self.row_bytes)

    @property
    def is_raw(self) -> bool:
        """Whether its bytes are written past the library."""
        return not self.is_text and (self.compression in ("", "none") or 0 in self.shape)


def write_columns(path: Path, columns: list[ColumnSpec], attributes: Mapping[str, Any]) -> list[DatasetInfo]:
    """Write the file and return what each data set holds. Memory: a few blocks of `digest.BLOCK_BYTES`."""
    import h5py

    results: dict[str, _Written] = {}
    offsets: dict[str, int] = {}
    with ThreadPoolExecutor(1) as digest, ThreadPoolExecutor(1) as statistics:
        pools = _Pools(digest, statistics)
        with h5py.File(
            path, "w", libver=("earliest", "v110"), alignment_threshold=PAGE, alignment_interval=PAGE
        ) as file:
            file.attrs.update(attributes)
            for column in columns:
                dataset = _create(file, column)
                dataset.attrs.update(column.attributes)
                if column.is_raw:
                    offsets[column.name] = dataset.id.get_offset() or 0
                else:
                    results[column.name] = _stream(column, _through_library(dataset), pools)
        descriptor = os.open(path, os.O_RDWR)
        try:
            for column in columns:
                if column.is_raw:
                    sink = _at_offset(descriptor, offsets[column.name], column.row_bytes)
                    results[column.name] = _stream(column, sink, pools)
        finally:
            os.close(descriptor)
    extents = _chunk_extents(path, columns)
    return [_describe(column, results[column.name], offsets, extents) for column in columns]


def _create(file: Any, column: ColumnSpec) -> Any:
    """Create the data set; a raw one gets its place in the file now and is not filled."""
    import h5py

    if column.is_text:
        return file.create_dataset(column.name, column.shape, dtype=h5py.string_dtype())
    if not column.is_raw:
        rows = max(1, CHUNK_BYTES // max(1, column.row_bytes))
        rows = min(1 << (rows.bit_length() - 1), column.shape[0])
        chunks = (rows, *column.shape[1:])
        options = _compression_options(column.compression)
        return file.create_dataset(column.name, column.shape, dtype=column.dtype, chunks=chunks, **options)
    parent, _, leaf = column.name.rpartition("/")
    group = file.require_group(parent) if parent else file
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    space = h5py.h5s.create_simple(column.shape)
    kind = h5py.h5t.py_create(column.dtype, logical=True)
    return h5py.Dataset(h5py.h5d.create(group.id, leaf.encode(), kind, space, properties))


def _compression_options(compression: str) -> dict[str, Any]:
    match compression:
        case "gzip":
            return {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        case "zstd":
            import hdf5plugin

            return {"shuffle": True, **hdf5plugin.Zstd(clevel=3)}
        case "blosc2":
            import hdf5plugin

            return {**hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=hdf5plugin.Blosc2.SHUFFLE)}
    raise ShardError(f"unknown compression '{compression}'; known: {', '.join(COMPRESSIONS)}")


@dataclass(frozen=True, slots=True)
class _Pools:
    """One thread each, so that blocks are taken in order."""

    digest: ThreadPoolExecutor
    statistics: ThreadPoolExecutor


Sink = Callable[[int, np.ndarray[Any, Any]], None]  # store a block that starts at a row


def _through_library(dataset: Any) -> Sink:
    def write(row: int, block: np.ndarray[Any, Any]) -> None:
        dataset[row : row + len(block)] = block

    return write


def _at_offset(descriptor: int, offset: int, row_bytes: int) -> Sink:
    def write(row: int, block: np.ndarray[Any, Any]) -> None:
        start = offset + row * row_bytes
        _write_all(descriptor, block.reshape(-1).view(np.uint8).data, start)
        if (
            block.nbytes >= _WRITE_BACK_BYTES
        ):  # start writing back now, so that fsync has little left to wait for
            os.posix_fadvise(descriptor, start, block.nbytes, os.POSIX_FADV_DONTNEED)

    return write


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


@dataclass(slots=True)
class _Written:
    blocks: list[str]
    statistics: Statistics | None


def _stream(column: ColumnSpec, sink: Sink, pools: _Pools) -> _Written:
    """Fill and store block after block, while other threads hash them and take their statistics."""
    num_rows, step = column.shape[0], column.block_rows
    statistics = Accumulator(column.shape[1:], column.channel_axis) if column.with_statistics else None
    shape = (min(step, num_rows), *column.shape[1:])
    buffers = [aligned_empty(shape, column.dtype) for _ in range(min(_BUFFERS, -(-num_rows // step)))]
    pending: deque[tuple[Future[str], Future[None] | None]] = deque()
    blocks: list[str] = []

    def finish_oldest() -> None:
        digest, measured = pending.popleft()
        blocks.append(digest.result())
        if measured is not None:
            measured.result()

    for number, lo in enumerate(range(0, num_rows, step)):
        if len(pending) == len(buffers):
            finish_oldest()
        block = buffers[number % len(buffers)][: min(step, num_rows - lo)]
        column.fill(lo, lo + len(block), block)
        measured = pools.statistics.submit(statistics.add, block) if statistics is not None else None
        pending.append((pools.digest.submit(digest_array, block), measured))
        sink(lo, block)
    while pending:
        finish_oldest()
    return _Written(blocks, statistics.result() if statistics is not None else None)


def _chunk_extents(path: Path, columns: list[ColumnSpec]) -> dict[str, list[Extent]]:
    """Where the chunks of compressed data sets lie, and the digests of their stored bytes."""
    import h5py

    found: dict[str, list[Extent]] = {}
    if all(column.is_raw or column.is_text for column in columns):
        return found
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with h5py.File(path, "r", locking=False) as file:
            for column in columns:
                if not column.is_raw and not column.is_text:
                    found[column.name] = _extents_of(file[column.name], descriptor)
    finally:
        os.close(descriptor)
    return found


def _extents_of(dataset: Any, descriptor: int) -> list[Extent]:
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    rows, num_rows = dataset.chunks[0], dataset.shape[0]
    extents = []
    for chunk in sorted(chunks, key=lambda c: c.chunk_offset):
        lo = chunk.chunk_offset[0]
        digest = digest_bytes(os.pread(descriptor, chunk.size, chunk.byte_offset))
        extents.append(Extent(chunk.byte_offset, chunk.size, lo, min(lo + rows, num_rows), digest))
    return extents


def _describe(
    column: ColumnSpec, written: _Written, offsets: Mapping[str, int], extents: Mapping[str, list[Extent]]
) -> DatasetInfo:
    stored = extents.get(column.name, [])
    if column.is_raw and column.row_bytes:
        step, row_bytes, offset = column.block_rows, column.row_bytes, offsets[column.name]
        for number, digest in enumerate(written.blocks):
            lo = number * step
            hi = min(lo + step, column.shape[0])
            stored.append(Extent(offset + lo * row_bytes, (hi - lo) * row_bytes, lo, hi, digest))
    return DatasetInfo(
        name=column.name,
        dtype=TEXT_DTYPE if column.is_text else column.dtype.str,
        shape=column.shape,
        compression="none" if column.is_raw or column.is_text else column.compression,
        block_rows=column.block_rows,
        blocks=tuple(written.blocks),
        extents=tuple(stored),
        statistics=written.statistics,
    )


def skeleton_digest(path: Path, datasets: list[DatasetInfo] | tuple[DatasetInfo, ...]) -> str:
    """Digest of every byte of the file that lies in no extent: headers, attributes, text, gaps."""
    import hashlib

    size = path.stat().st_size
    state = hashlib.sha256()
    at = 0
    with path.open("rb") as file:
        for extent in sorted((e for d in datasets for e in d.extents), key=lambda e: e.offset):
            _hash_range(file, at, extent.offset, state)
            at = extent.offset + extent.nbytes
        _hash_range(file, at, size, state)
    return state.hexdigest()


def _hash_range(file: Any, lo: int, hi: int, state: Any) -> None:
    file.seek(lo)
    while lo < hi:
        data = file.read(min(1 << 20, hi - lo))
        if not data:
            return
        state.update(data)
        lo += len(data)


class ColumnReader:
    """Rows of a columnar file (a bundle or a shard). Raises ShardError if it cannot be read."""

    def __init__(self, path: Path, format_name: str, version: int) -> None:
        import h5py

        self.path = path
        try:
            self._file = h5py.File(path, "r", locking=False)
            found = (self._file.attrs["format"], int(self._file.attrs["version"]))
            if found != (format_name, version):
                raise ShardError(
                    f"{path}: expected {format_name} version {version}, found {found[0]} {found[1]}"
                )
            self.rows: np.ndarray[Any, Any] = self._file["row"][()]
        except (OSError, KeyError, RuntimeError) as e:
            raise ShardError(f"{path}: cannot be read: {e}") from e
        self._descriptor = os.open(path, os.O_RDONLY)
        self._opened: dict[str, tuple[Any, int | None]] = {}

    def read(self, name: str, lo: int, out: np.ndarray[Any, Any]) -> None:
        """Put rows [lo, lo + len(out)) of a field into `out`, which is C-contiguous."""
        if name not in self._opened:
            dataset = self._file["fields"][name]
            self._opened[name] = (dataset, None if dataset.dtype.kind == "O" else dataset.id.get_offset())
        dataset, offset = self._opened[name]
        if out.dtype.kind == "O":
            out[:] = dataset.asstr()[lo : lo + len(out)]
        elif offset is None or dataset.dtype != out.dtype or dataset.shape[1:] != out.shape[1:]:
            out[...] = dataset[lo : lo + len(out)]
        else:
            data = out.reshape(-1).view(np.uint8).data
            position = offset + lo * (out.nbytes // max(1, len(out)))
            while data:
                count = os.preadv(self._descriptor, [data], position)
                if not count:
                    raise ShardError(f"{self.path}: ends early; field '{name}' is cut off")
                data, position = data[count:], position + count

    def close(self) -> None:
        self._opened.clear()
        self._file.close()
        os.close(self._descriptor)
