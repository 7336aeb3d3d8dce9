"""Read a finished data set: lazy arrays over all shards, memory-mapped where they are not compressed.

    ens = merlin.open_shards("study_20260101-120000/collect")
    len(ens), list(ens.fields), ens["image"][10:20], ens["image"][[3, 1, 2]]
    ens.inputs["x"][:], ens.splits["train"], ens.batch([5, 2], ["image"])

Index i is the i-th row present in the data set, 0 <= i < len(ens). Files are opened when first touched, in
each process for itself, so an Ensemble may cross a fork, and be pickled.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.aligned import aligned_empty, copy_rows
from merlin.shards.manifest_file import ColumnInfo, DataSet, FieldInfo, read_manifest
from merlin.shards.splits import split_indices

Array = np.ndarray[Any, Any]

_SMALL_ROW_BYTES = 4096  # below, a gather is vectorised; above, one copy per row is as fast as memory
_CACHED_COLUMN_BYTES = 64 << 20  # columns of small rows up to this size are kept in memory by `batch`


def open_shards(path: str | os.PathLike[str]) -> Ensemble:
    """Open the data set in directory `path`, or at its manifest; NotADataSetError if there is none."""
    return Ensemble(read_manifest(Path(path)))


class Ensemble:
    """A data set; see the module for how to use it."""

    def __init__(self, data: DataSet) -> None:
        self.manifest = data
        self.path = data.directory
        self.fields: dict[str, FieldInfo] = {field.name: field for field in data.fields}
        self._shards = _Shards(data)
        self._cached: dict[str, Array] = {}

    def __len__(self) -> int:
        return self.manifest.num_rows

    def __getitem__(self, name: str) -> LazyArray:
        """A field by name, or an input by its label if no field has that name."""
        return LazyArray(self._shards, self._path_of(name))

    def __contains__(self, name: object) -> bool:
        return name in self.fields or name in self.inputs

    def __repr__(self) -> str:
        return f"Ensemble({str(self.path)!r}, {len(self)} samples, fields: {', '.join(self.fields)})"

    @cached_property
    def inputs(self) -> Inputs:
        """The samples file's columns at the rows of the data set."""
        return Inputs(self._shards, "inputs", [column.name for column in self.manifest.inputs])

    @cached_property
    def parameters(self) -> Inputs:
        """The parameters of each row, if the sources have any."""
        return Inputs(self._shards, "parameters", [column.name for column in self.manifest.parameters])

    @cached_property
    def sample_id(self) -> Array:
        """The sample of each row (the same sample appears once per combination of parameters)."""
        return self._shards.read_range("sample_id", 0, len(self))

    @cached_property
    def row(self) -> Array:
        """The number of each row among the planned ones."""
        return self._shards.read_range("row", 0, len(self))

    @cached_property
    def splits(self) -> dict[str, Array]:
        """Indices of each split, ascending; a sample's split never changes when samples are added."""
        splits = self.manifest.splits
        member = split_indices(self.sample_id, splits.fractions, splits.seed)
        return {name: np.flatnonzero(member == i) for i, name in enumerate(splits.fractions)}

    def batch(
        self, indices: Any, fields: Sequence[str] | None = None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Rows `indices` (any order, repeats allowed) of several fields or inputs; all numeric fields by
        default.

        `out` gives arrays to fill instead of new ones: C-contiguous, of the field's dtype and (len(indices),
        …).
        """
        where = _as_indices(indices, len(self))
        names = self._numeric() if fields is None else fields
        return {name: self._gather(name, where, None if out is None else out.get(name)) for name in names}

    def allocate(self, num: int, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Arrays for `batch` to fill again and again, aligned so that filling them is fast."""
        made = {}
        for name in self._numeric() if fields is None else fields:
            dtype, shape = self._shards.layout(self._path_of(name))
            made[name] = aligned_empty((num, *shape), dtype)
        return made

    def _numeric(self) -> list[str]:
        return [name for name, info in self.fields.items() if info.dtype != "text"]

    def _gather(self, name: str, where: Array, out: Array | None) -> Array:
        path = self._path_of(name)
        dtype, shape = self._shards.layout(path)
        row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if row_bytes > _SMALL_ROW_BYTES or row_bytes * len(self) > _CACHED_COLUMN_BYTES or dtype.kind == "O":
            return self._shards.gather(path, where, out)
        column = self._cached.get(path)
        if column is None:
            column = self._cached[path] = self._shards.read_range(path, 0, len(self))
        if out is None:
            return np.asarray(column[where])
        return np.take(column, where, axis=0, out=_check_out(out, dtype, (len(where), *shape)), mode="clip")

    def _path_of(self, name: str) -> str:
        if name in self.fields:
            return f"fields/{name}"
        if name in self.inputs:
            return f"inputs/{name}"
        known = ", ".join([*self.fields, *self.inputs])
        raise KeyError(f"no field or input '{name}' in {self.path}; there are: {known}")

    def close(self) -> None:
        """Forget all open files; arrays that were handed out stay valid."""
        self._shards.close()
        self._cached.clear()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["manifest"])  # type: ignore[misc]


