"""What functions return: one array per output with a row per sample, or any number of items per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.base.text import some_of
from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.rows import aggregate_of
from merlin.shards.format.segments import Array
from merlin.shards.writing.check import BadOutput, castable, shape_mismatch
from merlin.shards.writing.piece import Piece, convert_rows

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

Outputs = Mapping[str, Array]  # (n, …); a ragged one is (n,) of objects, which are the items of each sample


def ragged_outputs(workspace: Workspace, instance: StepInstance) -> frozenset[str]:
    """The outputs of a function step that a data set collects as ragged fields."""
    targets = map(workspace.instance, instance.feeds)
    fields = [field for target in targets for field in aggregate_of(target).fields]
    return frozenset(field.output for field in fields if field.ragged and field.output)


def item_rows(value: Any, num: int) -> Array:
    """What a function returned for a ragged output, as (num,) objects: the items of each sample.

    It may be a sequence of arrays, an array of objects, a dense array, or a tuple (values, offsets) in which
    sample i has ``values[offsets[i]:offsets[i + 1]]``. Raises ValueError if that does not make `num` samples.
    """
    rows = np.empty(num, dtype=object)
    if isinstance(value, tuple) and len(value) == 2:
        pair = _pair(value, num)
        if pair is not None:
            values, offsets = pair
            ends = offsets.tolist()
            for i in range(num):
                rows[i] = values[ends[i] : ends[i + 1]]
            return rows
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not (is_list or (isinstance(value, np.ndarray) and value.ndim)):
        found = type(value).__name__
        raise ValueError(f"expected a list of {num} arrays or a pair (values, offsets), found {found}")
    if len(value) != num:
        raise ValueError(f"expected {num} arrays (one per sample), found {len(value)}")
    for i in range(num):
        rows[i] = value[i]
    return rows


def _pair(value: tuple[Any, ...], num: int) -> tuple[Array, Array] | None:
    """(values, offsets), if the second one can be the offsets of `num` samples."""
    try:
        values, offsets = np.asarray(value[0]), np.asarray(value[1])
    except ValueError:
        return None
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) != num + 1 or not values.ndim:
        return None
    ascending = bool((np.diff(offsets.astype(np.int64)) >= 0).all())
    return (values, offsets) if ascending and offsets[0] == 0 and offsets[-1] == len(values) else None


def output_rows(column: PlannedField, outputs: Outputs, num_tasks: int) -> Array:
    """The function's array for a field. Raises BadOutput if there is none with a row for each task."""
    name = column.output or column.name
    if name not in outputs:
        raise BadOutput(f"expected an output '{name}', found {some_of(sorted(outputs)) or 'nothing'}")
    try:
        values = np.asarray(outputs[name])
    except ValueError:
        raise BadOutput(f"expected an array of {num_tasks} rows, found lists of unequal length") from None
    if values.ndim == 0 or len(values) != num_tasks:
        found = f"{len(values)} rows" if values.ndim else "a scalar"
        raise BadOutput(f"expected an array of {num_tasks} rows (one per sample), found {found}")
    return values


def take_output(piece: Piece, column: PlannedField, outputs: Outputs, first: int, num_tasks: int) -> None:
    """Check the rows of the piece's tasks, without a loop over tasks unless they are Python objects.

    The outputs have a row for each of `num_tasks` tasks, of which `first` is the first.
    """
    wanted = column.value_dtype
    try:
        rows = output_rows(column, outputs, num_tasks)[piece.lo - first : piece.hi - first]
        if rows.dtype.kind == "O" or column.is_text or column.ragged:
            piece.add(column, convert_rows(piece, column, rows))
            return
        if rows.shape[1:] != column.shape:
            raise BadOutput(shape_mismatch(column, rows.shape[1:]))
        if not castable(rows.dtype, wanted):
            raise BadOutput(f"expected dtype {wanted.name}, found {rows.dtype.name}")
        piece.add(column, rows)
    except BadOutput as e:
        piece.refuse_all(f"field '{column.name}': {e}")
        piece.columns[column.name] = np.zeros((piece.num, *column.shape), dtype=wanted)
