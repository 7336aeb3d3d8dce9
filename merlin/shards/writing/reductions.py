"""Sums, means and the like over all values of each sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from merlin.shards.format.segments import Array


def reduced(name: str, data: Array, offsets: Array | None) -> Array:
    """(n,) one number per sample, of dense values (n, …) or of items with offsets (n + 1,).

    `name` is sum, mean, std, min or max. Of no values the sum is 0, and everything else is undefined.
    """
    data = np.ascontiguousarray(data)
    per_entry = int(np.prod(data.shape[1:], dtype=np.int64))
    if offsets is not None:
        return _reduced_items(name, data.reshape(-1), offsets * per_entry)
    if not per_entry:
        return np.full(len(data), 0.0 if name == "sum" else np.nan)
    return _REDUCE[name](data.reshape(len(data), per_entry))


_REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda flat: flat.sum(axis=1),
    "mean": lambda flat: flat.astype(np.float64, copy=False).sum(axis=1) / flat.shape[1],
    "std": lambda flat: flat.astype(np.float64, copy=False).std(axis=1),
    "min": lambda flat: flat.min(axis=1),
    "max": lambda flat: flat.max(axis=1),
}


def _reduced_items(name: str, flat: Array, offsets: Array) -> Array:
    lengths = np.diff(offsets)
    some = lengths > 0
    starts, num = offsets[:-1][some], lengths[some]

    def over_items(function: np.ufunc, values: Array) -> Array:
        return np.asarray(function.reduceat(values, starts) if len(starts) else values[:0])

    if name == "sum":
        total = np.zeros(len(lengths), flat.dtype)
        total[some] = over_items(np.add, flat)
        return total
    if name in ("min", "max"):
        found = over_items(np.minimum if name == "min" else np.maximum, flat)
        if some.all():
            return found
    else:
        wide = flat.astype(np.float64, copy=False)
        found = over_items(np.add, wide) / num
        if name == "std":
            deviations = wide - np.repeat(found, num)
            found = np.sqrt(over_items(np.add, deviations * deviations) / num)
    out = np.full(len(lengths), np.nan)
    out[some] = found
    return out
