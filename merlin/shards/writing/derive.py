"""Derived fields and filters: evaluate a data set's expressions over the tasks that are being collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.rows import aggregate_of
from merlin.shards.format.segments import Array, Ragged, Values
from merlin.shards.writing.check import BadOutput, castable, shape_mismatch
from merlin.shards.writing.expression import Result, evaluate, is_true
from merlin.shards.writing.piece import Piece, as_stored
from merlin.spec.expression import parse

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

parse_once = lru_cache(maxsize=256)(parse)


def derived_order(fields: Sequence[PlannedField]) -> list[PlannedField]:
    """The derived fields, each after those that its expression names."""
    waiting = {field.name: field for field in fields if field.expression}
    ordered: list[PlannedField] = []
    while waiting:
        ready = [f for f in waiting.values() if not waiting.keys() & parse_once(f.expression).names]
        assert ready, "the spec was checked for circles"
        for field in ready:
            ordered.append(waiting.pop(field.name))
    return ordered


class Rules:
    """The expressions of one aggregate over one of its sources."""

    def __init__(self, workspace: Workspace, aggregate: StepInstance, source: StepInstance) -> None:
        self.fields = aggregate_of(aggregate).fields
        self._workspace, self._source = workspace, source
        self._derived = derived_order(self.fields)
        self._valid = [parse_once(text) for text in aggregate_of(aggregate).valid]
        expressions = [*self._valid, *(parse_once(field.expression) for field in self._derived)]
        self._names = {name for expression in expressions for name in expression.names}

    def apply(self, piece: Piece) -> dict[str, Array]:
        """Add the derived columns, then filter; returns by expression which tasks it rejected, if it did.

        Each rejected task counts for the first expression that is not true for it, and is no longer kept.
        """
        if not (self._derived or self._valid):
            return {}
        columns = {**self._given(piece), **piece.columns}
        derived = []
        for field in self._derived:
            found = _derive(field, columns, piece.num)
            columns[field.name] = piece.columns[field.name] = found.stored
            derived.append(found)
        rejected = self._filter(piece, columns)
        for found in derived:
            found.refuse(piece)
        return rejected

    def _given(self, piece: Piece) -> dict[str, Values]:
        """The inputs and parameters that the expressions name; fields come before inputs, these before parameters."""
        found: dict[str, Values] = {
            name: np.array([value] * piece.num, dtype=object if isinstance(value, str) else None)
            for name, value in self._source.params.items()
            if name in self._names
        }
        samples = self._workspace.plan.samples
        if samples is not None and self._source.per_sample and self._names & set(samples.labels):
            table = self._workspace.samples().rows(piece.lo, piece.hi)
            found.update({name: np.asarray(table[name]) for name in samples.labels if name in self._names})
        return found

    def _filter(self, piece: Piece, columns: dict[str, Values]) -> dict[str, Array]:
        rejected: dict[str, Array] = {}
        for expression in self._valid:
            try:
                true = is_true(expression, columns, piece.num)
            except BadOutput as e:
                piece.refuse_all(f"valid '{expression.text}': {e}")
                return {}
            mask = piece.keep & ~true
            if mask.any():
                rejected[expression.text] = rejected.get(expression.text, False) | mask
                piece.keep &= true
        return rejected


class _DerivedColumn(Struct, frozen=True):
    """A derived column; its problems count only after the filters have been applied."""

    field: PlannedField
    raw: Values | None  # as computed
    stored: Values
    undefined: Array  # (n,) bool: samples without a value
    cause: str  # for those

    def refuse(self, piece: Piece) -> None:
        for i in np.flatnonzero(self.undefined & piece.keep).tolist():
            piece.refuse(i, f"field '{self.field.name}': {self.cause}")
        if self.raw is not None:
            piece.refuse_bad(self.field, self.raw)


def _derive(field: PlannedField, columns: Mapping[str, Values], num: int) -> _DerivedColumn:
    expression = parse_once(field.expression)
    try:
        result = _unmixed(field, evaluate(expression, columns, num))
        cause = misfit(field, result)
    except BadOutput as e:
        cause = f"{field.expression}: {e}"
    if cause:
        empty = np.zeros((0 if field.ragged else num, *field.shape), field.value_dtype)
        stored: Values = Ragged(empty, np.zeros(num + 1, np.int64)) if field.ragged else empty
        return _DerivedColumn(field, None, stored, np.ones(num, dtype=bool), cause)
    undefined = _undefined(field, result, num)
    cause = f"{field.expression} is undefined"
    fitting = _fitting(field, result.values) if result.is_mixed else result.values
    return _DerivedColumn(field, result.values, as_stored(field, fitting), undefined, cause)


def _unmixed(field: PlannedField, result: Result) -> Result:
    """Floats of all samples, unless the field is of integers, which some samples have."""
    if not result.is_mixed or field.value_dtype.kind in "iu":
        return result
    return Result(_with_values(result.values, _flat(result.values).astype(np.float64)), result.undefined)


def _fitting(field: PlannedField, values: Values) -> Values:
    """Ints and floats that a cast to integers takes: 0 instead of those that the field cannot hold."""
    limits, flat = np.iinfo(field.value_dtype), _flat(values)
    return _with_values(values, np.where((flat >= limits.min) & (flat <= limits.max), flat, 0))


def _flat(values: Values) -> Array:
    return values.items if isinstance(values, Ragged) else values


def _with_values(values: Values, flat: Array) -> Values:
    return Ragged(flat, values.offsets - values.offsets[0]) if isinstance(values, Ragged) else flat


def _undefined(field: PlannedField, result: Result, num: int) -> Array:
    """(n,) bool: undefined values, which the field's dtype cannot express (floats have NaN)."""
    if result.undefined is not None:
        return result.undefined
    values = result.values
    flat = _flat(values)
    if not (flat.dtype.kind == "f" or result.is_mixed) or field.value_dtype.kind == "f":
        return np.zeros(num, dtype=bool)
    marks = np.asarray((flat != flat).any(axis=tuple(range(1, flat.ndim))))  # NaN
    return values.any_item(marks) if isinstance(values, Ragged) else marks


def misfit(field: PlannedField, result: Result) -> str:
    """Why an expression's value is not what the field says; "" if it is."""
    values = result.values
    found = values.values if isinstance(values, Ragged) else values
    if isinstance(values, Ragged) != field.ragged:
        return "expected items" if field.ragged else "expected one value, found items"
    if found.shape[1:] != field.shape:
        return shape_mismatch(field, found.shape[1:])
    wanted = field.value_dtype
    may_be_integers = wanted.kind in "iu" and (found.dtype.kind == "f" or result.is_mixed)
    if not castable(found.dtype, wanted) and not (may_be_integers and _are_integers(found)):
        return f"expected dtype {wanted.name}, found {found.dtype.name}"
    return ""


def _are_integers(values: Array) -> bool:
    """Return whether these are integers, some of which became floats as they are undefined, or out of range."""
    with np.errstate(invalid="ignore"):
        is_finite = values - values == 0
        return bool((~is_finite | (values % 1 == 0)).all())