class LazyArray:
    """One column over all shards; reads when indexed.

    A slice that lies inside one uncompressed shard is a read-only view of the mapped file; everything else is
    a copy.
    """

    def __init__(self, shards: _Shards, path: str) -> None:
        self._shards = shards
        self._path = path
        self.dtype, shape = shards.layout(path)
        self.shape: tuple[int, ...] = (shards.num_rows, *shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        rest: tuple[Any, ...] = ()
        if isinstance(key, tuple):
            key, rest = (key[0], key[1:]) if key else (slice(None), ())
        if key is Ellipsis:
            key, rest = slice(None), (Ellipsis, *rest) if rest else ()
        if isinstance(key, int | np.integer):
            found = self._shards.one_row(self._path, _as_index(int(key), len(self)))
            return found[rest] if rest else found
        if isinstance(key, slice):
            lo, hi, step = key.indices(len(self))
            if step == 1:
                values = self._shards.read_range(self._path, lo, max(lo, hi))
            else:
                values = self._shards.gather(self._path, np.arange(lo, hi, step), None)
        else:
            values = self._shards.gather(self._path, _as_indices(key, len(self)), None)
        return values[(slice(None), *rest)] if rest else values

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self[:]
        return np.array(values, dtype=dtype, copy=True if copy else None)

    def __repr__(self) -> str:
        return f"LazyArray({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class Inputs(Mapping[str, LazyArray]):
    """Lazy columns by label, and the numeric ones together as a matrix."""

    def __init__(self, shards: _Shards, group: str, labels: Sequence[str]) -> None:
        self._shards = shards
        self._group = group
        self.labels = tuple(labels)

    def __getitem__(self, label: str) -> LazyArray:
        if label not in self.labels:
            raise KeyError(f"no column '{label}'; there are: {', '.join(self.labels) or 'none'}")
        return LazyArray(self._shards, f"{self._group}/{label}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def array(self, lo: int = 0, hi: int | None = None) -> Array:
        """Rows [lo, hi) of all columns as float64 (n, number of labels); ShardError if one is text."""
        columns = [self[label] for label in self.labels]
        for column in columns:
            if column.dtype.kind == "O":
                raise ShardError(f"column '{column.name}' holds text; read it by its label")
        parts = [column[lo:hi] for column in columns]
        return (
            np.stack(parts, axis=1).astype("<f8") if parts else np.zeros((len(range(self._rows)[lo:hi]), 0))
        )

    @property
    def _rows(self) -> int:
        return self._shards.num_rows


class _Shards:
    """The files, opened lazily; positions count the rows that are present."""

    def __init__(self, data: DataSet) -> None:
        self._data = data
        self._starts = [0]
        for shard in data.shards:
            self._starts.append(self._starts[-1] + shard.num_rows)
        self._borders = np.array(self._starts[1:], dtype=np.int64)
        self.num_rows = self._starts[-1]
        self._columns: dict[str, ColumnInfo] = {column.path: column for column in data.columns}
        self._mapped: dict[int, dict[str, Array | None]] = {}  # None: through the library
        self._files: dict[int, Any] = {}
        self._pid = os.getpid()

    def layout(self, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """dtype (object for text) and shape of one row."""
        column = self._columns[path]
        return np.dtype(object if column.dtype == "text" else column.dtype), column.shape

    def one_row(self, path: str, index: int) -> Any:
        shard = bisect_right(self._starts, index) - 1
        local = index - self._starts[shard]
        column = self._column(shard, path)
        return self._read(shard, path, local, local + 1)[0] if column is None else column[local]

    def read_range(self, path: str, lo: int, hi: int) -> Array:
        """Rows [lo, hi): a view if one mapped shard has them all."""
        dtype, shape = self.layout(path)
        if lo >= hi:
            return np.empty((0, *shape), dtype)
        first, last = bisect_right(self._starts, lo) - 1, bisect_right(self._starts, hi - 1) - 1
        if first == last:
            return self._read(first, path, lo - self._starts[first], hi - self._starts[first])
        out = aligned_empty((hi - lo, *shape), dtype)
        for shard in range(first, last + 1):
            start, end = max(lo, self._starts[shard]), min(hi, self._starts[shard + 1])
            if start < end:
                base = self._starts[shard]
                out[start - lo : end - lo] = self._read(shard, path, start - base, end - base)
        return out

    def gather(self, path: str, where: Array, out: Array | None) -> Array:
        """Rows in any order. Large rows are copied one by one, small ones shard by shard."""
        dtype, shape = self.layout(path)
        wanted = (len(where), *shape)
        out = aligned_empty(wanted, dtype) if out is None else _check_out(out, dtype, wanted)
        shard_of = np.searchsorted(self._borders, where, side="right")
        order = np.argsort(shard_of, kind="stable")
        ends = np.flatnonzero(np.diff(shard_of[order], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            at = order[begin:end]
            shard = int(shard_of[at[0]])
            self._gather_one(shard, path, where[at] - self._starts[shard], at, out)
            begin = end
        return out

    def _gather_one(self, shard: int, path: str, local: Array, at: Array, out: Array) -> None:
        column = self._column(shard, path)
        if column is None:
            self._gather_library(shard, path, local, at, out)
        elif column.nbytes // max(1, len(column)) > _SMALL_ROW_BYTES:
            copy_rows(column, local.tolist(), out, at.tolist())
        else:
            out[at] = column[local]

    def _gather_library(self, shard: int, path: str, local: Array, at: Array, out: Array) -> None:
        """Compressed or text: read each touched chunk once."""
        dataset = self._dataset(shard, path)
        rows = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
        for chunk in np.unique(local // rows).tolist():
            lo = chunk * rows
            mine = local // rows == chunk
            block = self._read(shard, path, lo, min(lo + rows, len(dataset)))
            out[at[mine]] = block[local[mine] - lo]

    def _read(self, shard: int, path: str, lo: int, hi: int) -> Array:
        column = self._column(shard, path)
        if column is not None:
            return column[lo:hi]
        dataset = self._dataset(shard, path)
        text = dataset.dtype.kind == "O"
        try:
            return np.asarray(dataset.asstr()[lo:hi] if text else dataset[lo:hi])
        except OSError as e:
            raise ShardError(f"{self._path(shard)}: {path} cannot be read: {e}; run verify") from e

    def _column(self, shard: int, path: str) -> Array | None:
        mapped = self._mapped.get(shard)
        if mapped is None:
            mapped = self._mapped[shard] = self._map(shard)
        try:
            return mapped[path]
        except KeyError:
            raise ShardError(f"{self._path(shard)} has no '{path}'; run verify") from None

    def _map(self, shard: int) -> dict[str, Array | None]:
        """Map the file once and make a view of every contiguous data set."""
        import h5py

        path = self._path(shard)
        views: dict[str, Array | None] = {}
        try:
            with h5py.File(path, "r", locking=False) as file:
                num_rows = self._data.shards[shard].num_rows
                content = np.memmap(path, np.uint8, "r")
                for name in self._columns:
                    dtype, shape = self.layout(name)
                    dataset = file[name]
                    if dataset.shape != (num_rows, *shape):
                        raise ShardError(
                            f"{path}: {name} has shape {dataset.shape}, expected {(num_rows, *shape)}"
                        )
                    offset = None if dtype.kind == "O" else dataset.id.get_offset()
                    views[name] = None
                    if offset is not None and dataset.dtype == dtype:
                        views[name] = np.ndarray(dataset.shape, dtype, content, offset)
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as e:
            raise ShardError(f"{path} cannot be read: {e}; run verify") from e
        return views

    def _dataset(self, shard: int, path: str) -> Any:
        """Through the library; a process that was forked opens its own files."""
        import h5py

        if self._pid != os.getpid():
            self._files, self._pid = {}, os.getpid()
        file = self._files.get(shard)
        if file is None:
            if len(self._files) >= 64:
                self._files.pop(next(iter(self._files))).close()
            try:
                file = self._files[shard] = h5py.File(self._path(shard), "r", locking=False)
            except OSError as e:
                raise ShardError(f"{self._path(shard)} cannot be read: {e}; run verify") from e
            import hdf5plugin  # noqa: F401 - registers the decompressors
        return file[path]

    def _path(self, shard: int) -> Path:
        return self._data.directory / self._data.shards[shard].file

    def close(self) -> None:
        if self._pid == os.getpid():
            for file in self._files.values():
                file.close()
        self._files.clear()
        self._mapped.clear()


def _as_index(index: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is outside the data set of {size} samples")
    return index + size if index < 0 else index


def _as_indices(key: Any, size: int) -> Array:
    """Non-negative positions from integers or a mask."""
    keys = np.asarray(key)
    if keys.dtype == bool:
        if keys.shape != (size,):
            raise IndexError(f"a mask needs shape ({size},), this one has {keys.shape}")
        return np.flatnonzero(keys)
    if keys.size == 0:
        return np.zeros(0, dtype=np.int64)
    if keys.ndim != 1 or keys.dtype.kind not in "iu":
        raise IndexError(
            f"indices are one-dimensional integers or a mask, not {keys.dtype} of {keys.ndim} axes"
        )
    low, high = int(keys.min()), int(keys.max())
    if low < -size or high >= size:
        raise IndexError(f"index {low if low < -size else high} is outside the data set of {size} samples")
    keys = keys.astype(np.int64, copy=False)
    return np.where(keys < 0, keys + size, keys) if low < 0 else keys


def _check_out(out: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if out.dtype != dtype or out.shape != shape or not out.flags.c_contiguous:
        raise ValueError(f"out has to be C-contiguous {dtype} of shape {shape}, not {out.dtype} {out.shape}")
    return out
