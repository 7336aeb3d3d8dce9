"""Derived fields and filters: evaluate a data set's expressions over the tasks that are being collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.segments import Ragged, Values
from merlin.shards.writing.check import BadOutput, castable, shape_mismatch
from merlin.shards.writing.expression import Result, evaluate, is_true
from merlin.shards.writing.piece import Piece, as_stored
from merlin.spec.expression import parse

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

Array = np.ndarray[Any, Any]

_parse = lru_cache(maxsize=256)(parse)


def derived_order(fields: Sequence[PlannedField]) -> list[PlannedField]:
    """The derived fields, each after those that its expression names."""
    waiting = {field.name: field for field in fields if field.expression}
    ordered: list[PlannedField] = []
    while waiting:
        ready = [f for f in waiting.values() if not waiting.keys() & _parse(f.expression).names]
        assert ready, "the spec was checked for circles"
        for field in ready:
            ordered.append(waiting.pop(field.name))
    return ordered


class Rules:
    """The expressions of one aggregate over one of its sources."""

    def __init__(self, workspace: Workspace, aggregate: StepInstance, source: StepInstance) -> None:
        assert aggregate.aggregate is not None
        self.fields = aggregate.aggregate.fields
        self._workspace, self._source = workspace, source
        self._derived = derived_order(self.fields)
        self._valid = [_parse(text) for text in aggregate.aggregate.valid]
        expressions = [*self._valid, *(_parse(field.expression) for field in self._derived)]
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
    expression = _parse(field.expression)
    try:
        result = evaluate(expression, columns, num)
        cause = misfit(field, result)
    except BadOutput as e:
        cause = f"{field.expression}: {e}"
    if cause:
        empty = np.zeros((0 if field.ragged else num, *field.shape), field.value_dtype)
        stored: Values = Ragged(empty, np.zeros(num + 1, np.int64)) if field.ragged else empty
        return _DerivedColumn(field, None, stored, np.ones(num, dtype=bool), cause)
    undefined = _undefined(field, result, num)
    cause = f"{field.expression} is undefined"
    return _DerivedColumn(field, result.values, as_stored(field, result.values), undefined, cause)


def _undefined(field: PlannedField, result: Result, num: int) -> Array:
    """(n,) bool: undefined values, which the field's dtype cannot express (floats have NaN)."""
    if result.undefined is not None:
        return result.undefined
    values = result.values
    flat = values.items if isinstance(values, Ragged) else values
    if flat.dtype.kind != "f" or field.value_dtype.kind == "f":
        return np.zeros(num, dtype=bool)
    marks = np.asarray(np.isnan(flat).any(axis=tuple(range(1, flat.ndim))))
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
    if not castable(found.dtype, wanted) and not (wanted.kind in "iu" and _are_integers(found)):
        return f"expected dtype {wanted.name}, found {found.dtype.name}"
    return ""


def _are_integers(values: Array) -> bool:
    """Return whether these are integers that became floats because some are undefined."""
    return values.dtype.kind == "f" and bool((np.isnan(values) | (values % 1 == 0)).all())
