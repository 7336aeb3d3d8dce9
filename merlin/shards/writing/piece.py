"""The tasks whose outputs are being collected: their columns, and which of them were refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field

from merlin.base.field import Field
from merlin.shards.format.segments import Array, Ragged, Values
from merlin.shards.writing.check import (
    BadOutput,
    bad_rows,
    bad_samples,
    convert,
    explain_bad_row,
    explain_bad_sample,
)
from merlin.shards.writing.rounding import round_mantissa


class Piece(Struct):
    """Tasks [lo, hi) of one source, all of one shard. Refused tasks have a cause and are not kept."""

    lo: int
    hi: int
    keep: Array  # (hi - lo,) bool
    causes: dict[int, str]  # by task
    # by field name; values of tasks not kept mean nothing
    columns: dict[str, Values] = field(default_factory=dict)

    @property
    def num(self) -> int:
        return self.hi - self.lo

    def refuse(self, i: int, cause: str) -> None:
        """Refuse task lo + i, which is then not stored."""
        self.causes[self.lo + i] = cause
        self.keep[i] = False

    def refuse_all(self, cause: str) -> None:
        for i in np.flatnonzero(self.keep):
            self.refuse(int(i), cause)

    def refuse_bad(self, column: Field, values: Values, place: str = "") -> None:
        """Refuse the tasks with a value that the field cannot hold, or that is not finite though it must be."""
        for i in np.flatnonzero(bad_samples(column, values) & self.keep):
            self.refuse(int(i), f"field '{column.name}': {place}{explain_bad_sample(column, values, int(i))}")

    def add(self, column: Field, values: Values, place: str = "") -> None:
        """Check values of the right shape, and keep them as they will be stored."""
        self.refuse_bad(column, values, place)
        self.columns[column.name] = as_stored(column, values)


def as_stored(column: Field, values: Values) -> Values:
    """Cast to the field's dtype and rounded as it says; nothing is copied where nothing changes."""
    if isinstance(values, Ragged):
        return Ragged(_as_stored(column, values.values), values.offsets)
    return _as_stored(column, values)


def _as_stored(column: Field, values: Array) -> Array:
    wanted = column.value_dtype
    if values.dtype != wanted:
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(wanted)
    return values if column.keep_bits is None else round_mantissa(values, column.keep_bits)


class ColumnBuilder:
    """Puts a field's column together from one value per task; the dense one is one array from the start."""

    def __init__(self, column: Field, num: int) -> None:
        self._field = column
        self._num = num
        self._items: list[Array | None] = [None] * num if column.ragged else []
        self._values: Array = np.zeros(0)
        if column.is_text:
            self._values = np.full(num, "", dtype=object)
        elif not column.ragged:
            self._values = np.zeros((num, *column.shape), dtype=column.value_dtype)

    def put(self, i: int, value: Any) -> int:
        """Store what `convert` made for task i; returns the bytes it takes beyond those of a dense row.

        Raises BadOutput for values that the dtype cannot hold, as the cast would hide them.
        """
        column = self._field
        if column.ragged:
            self._refuse_misfits(value)
            self._items[i] = value
            return int(value.nbytes)
        if isinstance(value, np.ndarray) and value.dtype != self._values.dtype:
            self._refuse_misfits(value[None])
            with np.errstate(over="ignore"):
                self._values[i] = value
        else:
            self._values[i] = value
        return len(value) if isinstance(value, str) else 0

    def _refuse_misfits(self, rows: Array) -> None:
        bad = bad_rows(self._field, rows)
        if bad.any():
            raise BadOutput(explain_bad_row(self._field, rows if self._field.ragged else rows[0]))

    def cut(self, num: int) -> Values:
        """The column of the first `num` tasks."""
        if self._field.ragged:
            return Ragged.of(self._items[:num], self._field.value_dtype, self._field.shape)
        return self._values[:num]


def convert_rows(piece: Piece, column: Field, rows: Array) -> Values:
    """Rows that are Python objects (text, arrays that did not stack, items), one by one."""
    builder = ColumnBuilder(column, piece.num)
    for i in np.flatnonzero(piece.keep):
        try:
            builder.put(int(i), convert(column, rows[i]))
        except BadOutput as e:
            piece.refuse(int(i), f"field '{column.name}': {e}")
    return builder.cut(piece.num)
