"""NumPy's ways of naming rows, as non-negative positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from merlin.shards.format.segments import Array


def as_index(index: int, size: int) -> int:
    """A position in [0, size); IndexError if there is none."""
    if not -size <= index < size:
        raise IndexError(f"index {index} is outside the data set of {size} samples")
    return index + size if index < 0 else index


def as_number(key: Any) -> int | None:
    """The integer that a key is, also as an array without axes; None for slices, lists and arrays.

    Raises IndexError for anything else, such as True and None, which NumPy takes for axes.
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, slice | list) or np.ndim(key):
        return None
    value = np.asarray(key)
    if value.dtype.kind not in "iu":
        raise IndexError(f"{key!r} names no sample; samples are chosen by integers, a slice or a mask")
    return int(value)


def groups(values: Array) -> Iterator[tuple[int, Array]]:
    """(value, its places in `values`) for each value that integers (n,) have, ascending."""
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for places in np.split(order, cuts) if len(order) else []:
        yield int(values[places[0]]), places


def as_indices(key: Any, size: int) -> Array:
    """Positions (n,) int64 in [0, size) from integers, or from a mask (size,). IndexError for anything else."""
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
    # negative ones are huge here
    if keys.dtype == np.int64 and np.maximum.reduce(keys.view(np.uint64)) < size:
        return keys
    low, high = int(keys.min()), int(keys.max())
    if low < -size or high >= size:
        raise IndexError(f"index {low if low < -size else high} is outside the data set of {size} samples")
    keys = keys.astype(np.int64, copy=False)
    return np.where(keys < 0, keys + size, keys) if low < 0 else keys


def read_only(values: Array) -> Array:
    """The same array, which cannot be written any more: others see it, too."""
    values.flags.writeable = False
    return values


class Rows:
    """The rows that a reader sees: all `total` of a data set, or those at `positions`, in that order."""

    def __init__(self, total: int, positions: Array | None = None) -> None:
        """`positions`, which nobody else has, are made read-only."""
        self.total = total
        self.positions = None if positions is None else read_only(positions)

    def __len__(self) -> int:
        return self.total if self.positions is None else len(self.positions)

    def one(self, index: int) -> int:
        """The row of the data set that an index means."""
        found = as_index(index, len(self))
        return found if self.positions is None else int(self.positions[found])

    def many(self, key: Any) -> Array:
        """The rows that indices, a mask or a slice mean."""
        if isinstance(key, slice):
            return np.arange(*key.indices(self.total)) if self.positions is None else self.positions[key]
        found = as_indices(key, len(self))
        return found if self.positions is None else self.positions[found]

    def stretch(self, key: Any) -> tuple[int, int] | None:
        """(lo, hi) if it is plain to see that a key means consecutive rows."""
        if self.positions is not None or not isinstance(key, slice):
            return None
        lo, hi, step = key.indices(self.total)
        return (lo, max(lo, hi)) if step == 1 else None

    def narrow(self, key: Any) -> Rows:
        """The rows that `key` means among these."""
        return Rows(self.total, self.many(key).copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.total, self.positions)


def require_fit(out: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError for an array that cannot be filled."""
    if out.dtype != dtype or out.shape != shape or not out.flags.c_contiguous:
        raise ValueError(f"out has to be C-contiguous {dtype} of shape {shape}, not {out.dtype} {out.shape}")
