"""Whole batches of NumPy arrays, gathered into memory that is used again and again; no torch here.

A batch is what a trainer asked for, under the keys it will see: matrices of scalars, dense fields, ragged fields.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from merlin.shards.format.aligned import aligned_empty
from merlin.shards.reading.reader import Ensemble
from merlin.train.loading.columns import Column
from merlin.train.loading.scaling import Scaling

Array = np.ndarray[Any, Any]
Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and type of arrays, by key

FLOAT = np.dtype("<f4")
_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Source:
    """The samples of a data set that a trainer sees: sample i is row rows[i] of the ensemble, or row i."""

    ens: Ensemble
    rows: Array | None

    def __len__(self) -> int:
        return len(self.ens) if self.rows is None else len(self.rows)

    def rows_of(self, indices: Array) -> Array:
        return indices if self.rows is None else self.rows[indices]


class Item(Protocol):
    """A part of a batch, of one key or several."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    def layout(self, source: Source, num: int) -> Layout:
        """The arrays that hold up to `num` samples."""
        ...

    def read(self, source: Source, indices: Array, into: Mapping[str, Array] | None) -> dict[str, Array]:
        """Read samples `indices`; returns the parts of the arrays `into` that they fill, or new arrays."""
        ...


@dataclass
class Matrix:
    """Numbers and series side by side: (n, numbers of a sample) float32, normalised when they are read.

    Kept in memory if that takes no more than `cache_bytes`, so that a batch is a single gather.
    """

    key: str
    columns: Sequence[Column]
    scaling: Scaling | None
    cache_bytes: int
    _cached: Array | None = field(default=None, repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def width(self) -> int:
        return sum(len(column.column_names) for column in self.columns)

    def layout(self, source: Source, num: int) -> Layout:
        return {self.key: ((num, self.width), FLOAT)}

    def prepare(self, source: Source) -> None:
        """Read everything, if it is to be kept."""
        shape = (len(source), self.width)
        if self._cached is not None or FLOAT.itemsize * shape[0] * shape[1] > self.cache_bytes:
            return
        values = aligned_empty(shape, FLOAT)
        for lo in range(0, len(source), _BLOCK_ROWS):
            part = values[lo : lo + _BLOCK_ROWS]
            self._gather(source, source.rows_of(np.arange(lo, lo + len(part))), part)
        self._cached = values

    def read(self, source: Source, indices: Array, into: Mapping[str, Array] | None) -> dict[str, Array]:
        out = (
            new_arrays(self, source, len(indices))[self.key]
            if into is None
            else into[self.key][: len(indices)]
        )
        self.prepare(source)
        if self._cached is None:
            self._gather(source, source.rows_of(indices), out)
        else:
            np.take(self._cached, indices, axis=0, out=out, mode="clip")
        return {self.key: out}

    def _gather(self, source: Source, rows: Array, out: Array) -> None:
        values = np.empty(out.shape, np.float64)
        place = 0
        for column in self.columns:
            width = len(column.column_names)
            values[:, place : place + width] = np.reshape(column.read(source.ens, rows), (-1, width))
            place += width
        if self.scaling is None:
            out[...] = values
        else:
            self.scaling.apply(values, out)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}


@dataclass
class Dense:
    """Fields of fixed shape, (n, *shape) each, gathered together."""

    columns: Sequence[Column]
    dtypes: Mapping[str, np.dtype[Any]]  # by name
    scalings: Mapping[str, Scaling]
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def layout(self, source: Source, num: int) -> Layout:
        return {c.name: ((num, *c.shape), self.dtypes[c.name]) for c in self.columns}

    def read(self, source: Source, indices: Array, into: Mapping[str, Array] | None) -> dict[str, Array]:
        num = len(indices)
        arrays = new_arrays(self, source, num) if into is None else into
        out = {c.name: arrays[c.name][:num] for c in self.columns}
        stored = {
            c.name: out[c.name] if c.dtype == self.dtypes[c.name] else self._narrow(c, num)
            for c in self.columns
        }
        source.ens.batch(source.rows_of(indices), list(stored), stored)
        for name, values in stored.items():
            if name in self.scalings:
                self.scalings[name].apply(values, out[name])
            elif values is not out[name]:
                out[name][...] = values
        return out

    def _narrow(self, column: Column, num: int) -> Array:
        """Memory for values as they are stored, before they are converted."""
        kept: Array | None = getattr(self._scratch, column.name, None)
        if kept is None or len(kept) < num:
            kept = aligned_empty((num, *column.shape), column.dtype)
            setattr(self._scratch, column.name, kept)
        return kept[:num]

    def __reduce__(self) -> Any:
        return Dense, (self.columns, self.dtypes, self.scalings)


def new_arrays(item: Item, source: Source, num: int) -> dict[str, Array]:
    return {key: aligned_empty(shape, dtype) for key, (shape, dtype) in item.layout(source, num).items()}


class BatchReader:
    """Reads batches of some items of a source; any thread may."""

    def __init__(self, source: Source, items: Sequence[Item]) -> None:
        self.source = source
        self.items = items

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for item in self.items for key in item.keys)

    def layout(self, num: int) -> Layout:
        """The arrays that hold any batch of up to `num` samples."""
        return {key: what for item in self.items for key, what in item.layout(self.source, num).items()}

    def allocate(self, num: int) -> dict[str, Array]:
        """Memory for batches of up to `num` samples."""
        return {
            key: array for item in self.items for key, array in new_arrays(item, self.source, num).items()
        }

    def prepare(self) -> None:
        """Read what is kept in memory, e.g. before a process is forked that shall share it."""
        for item in self.items:
            if isinstance(item, Matrix):
                item.prepare(self.source)

    def read(self, indices: Array, into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Samples `indices` (n,), int64 and in range: the filled parts of the arrays `into`, or new arrays.

        An array has n samples, or if it is of variable length as many items as these have.
        """
        batch: dict[str, Array] = {}
        for item in self.items:
            batch |= item.read(self.source, indices, into)
        return batch
