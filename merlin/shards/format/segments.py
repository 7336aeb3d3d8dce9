"""Ragged columns in memory: samples with any number of items each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

Array = np.ndarray[Any, Any]


def offsets_of(lengths: Array | Sequence[int]) -> Array:
    """(n + 1,) int64: where each of n runs of items begins, one after the other, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def numbers_of_runs(begins: Array, lengths: Array) -> Array:
    """The numbers from begins[k] up to begins[k] + lengths[k] of each run k (n,), one run after the other."""
    offsets = offsets_of(lengths)
    return np.repeat(begins - offsets[:-1], lengths) + np.arange(int(offsets[-1]))


def stretches_of(sizes: Array, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows [lo, hi) of at most so many bytes together; a row of more bytes is a stretch of its own."""
    ends = np.cumsum(sizes)
    lo = 0
    while lo < len(sizes):
        before = int(ends[lo - 1]) if lo else 0
        hi = max(lo + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        yield lo, hi
        lo = hi


class Ragged(Struct, frozen=True):
    """Sample i has the items values[offsets[i]:offsets[i + 1]]."""

    values: Array  # (items, *shape of one item)
    offsets: Array  # (n + 1,) int64, ascending; the first one need not be 0

    @classmethod
    def of(cls, rows: Sequence[Array | None], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Ragged:
        """Make it from each sample's items, (m, *shape), cast to `dtype`; None stands for no items."""
        offsets = offsets_of([0 if row is None else len(row) for row in rows])
        values = np.empty((int(offsets[-1]), *shape), dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for row, lo, hi in zip(rows, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                if row is not None:
                    values[lo:hi] = row
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, key: Any) -> Any:
        """The items of one sample, a view; a slice, integers or a mask give a Ragged."""
        if isinstance(key, int | np.integer):
            index = int(key) + len(self) if key < 0 else int(key)
            if not 0 <= index < len(self):
                raise IndexError(f"index {key} is outside of {len(self)} samples")
            return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]
        if isinstance(key, slice) and key.step in (None, 1):
            lo, hi, _ = key.indices(len(self))
            return Ragged(self.values, self.offsets[lo : max(lo, hi) + 1])
        begins, lengths = self.offsets[:-1][key], self.lengths[key]
        return Ragged(self.values[numbers_of_runs(begins, lengths)], offsets_of(lengths))

    def __iter__(self) -> Iterator[Array]:
        for lo, hi in itertools.pairwise(self.offsets.tolist()):
            yield self.values[lo:hi]

    def to_list(self) -> list[Array]:
        """The items of each sample: views."""
        return list(self)

    def padded(self, fill: Any = 0, length: int | None = None) -> Array:
        """(n, length, *shape of one item): short samples filled up, longer ones cut; `length` None: the longest."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        out = np.full((len(self), width, *self.values.shape[1:]), fill, self.values.dtype)
        is_there = np.arange(width) < lengths[:, None]
        if length is None:
            out[is_there] = self.items
        else:
            within = np.arange(len(self.items)) - np.repeat(self.offsets[:-1] - self.offsets[0], lengths)
            out[is_there] = self.items[within < width]
        return out

    @property
    def lengths(self) -> Array:
        """(n,) the number of items of each sample."""
        return np.diff(self.offsets)

    @property
    def items(self) -> Array:
        """The items of all samples together: a view."""
        return self.values[int(self.offsets[0]) : int(self.offsets[-1])]

    def select(self, keep: Array) -> Ragged:
        """The samples where `keep` (n,) is true; a copy unless that is all of them."""
        if keep.all():
            return Ragged(self.items, self.offsets - self.offsets[0])
        return Ragged(self.items[np.repeat(keep, self.lengths)], offsets_of(self.lengths[keep]))

    def any_item(self, marks: Array) -> Array:
        """(n,) bool: for which samples one of the `marks` (items,) is set."""
        counted = np.concatenate(([0], np.cumsum(marks)))
        ends = self.offsets - self.offsets[0]
        return np.asarray(counted[ends[1:]] > counted[ends[:-1]])


Values = Array | Ragged  # of a field in memory: (n, …), or ragged
