"""Ragged columns in memory: samples with any number of items each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

Array = np.ndarray[Any, Any]


class Ragged(Struct, frozen=True):
    """Sample i has the items values[offsets[i]:offsets[i + 1]]."""

    values: Array  # (items, *shape of one item)
    offsets: Array  # (n + 1,) int64, ascending; the first one need not be 0

    @classmethod
    def of(cls, rows: Sequence[Array | None], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Ragged:
        """Make it from each sample's items, (m, *shape), cast to `dtype`; None stands for no items."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
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
            return self.rows(lo, max(lo, hi))
        begins, lengths = self.offsets[:-1][key], self.lengths[key]
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        picked = np.repeat(begins - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        return Ragged(self.values[picked], offsets)

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

    def rows(self, lo: int, hi: int) -> Ragged:
        """Samples [lo, hi), sharing the values."""
        return Ragged(self.values, self.offsets[lo : hi + 1])

    def select(self, keep: Array) -> Ragged:
        """The samples where `keep` (n,) is true; a copy unless that is all of them."""
        if keep.all():
            return Ragged(self.items, self.offsets - self.offsets[0])
        lengths = self.lengths
        offsets = np.zeros(int(np.count_nonzero(keep)) + 1, np.int64)
        np.cumsum(lengths[keep], out=offsets[1:])
        return Ragged(self.items[np.repeat(keep, lengths)], offsets)

    def any_item(self, marks: Array) -> Array:
        """(n,) bool: for which samples one of the `marks` (items,) is set."""
        counted = np.concatenate(([0], np.cumsum(marks)))
        ends = self.offsets - self.offsets[0]
        return np.asarray(counted[ends[1:]] > counted[ends[:-1]])


Values = Array | Ragged  # of a field in memory: (n, …), or ragged
