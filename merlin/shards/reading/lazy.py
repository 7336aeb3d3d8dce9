"""Columns that are read when they are indexed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.segments import Array
from merlin.shards.reading.indexing import Rows, as_number
from merlin.shards.reading.store import Store


class LazyArray:
    """One column over all shards.

    A slice of uncompressed rows that lie together is a read-only view of the mapped files; everything else is a
    copy.
    """

    def __init__(self, store: Store, path: str, rows: Rows) -> None:
        self._store, self._path, self._rows = store, path, rows
        self.dtype, shape = store.layout(path)
        self.shape: tuple[int, ...] = (len(self._rows), *shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        key, rest = self._split(key)
        number = as_number(key)
        if number is not None:
            row = self._rows.one(number)
            return self._store.read_rows(self._path, row, row + 1)[(0, *rest)]
        if not isinstance(key, slice):
            return self._take(np.asarray(key), rest)
        stretch = self._rows.stretch(key)
        if stretch is not None:
            values = self._store.read_rows(self._path, *stretch)
        else:
            values = self._store.take_rows(self._path, self._rows.many(key))
        return values[(slice(None), *rest)] if rest else values

    def _split(self, key: Any) -> tuple[Any, tuple[Any, ...]]:
        """Split a key into what chooses samples, and the rest."""
        if not isinstance(key, tuple):
            key = (key,)
        if not key:
            return slice(None), ()
        first, rest = key[0], key[1:]
        if first is not Ellipsis:
            return first, rest
        if sum(each is not None for each in rest) == self.ndim:  # it stands for no axis
            return self._split(rest)
        return slice(None), (Ellipsis, *rest) if rest else ()

    def _take(self, keys: Array, rest: tuple[Any, ...]) -> Array:
        """Samples by integers of any shape or a mask; arrays among the rest go along with these, as in NumPy."""
        flat = keys if keys.dtype == bool else keys.reshape(-1)
        values = self._store.take_rows(self._path, self._rows.many(flat))
        if keys.ndim > 1 or not all(map(_is_basic, rest)):
            places = np.arange(len(values))
            places = places if keys.dtype == bool else places.reshape(keys.shape)
            return np.asarray(values[(places, *rest)])
        return np.asarray(values[(slice(None), *rest)]) if rest else values

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self[:]
        return np.array(values, dtype=dtype, copy=True if copy else None)

    def __repr__(self) -> str:
        return f"LazyArray({self.name!r}, shape={self.shape}, dtype={self.dtype})"


def _is_basic(key: Any) -> bool:
    """True for a kind of key that NumPy takes axis by axis."""
    if isinstance(key, bool):
        return False
    return key is None or key is Ellipsis or isinstance(key, int | np.integer | slice)


class Inputs(Mapping[str, LazyArray]):
    """Lazy columns by label, and the numeric ones together as a matrix."""

    def __init__(self, store: Store, group: str, labels: Sequence[str], rows: Rows) -> None:
        self._store, self._group, self._rows = store, group, rows
        self.labels = tuple(labels)

    def __getitem__(self, label: str) -> LazyArray:
        if label not in self.labels:
            raise KeyError(f"no column '{label}'; there are: {', '.join(self.labels) or 'none'}")
        return LazyArray(self._store, self.path(label), self._rows)

    def path(self, label: str) -> str:
        """The column's path in the shards."""
        return f"{self._group}/{label}"

    def __contains__(self, label: object) -> bool:
        return label in self.labels

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
        out = np.empty((len(range(len(self._rows))[lo:hi]), len(columns)), dtype="<f8")
        for i, column in enumerate(columns):
            out[:, i] = column[lo:hi]
        return out
