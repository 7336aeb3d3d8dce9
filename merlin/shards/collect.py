"""Collect a chunk's outputs into bundles, right after the chunk ran, while its files are in the page cache.

A missing or malformed output is the cause of its task's failure, never of the study's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.shards.bundle import Column, bundle_directory, free_path, write_bundle
from merlin.shards.check import (
    BadOutput,
    bad_rows,
    castable,
    convert,
    explain_bad_row,
    field_dtype,
    is_text,
    shape_mismatch,
)
from merlin.shards.extract import TaskFiles
from merlin.shards.rows import row_map
from merlin.study.plan import Field, StepInstance

if TYPE_CHECKING:
    from merlin.study.workspace import Workspace

Outputs = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """Tasks [lo, hi) of `source`, of which those with `ok` ran well and are to be collected."""

    workspace: Workspace
    aggregate: StepInstance
    source: StepInstance
    lo: int
    hi: int
    ok: np.ndarray[Any, Any]  # bool (hi - lo,)
    outputs: Outputs | None  # of a function: name -> array (hi - lo, …); rows that are not ok are ignored
    attempt: int
    worker: str


def collect_chunk(request: CollectRequest) -> dict[int, str]:
    """Write the chunk's bundles, one per shard it touches; return task -> cause for each bad output.

    The bundles are durable when this returns. Tasks of the result, and those not ok, are in no bundle.
    """
    rows = row_map(request.workspace, request.aggregate)
    first = rows.first_row(request.source.id)
    causes: dict[int, str] = {}
    for shard, lo, hi in rows.pieces(first + request.lo, first + request.hi):
        _collect_piece(request, shard, lo - first, hi - first, first, causes)
    return causes


def _collect_piece(
    request: CollectRequest, shard: int, lo: int, hi: int, first: int, causes: dict[int, str]
) -> None:
    """Collect tasks [lo, hi), all of one shard."""
    keep = np.array(request.ok[lo - request.lo : hi - request.lo], dtype=bool)
    if not keep.any():
        return
    columns = gather_columns(request, lo, hi, keep, causes)
    if not keep.any():
        return
    directory = bundle_directory(request.workspace.path, request.aggregate.id, shard)
    path = free_path(directory, first + lo, first + hi, request.attempt, request.worker)
    attributes: dict[str, str | int] = {
        "aggregate": request.aggregate.id,
        "source": request.source.id,
        "attempt": request.attempt,
        "worker": request.worker,
    }
    write_bundle(path, np.arange(first + lo, first + hi, dtype="<i8"), keep, columns, attributes)


def gather_columns(
    request: CollectRequest, lo: int, hi: int, keep: np.ndarray[Any, Any], causes: dict[int, str]
) -> dict[str, Column]:
    """Every field's values for tasks [lo, hi); clears `keep` and adds a cause where a value is bad."""
    assert request.aggregate.aggregate is not None
    fields = request.aggregate.aggregate.fields
    outputs = request.outputs
    found: dict[str, np.ndarray[Any, Any]] = {}
    from_files: list[Field] = []
    for field in fields:
        if outputs is None or (field.file and not field.output):
            from_files.append(field)
            continue
        values = _output(field, outputs, request.hi - request.lo)
        found[field.name] = _check_output(field, values, request, lo, hi, keep, causes)
    if from_files and keep.any():
        found.update(_read_files(tuple(from_files), request, lo, hi, keep, causes))
    return {f.name: Column(found[f.name], field_dtype(f)) for f in fields if f.name in found}


def _output(field: Field, outputs: Outputs, num_tasks: int) -> np.ndarray[Any, Any] | str:
    """The function's array for a field, or why there is none."""
    name = field.output or field.name
    if name not in outputs:
        found = ", ".join(sorted(outputs)[:8]) or "nothing"
        return f"expected an output '{name}', found {found}"
    try:
        values = np.asarray(outputs[name])
    except ValueError:
        return f"expected an array of {num_tasks} rows, found lists of unequal length"
    if values.ndim == 0 or len(values) != num_tasks:
        found = f"{len(values)} rows" if values.ndim else "a scalar"
        return f"expected an array of {num_tasks} rows (one per sample), found {found}"
    return values


def _check_output(
    field: Field,
    values: np.ndarray[Any, Any] | str,
    request: CollectRequest,
    lo: int,
    hi: int,
    keep: np.ndarray[Any, Any],
    causes: dict[int, str],
) -> np.ndarray[Any, Any]:
    """The rows of tasks [lo, hi), checked without a loop over tasks unless they are Python objects."""
    wanted = field_dtype(field)
    cause = values if isinstance(values, str) else ""
    if not isinstance(values, str):
        values = values[lo - request.lo : hi - request.lo]
        if values.dtype.kind == "O" or is_text(field):
            return _convert_rows(field, values, lo, keep, causes)
        if values.shape[1:] != field.shape:
            cause = shape_mismatch(field, values.shape[1:])
        elif not castable(values.dtype, wanted):
            cause = f"expected dtype {wanted.name}, found {values.dtype.name}"
        else:
            _reject(field, values, "", lo, keep, causes)
            return values if values.dtype.kind == wanted.kind else values.astype(wanted)
    for i in np.flatnonzero(keep):
        causes[lo + int(i)] = f"field '{field.name}': {cause}"
    keep[:] = False
    return np.zeros((hi - lo, *field.shape), dtype=wanted)


