"""Write and read columnar HDF5 files at the speed of the disk.

HDF5 lays out a contiguous data set when it is created; its bytes are then written (and later read, or mapped)
at that offset without going through the library. Compressed data sets and text go through it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from msgspec import Struct, field

from merlin.base.compression import NONE, Compression, chunk_rows
from merlin.base.field import TEXT_DTYPE
from merlin.shards.format.aligned import aligned_empty
from merlin.shards.format.digest import (
    TEXT_BLOCK_ROWS,
    block_rows,
    digest_array,
    digest_bytes,
    digest_rows,
    is_wide,
    row_digests,
)
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.row_check import RowChecks
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo, Extent
from merlin.shards.format.statistics import Accumulator, Statistics
from merlin.shards.reading.chunks import stored_chunks

PAGE = 4096
LARGE_PAGE = 1 << 21
_LARGE_BYTES = 1 << 25  # columns of this size begin at a large page, behind a hole that takes no disk
_BUFFERS = 2

Fill = Callable[[int, int, Array], None]  # put rows [lo, hi) into the array


class ColumnSpec(Struct, frozen=True):
    """One data set to write: `fill` is called for consecutive blocks of rows (of a ragged column, of items)."""

    name: str  # "fields/image"
    dtype: np.dtype[Any]  # object: text
    shape: tuple[int, ...]  # rows first
    fill: Fill
    codec: Compression = NONE
    attributes: Mapping[str, Any] = field(default_factory=dict)
    channel_axis: int | None = None
    with_statistics: bool = False
    statistics: Statistics | None = None  # known already
    ragged: bool = False  # the values or the offsets of a ragged column

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
        """Return whether its bytes are written past the library."""
        return not self.is_text and (self.codec.is_none or 0 in self.shape)

    @property
    def is_large(self) -> bool:
        """Return whether its bytes begin at a large page."""
        return self.is_raw and self.shape[0] * self.row_bytes >= _LARGE_BYTES


class FileHead(Struct, frozen=True):
    """What a file holds besides its columns."""

    attributes: Mapping[str, Any]  # of the file
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # attributes of groups
    texts: Mapping[str, str] = field(default_factory=dict)  # data sets of one text each


def write_columns(
    path: Path, columns: list[ColumnSpec], head: FileHead, checks: RowChecks | None = None
) -> list[DatasetInfo]:
    """Write the file and return what each data set holds. Memory: a few blocks of `digest.BLOCK_BYTES`.

    `checks` takes every block, too.
    """
    results: dict[str, _Written] = {}
    offsets: dict[str, int] = {}
    with ThreadPoolExecutor(1) as storing:
        with _open(path, "w", PAGE, PAGE) as new:
            file = new.file
            _set_attributes(file, head.attributes)
            for name, attributes in head.groups.items():
                _set_attributes(file.create_group(name), attributes)
            for name, text in head.texts.items():
                file.create_dataset(name, data=text, dtype=h5py.string_dtype())
            for column in columns:
                if column.is_large:
                    continue
                dataset = _create(file, column)
                if column.is_raw:
                    offsets[column.name] = dataset.id.get_offset() or 0
                else:
                    results[column.name] = _stream(column, _through_library(new, dataset), storing, checks)
                    if column.is_text and column.shape[0]:
                        offsets[column.name] = dataset.id.get_offset()
        large = [column for column in columns if column.is_large]
        if large:  # the library knows one alignment at a time
            with _open(path, "r+", _LARGE_BYTES, LARGE_PAGE) as new:
                for column in large:
                    offsets[column.name] = _create(new.file, column).id.get_offset()
        raw = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for column in columns:
                if column.is_raw:
                    sink = _past_the_library(raw, offsets[column.name], column.row_bytes)
                    results[column.name] = _stream(column, sink, storing, checks)
        finally:
            storing.shutdown(cancel_futures=True)  # what still waits would write into a closed file
            os.close(raw)
    extents = _chunk_extents(path, columns)
    return [_describe(column, results[column.name], offsets, extents) for column in columns]


def _open(path: Path, mode: str, threshold: int, interval: int) -> NewFile:
    """Open the file so that whatever has `threshold` bytes or more begins at a multiple of `interval`."""
    return NewFile(
        path, mode, libver=("earliest", "v110"), alignment_threshold=threshold, alignment_interval=interval
    )


def _set_attributes(node: Any, attributes: Mapping[str, Any]) -> None:
    """Do what `node.attrs.update` does in a fraction of the time: nothing is replaced, so no temporary names."""
    for name, value in attributes.items():
        data = np.array(value, dtype=h5py.string_dtype() if isinstance(value, str) else None)
        kind = h5py.h5t.py_create(data.dtype, logical=True)
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(node.id, name.encode(), kind, space).write(data)


def _create(file: h5py.File, column: ColumnSpec) -> h5py.Dataset:
    """Create the data set with its attributes; a raw one gets its place in the file now and is not filled."""
    if column.is_text:
        dataset = file.create_dataset(column.name, column.shape, dtype=h5py.string_dtype())
    else:
        parent, _, leaf = column.name.rpartition("/")
        group = file.require_group(parent) if parent else file
        space = h5py.h5s.create_simple(column.shape)
        kind = h5py.h5t.py_create(column.dtype, logical=True)
        made = h5py.h5d.create(group.id, leaf.encode(), kind, space, _properties(column))
        dataset = h5py.Dataset(made)
    _set_attributes(dataset, column.attributes)
    return dataset


def _properties(column: ColumnSpec) -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    if column.is_raw:
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    else:
        properties.set_chunk((chunk_rows(column.row_bytes, column.shape[0]), *column.shape[1:]))
        for wanted in column.codec.filters():
            properties.set_filter(wanted.number, h5py.h5z.FLAG_OPTIONAL, wanted.options)
    return properties


Sink = Callable[[int, Array], None]  # store a block that starts at a row


def _through_library(new: NewFile, dataset: Any) -> Sink:
    def write(row: int, block: Array) -> None:
        dataset[row : row + len(block)] = block
        new.check()

    return write


def _past_the_library(descriptor: int, offset: int, row_bytes: int) -> Sink:
    """Write bytes at an offset, and let the disk begin with them at once instead of at fsync."""

    def write(row: int, block: Array) -> None:
        data, begin = block.reshape(-1).view(np.uint8).data, offset + row * row_bytes
        at = begin
        while data:
            written = os.pwrite(descriptor, data, at)
            data, at = data[written:], at + written
        # Linux then starts to write what has changed, and waits for nothing
        os.posix_fadvise(descriptor, begin, at - begin, os.POSIX_FADV_DONTNEED)

    return write


class _Written(NamedTuple):
    blocks: list[str]  # their digests
    statistics: Statistics | None


def _stream(
    column: ColumnSpec, sink: Sink, storing: ThreadPoolExecutor, checks: RowChecks | None
) -> _Written:
    """Fill block after block, hash it and take its statistics, while another thread stores the one before.

    More threads, and more blocks on their way, are slower: a block that is worked on is in this core's cache.
    """
    num_rows, step = column.shape[0], column.block_rows
    statistics = Accumulator(column.shape[1:], column.channel_axis) if column.with_statistics else None
    digests: list[str] = []
    stored: deque[Future[None]] = deque()
    buffers: list[Array] = []
    for number, lo in enumerate(range(0, num_rows, step)):
        if len(buffers) < _BUFFERS:
            buffers.append(aligned_empty((min(step, num_rows), *column.shape[1:]), column.dtype))
        if len(stored) == _BUFFERS:
            stored.popleft().result()
        block = buffers[number % _BUFFERS][: min(step, num_rows - lo)]
        column.fill(lo, lo + len(block), block)
        if num_rows <= step:  # a single block is not worth another thread
            sink(lo, block)
        else:
            stored.append(storing.submit(sink, lo, block))
        digests.append(_prove(column.name, lo, block, checks))
        if statistics is not None:
            statistics.add(block)
    while stored:
        stored.popleft().result()
    return _Written(digests, None if statistics is None else statistics.result())


def _prove(name: str, lo: int, block: Array, checks: RowChecks | None) -> str:
    """The digest of a block; the digests of wide rows, which it needs, serve as their check values, too."""
    digests = row_digests(block) if is_wide(block) else None
    if checks is not None:
        checks.add(name, lo, block, digests)
    return digest_array(block) if digests is None else digest_rows(digests)


def _chunk_extents(path: Path, columns: list[ColumnSpec]) -> dict[str, list[Extent]]:
    """Where the chunks of compressed data sets lie, and the digests of their stored bytes."""
    packed = [column.name for column in columns if not column.is_raw and not column.is_text]
    if not packed:
        return {}
    with path.open("rb", buffering=0) as stored, h5py.File(path, "r", locking=False) as file:
        return {name: _extents_of(file[name], stored.fileno()) for name in packed}


def _extents_of(dataset: h5py.Dataset, descriptor: int) -> list[Extent]:
    rows, num_rows = dataset.chunks[0], dataset.shape[0]
    extents = []
    for lo, offset, nbytes, mask in stored_chunks(dataset):
        digest = digest_bytes(os.pread(descriptor, nbytes, offset))
        extents.append(Extent(offset, nbytes, lo, min(lo + rows, num_rows), digest, mask))
    return extents


def _describe(
    column: ColumnSpec, written: _Written, offsets: Mapping[str, int], extents: Mapping[str, list[Extent]]
) -> DatasetInfo:
    stored = extents.get(column.name, [])
    is_packed = column.name in extents
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
        compression=column.codec.name if is_packed else "none",
        block_rows=column.block_rows,
        blocks=tuple(written.blocks),
        extents=tuple(stored),
        statistics=column.statistics or written.statistics,
        ragged=column.ragged,
        shuffle=column.codec.shuffle if is_packed else "",
        references=offsets.get(column.name) if column.is_text else None,
    )
