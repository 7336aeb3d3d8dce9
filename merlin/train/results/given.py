"""Inputs as users give them: columns by name, or as columns of a matrix that they call by one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from merlin.base.text import some_of
from merlin.errors import UsageError
from merlin.shards.format.segments import Array

Place = tuple[str, int | None]  # a column of its own, or a number of each row of a matrix


def _find_column(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Place | None:
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
    """The places of those columns that are there.

    Raises UsageError for a series of another length than the model's.
    """
    found = {name: place for name in names if (place := _find_column(name, shapes)) is not None}
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


def matrix_of(inputs: Any, names: Sequence[str]) -> Array:
    """The columns of these names of a mapping or a DataFrame, side by side, (n, d) float64; a number stands for all
    samples. Raises UsageError for columns that are missing, or differ in length."""
    keys = list(inputs.keys())
    is_complete = set(names) <= set(keys)
    shapes = {key: () if is_complete else np.shape(inputs[key])[1:] for key in keys}
    places = find_columns(names, shapes, "inputs")
    require_columns(names, [*keys, *places], "inputs")
    columns = [
        as_real(
            inputs[key] if number is None else np.asarray(inputs[key])[:, number],
            np.float64,
            f"inputs: '{key}'",
        )
        for key, number in places.values()
    ]
    lengths = {name: c.shape for name, c in zip(names, columns, strict=True) if c.ndim}
    if len(set(lengths.values())) > 1 or any(len(shape) > 1 for shape in lengths.values()):
        listed = ", ".join(f"{name} {shape}" for name, shape in lengths.items())
        raise UsageError(f"inputs: columns are numbers, or arrays of one length; found {listed}")
    num = next(iter(lengths.values()), (1,))
    return np.stack([np.broadcast_to(column, num) for column in columns], axis=1)


def as_real(values: Any, dtype: Any, where: str = "inputs") -> Array:
    """Numbers as an array. Raises UsageError for anything else, such as text and complex numbers."""
    found = "complex numbers"
    try:
        array = np.asarray(values)
        if array.dtype.kind != "c":
            return array.astype(dtype, copy=False)
    except (TypeError, ValueError):
        found = repr(values)[:60]
    raise UsageError(
        f"{where}: expected real numbers, in an array, or in a mapping or a DataFrame with a column for each input; "
        f"found {found}"
    )


def checked_matrix(x: Array, names: Sequence[str]) -> Array:
    """A matrix (n, d) with these columns. Raises UsageError if it has another shape, or a value is not finite."""
    if x.ndim != 2 or x.shape[1] != len(names):
        raise UsageError(
            f"inputs of shape {x.shape}: expected (samples, {len(names)}), the columns {', '.join(names)}"
        )
    for name, column in zip(names, x.T, strict=True):
        _require_finite(column, name)
    return x


def checked_images(values: Array, name: str, shape: tuple[int, ...]) -> Array:
    """Images (n, *shape); a single one is one sample. Raises UsageError as `checked_matrix`."""
    if values.shape == shape:
        values = values[np.newaxis]
    if values.shape[1:] != shape:
        expected = ", ".join(map(str, shape))
        raise UsageError(f"inputs: '{name}' of shape {values.shape}: expected (samples, {expected})")
    _require_finite(values, name)
    return values


def _require_finite(values: Array, name: str) -> None:
    """Raise UsageError for the first of the samples (n, …) with a value that is no finite number."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if len(bad):
        what = f"is {values[bad[0]]}, which is" if values.ndim == 1 else "has a value that is"
        more = f"; so in {len(bad) - 1:,} more samples" if len(bad) > 1 else ""
        raise UsageError(f"inputs: row {bad[0]}, '{name}' {what} no finite number{more}")


def require_columns(wanted: Sequence[str], found: Sequence[Any], what: str) -> None:
    """Raise UsageError that names every column that is not there."""
    missing = [name for name in wanted if name not in found]
    if missing:
        there = some_of(dict.fromkeys(map(str, found)), 20) or "none"
        plural = "columns" if len(missing) > 1 else "column"
        raise UsageError(f"{what}: missing {plural} {', '.join(missing)}; there are: {there}")