def _reject(
    field: Field,
    values: np.ndarray[Any, Any],
    place: str,
    lo: int,
    keep: np.ndarray[Any, Any],
    causes: dict[int, str],
) -> None:
    """Drop the rows whose values are out of range or not finite."""
    bad = bad_rows(field, values) & keep
    for i in np.flatnonzero(bad):
        causes[lo + int(i)] = f"field '{field.name}': {place}{explain_bad_row(field, values[i])}"
    keep &= ~bad


def _convert_rows(
    field: Field, values: np.ndarray[Any, Any], lo: int, keep: np.ndarray[Any, Any], causes: dict[int, str]
) -> np.ndarray[Any, Any]:
    """Rows that are Python objects (text, or arrays that did not stack), one by one."""
    column = _empty(field, len(values))
    for i in np.flatnonzero(keep):
        try:
            _store(field, column, int(i), convert(field, values[i]))
        except BadOutput as e:
            causes[lo + int(i)] = f"field '{field.name}': {e}"
            keep[i] = False
    _reject(field, column, "", lo, keep, causes)
    return column


def _read_files(
    fields: tuple[Field, ...],
    request: CollectRequest,
    lo: int,
    hi: int,
    keep: np.ndarray[Any, Any],
    causes: dict[int, str],
) -> dict[str, np.ndarray[Any, Any]]:
    """Read the fields of tasks [lo, hi) from their directories."""
    files = TaskFiles(fields)
    columns = {field.name: _empty(field, hi - lo) for field in fields}
    for i in np.flatnonzero(keep):
        index, task = int(i), lo + int(i)
        try:
            values = files.read(os.fspath(request.workspace.task_dir(request.source, task)))
            for field in fields:
                _store(field, columns[field.name], index, values[field.name])
        except BadOutput as e:
            causes[task] = (
                str(e) if str(e).startswith("field '") else f"field '{field.name}': {field.file}: {e}"
            )
            keep[index] = False
    for field in fields:
        _reject(field, columns[field.name], f"{field.file}: ", lo, keep, causes)
    return columns


def _empty(field: Field, num_tasks: int) -> np.ndarray[Any, Any]:
    if is_text(field):
        return np.full(num_tasks, "", dtype=object)
    return np.zeros((num_tasks, *field.shape), dtype=field_dtype(field))


def _store(field: Field, column: np.ndarray[Any, Any], index: int, value: Any) -> None:
    """Put one converted value into its row; refuses what the dtype cannot hold, as a cast would hide it."""
    if isinstance(value, np.ndarray) and value.dtype != column.dtype:
        bad = bad_rows(field, value[None])
        if bad[0]:
            raise BadOutput(explain_bad_row(field, value))
        with np.errstate(over="ignore"):
            column[index] = value
    else:
        column[index] = value


def save_outputs(
    workspace: Workspace,
    instance: StepInstance,
    lo: int,
    hi: int,
    ok: np.ndarray[Any, Any],
    outputs: Outputs,
    attempt: int,
    worker: str,
) -> dict[int, str]:
    """Keep what a function returned for tasks [lo, hi) although no aggregate collects it.

    Writes ``<instance id>/outputs/<lo>-<hi>-<attempt>-<worker>.h5``, laid out like a bundle with tasks as
    rows; returns task -> cause where an output has the wrong number of rows or cannot be stored.
    """
    keep = np.array(ok, dtype=bool)
    causes: dict[int, str] = {}
    columns: dict[str, Column] = {}
    for name in outputs:
        values = _output(Field(name=name, output=name), outputs, hi - lo)
        if not isinstance(values, str) and values.dtype.kind in "OUS":
            values = _convert_rows(Field(name=name, kind="text"), values, lo, keep, causes)
        if isinstance(values, str):
            causes.update({lo + int(i): f"output '{name}': {values}" for i in np.flatnonzero(keep)})
            keep[:] = False
            continue
        columns[name] = Column(values, values.dtype)
    if keep.any():
        path = free_path(workspace.path / instance.id / "outputs", lo, hi, attempt, worker)
        attributes: dict[str, str | int] = {"source": instance.id, "attempt": attempt, "worker": worker}
        write_bundle(path, np.arange(lo, hi, dtype="<i8"), keep, columns, attributes)
    return causes
