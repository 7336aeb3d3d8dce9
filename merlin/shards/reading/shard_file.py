"""One shard, opened for reading: where its columns lie, and its bytes.

HDF5 is asked where a column lies; contiguous columns are then read as mapped memory, and chunks of compressed
ones as stored bytes. Only text, and what no other way is known for, is read through the library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.codecs.pipeline import Pipeline, make_pipeline
from merlin.errors import ShardError, command_line
from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import SHARD_FORMAT, info_name, next_info_name, read_info
from merlin.shards.reading.address_range import map_file
from merlin.shards.reading.chunks import stored_chunks, stored_filters


class ReplacedError(Exception):
    """Another file has taken the shard's name since it was opened."""


class Contiguous(Struct, frozen=True):
    """Items that lie in the file as in memory."""

    num: int
    offset: int


contiguous = lru_cache(4096)(Contiguous)  # thousands of shards are laid out alike


class Chunked(Struct, frozen=True):
    """Items compressed in chunks of `rows`; chunk k begins at item k * rows."""

    num: int
    rows: int
    offsets: Array  # (chunks,) int64, in the file
    sizes: Array  # (chunks,) int64, stored
    masks: Array  # (chunks,) uint32, filters left out
    pipeline: Pipeline


class ThroughLibrary(Struct, frozen=True):
    """Items that only the HDF5 library can read; `rows` is how many it reads at once."""

    num: int
    rows: int


Stored = Contiguous | Chunked | ThroughLibrary


