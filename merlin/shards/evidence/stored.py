"""The columns of a shard file, read past whatever damage it has, and without the HDF5 library.

A sidecar says where the values are, so the file's own headers are not needed; where the headers are needed
but may be damaged, a separate process reads them. Nothing that is read here is trusted: see row_check and
previous.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec import Struct

from merlin.base.field import TEXT_DTYPE
from merlin.errors import ShardError
from merlin.shards.evidence.probe import probe
from merlin.shards.evidence.text_heap import REFERENCE_BYTES, read_texts
from merlin.shards.format.digest import BLOCK_BYTES, TEXT_BLOCK_ROWS
from merlin.shards.format.row_check import NUM_GROUPS, RowChecks, group_of
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import DatasetInfo, ShardInfo
from merlin.shards.reading.chunks import Chunks, chunks_described, chunks_of
from merlin.shards.reading.column_reader import read_into


class StoredColumn(Struct, frozen=True):
    """A data set of the file; of the `values` of a ragged field, rows are items."""

    name: str  # "fields/image"
    dtype: str  # NumPy's, or "text"
    shape: tuple[int, ...]  # with rows first
    offset: int | None = None  # where its bytes, or the references to its texts, lie together
    chunks: Chunks | None = None  # where its bytes lie compressed

    @property
    def is_text(self) -> bool:
        return self.dtype == TEXT_DTYPE

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(object if self.is_text else self.dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row where rows lie together; for text, those of a reference."""
        return REFERENCE_BYTES if self.is_text else self.numpy.itemsize * prod(self.shape[1:])


