"""Collect a chunk's outputs into bundles, right after the chunk ran, while its files are in the page cache.

A missing or malformed output is the cause of its task's failure, never of the study's. What the filters of the data set
reject is not stored, and the bundle says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from merlin.plan.plan import PlannedField, StepInstance
from merlin.shards.format.rows import aggregate_of, row_map
from merlin.shards.format.segments import Array, Values
from merlin.shards.writing.bundle import (
    GATHERED,
    Contribution,
    Origin,
    free_path,
    write_bundle,
)
from merlin.shards.writing.check import BadOutput
from merlin.shards.writing.derive import Rules
from merlin.shards.writing.extract import TaskFiles
from merlin.shards.writing.folders import Folders
from merlin.shards.writing.graph_check import refuse_bad_graphs
from merlin.shards.writing.outputs import Outputs, output_rows, take_output
from merlin.shards.writing.piece import ColumnBuilder, Piece, convert_rows

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

SLICE_BYTES = 64 << 20  # of values read from files that are in memory at once


class CollectRequest(Struct, frozen=True, kw_only=True):
    """Tasks [lo, hi) of `source`, of which those with `ok` ran well and are to be collected."""

    workspace: Workspace
    aggregate: StepInstance
    source: StepInstance
    lo: int
    hi: int
    ok: Array  # bool (hi - lo,)
    # of a function: name -> array (hi - lo, …); rows that are not ok are ignored
    outputs: Outputs | None = None
    origin: Origin = GATHERED
    folders: Folders | None = None  # None: those of a run


def collect_chunk(request: CollectRequest) -> dict[int, str]:
    """Write the chunk's bundles, at least one per shard it touches; return task -> cause for each bad output.

    The bundles are durable when this returns. Tasks of the result, and those not ok, are in no bundle. Files are read
    in slices of about `SLICE_BYTES`, each of which becomes a bundle.
    """
    rows = row_map(request.workspace, request.aggregate)
    first = rows.first_row(request.source.id)
    rules = Rules(request.workspace, request.aggregate, request.source)
    causes: dict[int, str] = {}
    for shard, lo, hi in rows.pieces(first + request.lo, first + request.hi):
        at, end = lo - first, hi - first
        while at < end:
            piece = _read_piece(request, at, end, causes)
            if piece.keep.any():
                store_piece(request, rules, piece, shard, first)
            at = piece.hi
    return causes


def store_piece(request: CollectRequest, rules: Rules, piece: Piece, shard: int, first: int) -> None:
    """Check what takes more than one field, and write what is left into a bundle.

    The piece has all fields that are not derived, and tasks of one shard; task 0 of the source is row `first`.
    """
    refuse_bad_graphs(piece, rules.fields)
    filtered = rules.apply(piece)
    rejected = {expression: first + piece.lo + np.flatnonzero(mask) for expression, mask in filtered.items()}
    if not piece.keep.any() and not rejected:
        return
    folders = request.folders or Folders.of(request.workspace, request.aggregate)
    lo, hi = first + piece.lo, first + piece.hi
    path = free_path(folders.bundles_of(shard), lo, hi, request.origin)
    attributes: dict[str, str | int] = {
        "aggregate": request.aggregate.id,
        "source": request.source.id,
        **request.origin.attributes,
    }
    columns = {column.path: piece.columns[column.name] for column in rules.fields}
    content = Contribution(np.arange(lo, hi, dtype="<i8"), piece.keep, columns, rejected)
    write_bundle(path, content, attributes, is_durable=folders.is_durable)


def _read_piece(request: CollectRequest, lo: int, hi: int, causes: dict[int, str]) -> Piece:
    """Every field that is not derived, for tasks [lo, hi) or as many of them as fit the memory."""
    outputs = request.outputs
    given = [column for column in aggregate_of(request.aggregate).fields if not column.expression]
    from_files = [c for c in given if outputs is None or (c.file and not c.output)]
    direct = [c for c in given if c not in from_files]
    if from_files:
        hi = min(hi, lo + max(1, SLICE_BYTES // max(1, _row_bytes(from_files))))
    keep = np.array(request.ok[lo - request.lo : hi - request.lo], dtype=bool)
    piece = Piece(lo, hi, keep, causes)
    if from_files and keep.any():
        read_files(request, piece, tuple(from_files))
    for column in direct:
        take_output(piece, column, outputs or {}, request.lo, request.hi - request.lo)
    return piece


def _row_bytes(columns: list[PlannedField]) -> int:
    """Return the bytes of one task's values, as far as they are known beforehand."""
    return sum(column.item_bytes for column in columns if not (column.ragged or column.is_text))


def read_files(request: CollectRequest, piece: Piece, columns: tuple[PlannedField, ...]) -> None:
    """Read fields from the tasks' directories; the piece ends early if they take too much memory."""
    files = TaskFiles(columns)
    builders = {column.name: ColumnBuilder(column, piece.num) for column in columns}
    extra_bytes = 0
    workspace, source = request.workspace, request.source
    above = os.fspath(workspace.instance_dir(source))  # pathlib costs more than parsing a small file
    for i in np.flatnonzero(piece.keep).tolist():
        column = columns[0]
        try:
            values = files.read(f"{above}/{workspace.sample_path(source, piece.lo + i)}")
            for column in columns:
                extra_bytes += builders[column.name].put(i, values[column.name])
        except BadOutput as e:
            named = str(e).startswith("field '")
            piece.refuse(i, str(e) if named else f"field '{column.name}': {column.file}: {e}")
        if extra_bytes > SLICE_BYTES:
            piece.hi = piece.lo + i + 1
            piece.keep = piece.keep[: i + 1]
            break
    for column in columns:
        piece.add(column, builders[column.name].cut(piece.num), f"{column.file}: ")


def save_outputs(
    workspace: Workspace,
    instance: StepInstance,
    lo: int,
    hi: int,
    ok: Array,
    outputs: Outputs,
    origin: Origin,
) -> dict[int, str]:
    """Keep what a function returned for tasks [lo, hi) although no aggregate collects it.

    Writes a file into ``<instance id>/outputs``, named and laid out like a bundle with tasks as
    rows; returns task -> cause where an output has the wrong number of rows or cannot be stored.
    """
    piece = Piece(lo, hi, np.array(ok, dtype=bool), {})
    columns: dict[str, Values] = {}
    for name in outputs:
        try:
            rows = output_rows(PlannedField(name=name, output=name), outputs, hi - lo)
        except BadOutput as e:
            piece.refuse_all(f"output '{name}': {e}")
            continue
        is_text = rows.dtype.kind in "OUS"
        text = PlannedField(name=name, kind="text")
        columns[f"fields/{name}"] = convert_rows(piece, text, rows) if is_text else rows
    if piece.keep.any():
        path = free_path(workspace.path / instance.id / "outputs", lo, hi, origin)
        content = Contribution(np.arange(lo, hi, dtype="<i8"), piece.keep, columns, {})
        write_bundle(path, content, {"source": instance.id, **origin.attributes})
    return piece.causes