class ShardFile:
    """One shard. Raises ShardError for a file that is missing, damaged or not the one expected.

    The store decides when `handle` (an open HDF5 file) and `content` (the mapped bytes) are there; what was
    found out about columns stays. All of this is about one file: ReplacedError if the name leads to another
    file now.
    """

    def __init__(self, data: DataSet, entry: ShardEntry) -> None:
        self.path = data.directory / entry.file
        self._entry, self._study_id = entry, data.study_id_of(entry.lo)
        self._identity: tuple[int, ...] | None = None
        self._is_ours = False  # its attributes are as expected
        self._columns: dict[str, Stored] = {}
        self.handle: Any = None

    def damaged(self, why: object) -> ShardError:
        return ShardError(f"{self.path}: {why}; run {command_line('shards', 'verify', self.path.parent)}")

    def has_other_values(self) -> bool:
        """True if the shard's description says that it was written again, with other values than in the manifest."""
        for name in (next_info_name(self._entry.shard), info_name(self._entry.shard)):
            with suppress(ShardError):
                return read_info(self.path.with_name(name)).content_digest != self._entry.content_digest
        return False

    def written_again(self, why: object) -> ShardError:
        return ShardError(
            f"{self.path}: {why}: the study writes it again; open the data set when that has ended"
        )

    def _unexpected(self, why: str) -> ShardError:
        """For a column that is not as the manifest says."""
        return self.written_again(why) if self.has_other_values() else self.damaged(why)

    def open(self) -> None:
        """Open through the library."""
        import h5py

        try:
            self._check_identity(self.path.stat())
            handle = h5py.File(self.path, "r", locking=False)
            try:
                self._check_identity(self.path.stat())
                if not self._is_ours:
                    self._check_attributes(handle.attrs)
            except BaseException:
                handle.close()
                raise
        except FileNotFoundError:
            raise self.damaged("the file is missing") from None
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as e:
            raise self.damaged(f"cannot be read: {e}") from e
        self.handle = handle

    def _check_identity(self, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._identity is None:
            self._identity = identity
        elif self._identity != identity:
            raise ReplacedError

    def _check_attributes(self, attributes: Any) -> None:
        entry, study_id = self._entry, self._study_id
        if wrong := SHARD_FORMAT.mismatch(attributes):
            raise ShardError(f"{self.path}: {wrong}")
        place = tuple(int(attributes[name]) for name in ("shard", "row_lo", "row_hi"))
        if place != (entry.shard, entry.lo, entry.hi):
            raise self.damaged(
                f"a foreign shard: number {place[0]} with rows {place[1]} to {place[2]}, where "
                f"{entry.shard} with rows {entry.lo} to {entry.hi} belongs"
            )
        if study_id and attributes["study_id"] != study_id:
            raise self.damaged(f"a foreign shard, of study {attributes['study_id']}")
        self._is_ours = True

    def map(self) -> Array:
        """The file's bytes, mapped."""
        try:
            with self.opened() as descriptor:
                return map_file(descriptor)
        except (OSError, ValueError) as e:
            raise self.damaged(f"cannot be mapped: {e}") from e

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the file."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as e:
            raise self.damaged(f"cannot be opened: {e}") from e
        try:
            self._check_identity(os.fstat(descriptor))
            yield descriptor
        finally:
            os.close(descriptor)

    def known(self, path: str) -> Stored | None:
        """Where a column lies, if `find` was asked before."""
        return self._columns.get(path)

    @property
    def num_known(self) -> int:
        """The number of columns that `find` was asked for."""
        return len(self._columns)

    def find(self, path: str, dtype: np.dtype[Any], item_shape: tuple[int, ...], num: int | None) -> Stored:
        """Where a column lies that should have `num` items (None: any number) of this shape; needs `handle`."""
        import h5py

        try:
            dataset = h5py.h5d.open(self.handle.id, path.encode())  # h5py's Dataset takes twice as long
            found, found_dtype = dataset.shape, dataset.dtype
            shape = (found[0] if num is None and found else num, *item_shape)
            if found != shape:
                raise self._unexpected(f"{path} has shape {found}, expected {shape}")
            if found_dtype != dtype:
                raise self._unexpected(f"{path} is {found_dtype}, expected {dtype}")
            stored = self._place(path, dataset, found, found_dtype)
        except KeyError:
            raise self._unexpected(f"there is no '{path}' in it") from None
        except (OSError, ValueError, TypeError, RuntimeError) as e:
            raise self.damaged(f"{path} cannot be read: {e}") from e
        self._columns[path] = stored
        return stored

    def _place(self, path: str, dataset: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Stored:
        """Where a data set lies, which is h5py's DatasetID."""
        import h5py

        num, row_bytes = shape[0], dtype.itemsize * prod(shape[1:])
        if dtype.kind == "O":
            return ThroughLibrary(num, max(1, num))
        if not num * row_bytes:
            return contiguous(num, 0)
        properties = dataset.get_create_plist()
        if properties.get_layout() != h5py.h5d.CHUNKED:
            offset = dataset.get_offset()
            if offset is None:
                return ThroughLibrary(num, num)
            self._require_bytes(path, offset + num * row_bytes)
            return contiguous(num, offset)
        rows, *others = properties.get_chunk()
        stored = None
        if tuple(others) == shape[1:]:
            pipeline = make_pipeline(stored_filters(properties), rows * row_bytes)
            stored = self._chunked(path, h5py.Dataset(dataset), rows, pipeline)
        return ThroughLibrary(num, rows) if stored is None else stored

    def _require_bytes(self, path: str, end: int) -> None:
        assert self._identity is not None
        if end > self._identity[2]:
            raise self.damaged(f"it ends before the end of {path}")

    def _chunked(self, path: str, dataset: Any, rows: int, pipeline: Pipeline | None) -> Chunked | None:
        """None if only the library can read it, as when a chunk was never written."""
        import hdf5plugin  # noqa: F401 - registers the decompressors, should the library have to read

        num = dataset.shape[0]
        table = np.array(stored_chunks(dataset), dtype=np.int64).reshape(-1, 4)
        begins = np.arange(-(-num // rows), dtype=np.int64) * rows
        if pipeline is None or not np.array_equal(table[:, 0], begins):
            return None
        self._require_bytes(path, int((table[:, 1] + table[:, 2]).max()))
        return Chunked(num, rows, table[:, 1].copy(), table[:, 2].copy(), table[:, 3].astype("u4"), pipeline)

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
            self.handle = None