class StoredShard:
    """Reads columns by name. Every method raises ShardError where the file does not give what is asked."""

    def __init__(
        self, path: Path, columns: Iterable[StoredColumn], attributes: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.columns = {column.name: column for column in columns}
        self.attributes = attributes or {}  # of the file, if its own headers were read
        rows = self.columns.get("row")
        self.num_rows = rows.shape[0] if rows is not None and rows.shape else 0
        self._offsets: dict[str, Array] = {}
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise ShardError(f"{path}: cannot be opened: {e.strerror}") from e
        self._size = os.fstat(self._descriptor).st_size

    @classmethod
    def by_sidecar(cls, path: Path, info: ShardInfo) -> Self:
        """The columns as `info` describes them, whether the file agrees or not."""
        return cls(path, [_column_of(dataset) for dataset in info.datasets])

    @classmethod
    def by_itself(cls, path: Path) -> Self:
        """The columns as the file's own headers describe them, which a separate process reads."""
        found = probe(path)
        columns = []
        for entry in found["datasets"]:
            described = entry["name"], entry["dtype"], tuple(entry["shape"])
            is_chunked = "chunks" in entry and 0 not in entry["shape"]
            chunks = chunks_described(*described, entry) if is_chunked else None
            columns.append(StoredColumn(*described, entry.get("offset"), chunks))
        return cls(path, columns, found["attributes"])

    def read(self, name: str, lo: int, hi: int) -> Array:
        """Rows [lo, hi) of a column, C-contiguous; text as str, with surrogates for bytes that are not UTF-8."""
        column = self.columns.get(name)
        if column is None:
            raise ShardError(f"{self.path}: has no '{name}'")
        if not column.shape or not 0 <= lo <= hi <= column.shape[0]:
            raise ShardError(f"{self.path}: '{name}' has shape {column.shape}, and not the rows [{lo}, {hi})")
        if column.is_text:
            return self._read_texts(column, lo, hi)
        out = np.empty((hi - lo, *column.shape[1:]), column.numpy)
        if out.nbytes:
            if column.chunks is not None:
                self._read_chunks(column.chunks, lo, hi, out)
            else:
                self._read_bytes(column, lo, out.reshape(-1).view(np.uint8))
        return out

    def _read_chunks(self, chunks: Chunks, lo: int, hi: int, out: Array) -> None:
        at = lo
        for chunk in chunks.table:
            if chunk.lo < hi and chunk.hi > lo:
                if chunk.lo > at:
                    break
                stored = np.empty(chunk.nbytes, np.uint8)
                self._fill(chunks.name, chunk.offset, stored)
                a, b = max(lo, chunk.lo), min(hi, chunk.hi)
                out[a - lo : b - lo] = chunks.decode(stored, chunk)[a - chunk.lo : b - chunk.lo]
                at = b
        if at < hi:
            raise ShardError(f"{self.path}: '{chunks.name}' has no chunk for row {at}")

    def _read_texts(self, column: StoredColumn, lo: int, hi: int) -> Array:
        references = np.empty((hi - lo) * REFERENCE_BYTES, np.uint8)
        self._read_bytes(column, lo, references)
        values = read_texts(self.peek, references.tobytes())
        if any(value is None for value in values):
            raise ShardError(f"{self.path}: texts of '{column.name}' cannot be found")
        out = np.empty(hi - lo, dtype=object)
        out[:] = [value.decode(errors="surrogateescape") for value in values if value is not None]
        return out

    def _read_bytes(self, column: StoredColumn, row: int, out: Array) -> None:
        if not len(out):
            return
        if column.offset is None:
            raise ShardError(f"{self.path}: the file does not say where '{column.name}' is")
        self._fill(column.name, column.offset + row * column.row_bytes, out)

    def _fill(self, name: str, at: int, out: Array) -> None:
        is_inside = 0 <= at <= self._size - len(out)
        if not is_inside or read_into(self._descriptor, out, at) < len(out):
            raise ShardError(f"{self.path}: ends early; '{name}' is cut off")

    def peek(self, at: int, size: int) -> bytes:
        """Bytes of the file; fewer where it ends."""
        size = min(size, self._size - at)
        return os.pread(self._descriptor, size, at) if size > 0 else b""

    def offsets(self, field: str) -> Array:
        """(n + 1,) of a ragged field ("fields/graph/nodes"), as they are stored; read once."""
        if field not in self._offsets:
            name = f"{field}/offsets"
            if name not in self.columns:
                raise ShardError(f"{self.path}: has no '{name}'")
            found = self.read(name, 0, self.columns[name].shape[0])
            if len(found) != self.num_rows + 1:
                raise ShardError(f"{self.path}: '{name}' has {len(found)} entries for {self.num_rows} rows")
            self._offsets[field] = found
        return self._offsets[field]

    def checks(self, rows: Array, names: Iterable[str]) -> tuple[Array, Array]:
        """Check values of all rows, whose numbers are `rows` (n,), and which of them could be read at all.

        Both are (n, NUM_GROUPS), over the columns `names`.
        """
        checks = RowChecks(rows)
        readable = np.ones((len(rows), NUM_GROUPS), dtype=bool)
        for name in names:
            group = group_of(name)
            if group is None:
                continue
            column = self.columns.get(name)
            is_ragged = name.endswith("/values") and f"{name.removesuffix('/values')}/offsets" in self.columns
            if column is None or not (is_ragged or column.shape[:1] == (len(rows),)):
                readable[:, group] = False
                continue
            step = TEXT_BLOCK_ROWS if column.is_text else max(1, BLOCK_BYTES // max(64, column.row_bytes))
            for lo in range(0, len(rows), step):
                self._add(checks, readable[:, group], name, is_ragged, lo, min(lo + step, len(rows)))
        return checks.values, readable

    def _add(self, checks: RowChecks, readable: Array, name: str, is_ragged: bool, lo: int, hi: int) -> None:
        """Add rows [lo, hi) of a column; where that fails, halve them until the unreadable ones are found."""
        try:
            if is_ragged:
                self._add_items(checks, name, lo, hi)
            else:
                checks.add(name, lo, self.read(name, lo, hi))
        except ShardError:
            if hi - lo == 1:
                readable[lo] = False
                return
            middle = (lo + hi) // 2
            self._add(checks, readable, name, is_ragged, lo, middle)
            self._add(checks, readable, name, is_ragged, middle, hi)

    def _add_items(self, checks: RowChecks, name: str, lo: int, hi: int) -> None:
        """Rows [lo, hi) of a ragged column, all or (ShardError) none."""
        offsets = self.offsets(name.removesuffix("/values"))
        column = self.columns[name]
        most = max(1, BLOCK_BYTES // max(1, column.row_bytes))
        a, b = int(offsets[lo]), int(offsets[hi])
        if not 0 <= a <= b <= column.shape[0] or (np.diff(offsets[lo : hi + 1]) < 0).any():
            raise ShardError(f"{self.path}: the offsets of '{name}' are damaged")
        if b - a > most and hi - lo > 1:
            raise ShardError(f"{self.path}: too many items of '{name}' at once")
        checks.part(lo, hi).add_items(name, a, self.read(name, a, b), offsets[lo : hi + 1])

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _column_of(dataset: DatasetInfo) -> StoredColumn:
    described = dataset.name, dataset.dtype, dataset.shape
    if dataset.dtype == TEXT_DTYPE or not dataset.extents:
        return StoredColumn(*described, offset=dataset.references)
    if not dataset.is_compressed:
        return StoredColumn(*described, offset=dataset.extents[0].offset)
    try:
        return StoredColumn(*described, chunks=chunks_of(dataset))
    except ShardError:  # it cannot be read without the library: reading it raises an error
        return StoredColumn(*described)
