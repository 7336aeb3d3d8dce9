"""Inputs as users give them: columns by name, or as columns of a matrix that they call by one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from merlin.errors import UsageError

Array = np.ndarray[Any, Any]
Place = tuple[str, int | None]  # a column of its own, or a number of each row of a matrix


def find_column(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Place | None:
    """Where a column is, among arrays whose samples have these shapes; None if it is nowhere.

    z3 is the column of that name, else number 3 of z, as an import names the columns of a matrix; so is z[3], which is
    what the numbers of a series are called.
    """
    if name in shapes:
        return name, None
    for key, number in _splits(name):
        if len(shapes.get(key, ())) == 1 and number < shapes[key][0]:
            return key, number
    return None


def find_columns(names: Iterable[str], shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, Place]:
    """The places of those that are there. Raises UsageError for a series of another length than the model's."""
    found = {name: place for name in names if (place := find_column(name, shapes)) is not None}
    widths = Counter(key for name, (key, number) in found.items() if number is not None and name[-1] == "]")
    for key, width in widths.items():
        if shapes[key] != (width,):
            raise UsageError(
                f"{where}: '{key}' has {shapes[key][0]:,} numbers per sample, the model's has {width:,}"
            )
    return found


def _splits(name: str) -> Iterator[tuple[str, int]]:
    key, bracket, number = name.removesuffix("]").rpartition("[")
    if bracket and name.endswith("]") and number.isdecimal():
        yield key, int(number)
    for cut in range(len(name) - 1, 0, -1):
        digits = name[cut:]
        if not digits.isdecimal():
            return
        if digits == "0" or digits[0] != "0":
            yield name[:cut], int(digits)


def taken(arrays: Any, place: Place) -> Any:
    """The column at a place, of a mapping or a DataFrame."""
    key, number = place
    return arrays[key] if number is None else np.asarray(arrays[key])[:, number]


def require_finite(values: Array, where: str, name: str) -> None:
    """UsageError for the first of the samples with a value that is no finite number."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if len(bad):
        raise UsageError(
            f"{where}: row {bad[0]}, '{name}' has a value that is no finite number"
            + (f"; so have {len(bad) - 1:,} more samples" if len(bad) > 1 else "")
        )
