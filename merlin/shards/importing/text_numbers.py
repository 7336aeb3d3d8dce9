"""Numbers that a file has as text. Empty text is NaN for a floating-point type, and no number of any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from merlin.shards.format.segments import Array

_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def numbers_in(cells: Sequence[str], dtype: np.dtype[Any]) -> Array:
    """The numbers, in the widest type of their kind; those that `not_numbers` reports become zero."""
    wide = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64), "f": np.dtype(np.float64)}.get(
        dtype.kind, dtype
    )
    if dtype.kind == "f":
        try:
            return np.array(list(map(float, cells)), wide)
        except ValueError:
            pass
    parsed = (_parse(cell, dtype) for cell in cells)
    numbers = [0 if value is None else value for value in parsed]
    try:
        return np.array(numbers, wide)
    except OverflowError:
        limits = np.iinfo(wide)
        return np.array([value if limits.min <= value <= limits.max else 0 for value in numbers], wide)


def not_numbers(cells: Sequence[str], dtype: np.dtype[Any]) -> dict[int, str]:
    """The places of what is no number of this type, and why."""
    found = {}
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    for i, cell in enumerate(cells):
        value = _parse(cell, dtype)
        if value is None:
            what = f"found {cell[:40]!r}" if cell else "the value is missing"
            found[i] = f"expected {dtype.name}, {what}"
        elif limits and not limits.min <= value <= limits.max:
            found[i] = f"expected {dtype.name} values, found {value}, which is out of range"
    return found


def _parse(cell: str, dtype: np.dtype[Any]) -> Any:
    """A number of the dtype's kind, or None."""
    try:
        match dtype.kind:
            case "i" | "u":
                return int(cell)
            case "b":
                return _TRUTH.get(cell.lower())
            case "c":
                return complex(cell)
        return float(cell) if cell else float("nan")
    except ValueError:
        return None
