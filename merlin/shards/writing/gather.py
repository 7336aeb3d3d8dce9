"""Write one shard: every row whose task ended ok and that no filter rejects.

Memory: a few blocks of one field, and some numbers for every row of the shard (docs/shard-format.md). The same rows
give the same content digest, whichever way they came.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.clock import utc_now
from merlin.base.compression import NONE, Compression
from merlin.base.files import remove_leftovers, replacing, sync_path, write_text
from merlin.base.ranges import mark, to_ranges
from merlin.plan.plan import Aggregate, Plan, PlannedField, StepInstance
from merlin.shards.format.column import as_input
from merlin.shards.format.row_check import RowChecks, encode
from merlin.shards.format.rows import RowMap, row_map
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import (
    ATTEMPT,
    FILTERED,
    SHARD_FORMAT,
    ShardInfo,
    info_name,
    next_info_name,
    shard_name,
    skeleton_digest,
)
from merlin.shards.format.statistics import Accumulator
from merlin.shards.writing.assembly import Assembly
from merlin.shards.writing.columns import ColumnSpec, FileHead, write_columns
from merlin.shards.writing.folders import Folders
from merlin.workspace.directory import Workspace

_MAX_ATTRIBUTE = 32 << 10  # bytes of JSON; HDF5 has room for 64 KiB


class Content(Protocol):
    """The rows of a shard that is to be written; paths are those of fields."""

    @property
    def rows(self) -> Array: ...

    def read(self, path: str, lo: int, hi: int, out: Array) -> None:
        """Put rows number [lo, hi) into `out`."""
        ...

    def offsets(self, path: str) -> Array:
        """(n + 1,) where each row's items begin, of a ragged field."""
        ...

    def read_items(self, path: str, lo: int, hi: int, out: Array) -> None:
        """Put items [lo, hi) of all rows into `out`."""
        ...


def write_shard(
    workspace: Workspace,
    aggregate_instance: StepInstance,
    shard: int,
    absent_rows: Iterable[tuple[int, int]],
    folders: Folders | None = None,
) -> ShardInfo:
    """Write ``shard_<k>.h5`` and its sidecar from the rows of the shard that are not in `absent_rows`, less those that
    the filters reject.

    Of several bundles with the same row the highest attempt counts, then the newest; rows in no bundle come
    from the shard as it was written before, then from the files of `cmd` tasks. `folders` says where the data set is
    written, if that is not where a run writes it.

    Raises:
        ShardError: rows that nothing holds; the message names them.
    """
    rows = row_map(workspace, aggregate_instance)
    lo, hi = rows.shard_range(shard)
    present = np.ones(hi - lo, dtype=bool)
    mark(present, absent_rows, lo, False)
    wanted = lo + np.flatnonzero(present)
    folders = folders or Folders.of(workspace, aggregate_instance)
    place = Place(folders.shards, shard, lo, hi, workspace.plan.revision)
    with closing(Assembly(workspace, aggregate_instance, shard, wanted, folders)) as assembly:
        return _write(workspace, aggregate_instance, rows, place, assembly)


def _write(
    workspace: Workspace, instance: StepInstance, rows: RowMap, place: Place, assembly: Assembly
) -> ShardInfo:
    columns = [
        *(
            column
            for field in rows.aggregate.fields
            for column in field_columns(field, rows.aggregate, assembly)
        ),
        *input_columns(workspace, rows, assembly.rows),
        *_parameter_columns(workspace, rows, assembly.rows),
        memory_column("sample_id", rows.sample_ids(assembly.rows)),
        memory_column("row", assembly.rows.astype("<i8")),
        memory_column(ATTEMPT, assembly.attempts),
    ]
    filtered = {expression: to_ranges(found) for expression, found in assembly.filtered.items()}
    head = FileHead(
        attributes=file_attributes(place, instance.id, _study_attributes(workspace, rows, place)),
        groups=group_attributes(rows.aggregate.fields),
        texts={FILTERED: json.dumps(filtered)} if rows.aggregate.valid else {},
    )
    return store_shard(place, assembly, rows.aggregate.fields, columns, head, filtered)


class Place(Struct, frozen=True):
    """Which shard is written, and where; it stands for rows [lo, hi)."""

    directory: Path
    shard: int
    lo: int
    hi: int
    revision: int = 0  # of the study


def store_shard(
    place: Place,
    content: Content,
    fields: Sequence[PlannedField],
    columns: list[ColumnSpec],
    head: FileHead,
    filtered: Mapping[str, tuple[tuple[int, int], ...]],
) -> ShardInfo:
    """Write the file and its sidecar, so that a kill at any moment leaves a shard with its own description or none."""
    directory, shard, rows = place.directory, place.shard, content.rows
    path, sidecar = directory / shard_name(shard), directory / info_name(shard)
    checks = RowChecks(rows)
    checks.offsets = {f"{f.path}/values": content.offsets(f.path) for f in fields if f.ragged}
    remove_leftovers(directory, path.name)
    following = directory / next_info_name(shard)
    with replacing(path) as temporary:
        datasets = write_columns(temporary, columns, head, checks)
        info = ShardInfo(
            file=path.name,
            shard=shard,
            lo=place.lo,
            hi=place.hi,
            num_rows=len(rows),
            size_bytes=temporary.stat().st_size,
            skeleton=skeleton_digest(temporary, datasets),
            datasets=tuple(datasets),
            filtered=dict(filtered),
            rows=to_ranges(rows),
            checks=encode(checks.values),
            revision=place.revision,
        )
        # the proof of the new shard is there before it is, and no sidecar ever describes another file than its own
        write_text(following, info.to_json())
        sidecar.unlink(missing_ok=True)
    following.replace(sidecar)
    sync_path(directory)
    return info


def codec_of(field: PlannedField, aggregate: Aggregate) -> Compression:
    """How a field is compressed, with what the aggregate says for all."""
    name = field.compression or aggregate.compression
    level = aggregate.level if field.level is None and not field.compression else field.level
    return Compression(name, field.shuffle or aggregate.shuffle or "byte", level)


def field_columns(field: PlannedField, aggregate: Aggregate, content: Content) -> list[ColumnSpec]:
    """The data sets of a field: one, or the values (all samples' one after the other) and offsets of a ragged one."""
    path, dtype = field.path, field.value_dtype
    offsets = content.offsets(path) if field.ragged else None
    values = ColumnSpec(
        path if offsets is None else f"{path}/values",
        dtype,
        (len(content.rows) if offsets is None else int(offsets[-1]), *field.shape),
        partial(content.read if offsets is None else content.read_items, path),
        codec=NONE if field.is_text else codec_of(field, aggregate),
        attributes=_field_attributes(field) if offsets is None else {},
        channel_axis=field.channel_axis,
        with_statistics=dtype.kind in "iufb",
        ragged=field.ragged,
    )
    if offsets is None:
        return [values]
    lengths = Accumulator((), None)
    lengths.add(np.diff(offsets))
    ends = memory_column(f"{path}/offsets", offsets.astype("<i8", copy=False))
    return [values, replace(ends, statistics=lengths.result(), ragged=True)]


def _field_attributes(field: PlannedField) -> dict[str, Any]:
    """What a reader of the file alone needs to know of a field."""
    found: dict[str, Any] = {
        "kind": field.kind,
        "units": field.units,
        "description": field.description,
        "axes": json.dumps(list(field.axes)),
        "finite": field.finite,
    }
    for name in ("layout", "expression", "graph", "role"):
        if getattr(field, name):
            found[name] = getattr(field, name)
    if field.channels:
        found["channels"] = json.dumps(list(field.channels))
    if field.keep_bits is not None:
        found["keep_bits"] = field.keep_bits
    return found


def group_attributes(fields: Sequence[PlannedField]) -> dict[str, dict[str, Any]]:
    """Attributes of graphs and of ragged fields, which are groups."""
    found: dict[str, dict[str, Any]] = {}
    for field in fields:
        if field.graph:
            found.setdefault(f"fields/{field.graph}", {"kind": "graph"})
        if field.ragged:
            found[field.path] = _field_attributes(field)
    return found


def memory_column(name: str, values: Array) -> ColumnSpec:
    """A small column that is in memory already; inputs and parameters that are numbers have statistics."""

    def fill(lo: int, hi: int, out: Array) -> None:
        out[...] = values[lo:hi]

    described = name.startswith(("inputs/", "parameters/")) and values.dtype.kind in "iufb"
    return ColumnSpec(name, values.dtype, values.shape, fill, with_statistics=described)


def input_columns(workspace: Workspace, rows: RowMap, wanted: Array) -> list[ColumnSpec]:
    """The samples file's columns at the wanted rows: float64, or text."""
    if workspace.plan.samples is None or not rows.per_sample:
        return []
    table = workspace.samples()
    # of no rows, so that a shard without any has the dtypes of the others
    parts = {label: [np.asarray(values)] for label, values in table.rows(0, 0).items()}
    _, tasks = rows.locate(wanted)
    # at a border between sources the tasks start again from 0
    for group in np.split(tasks, np.flatnonzero(np.diff(tasks) < 0) + 1):
        if len(group):
            lo = int(group[0])
            block = table.rows(lo, int(group[-1]) + 1)
            for label in parts:
                parts[label].append(np.asarray(block[label])[group - lo])
    return [
        memory_column(f"inputs/{label}", as_input(np.concatenate(pieces))) for label, pieces in parts.items()
    ]


def _parameter_columns(workspace: Workspace, rows: RowMap, wanted: Array) -> list[ColumnSpec]:
    """The parameters of each row's source; the dtype of one is the same in all shards."""
    sources = [workspace.instance(source) for source in rows.aggregate.sources]
    names = list(dict.fromkeys(name for source in sources for name in source.params))
    which, _ = rows.locate(wanted)
    columns = []
    for name in names:
        values = [source.params.get(name) for source in sources]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            integers = all(isinstance(v, int) for v in values)
            table = np.array(values, dtype="<i8" if integers else "<f8")
        else:
            table = np.array(["" if v is None else str(v) for v in values], dtype=object)
        columns.append(memory_column(f"parameters/{name}", table[which]))
    return columns


def about_study(plan: Plan) -> dict[str, Any]:
    """What a manifest and the attributes of a shard say of the study that made it."""
    names = ("study_id", "spec_digest", "code_version", "seed")
    return {name: getattr(plan, name) for name in names}


def _study_attributes(workspace: Workspace, rows: RowMap, place: Place) -> dict[str, Any]:
    plan = workspace.plan
    sources = [rows.aggregate.sources[span.source] for span in rows.spans(place.lo, place.hi)]
    described = {
        "variables": plan.variables,
        "parameters": {source: workspace.instance(source).params for source in sources},
    }
    texts = {name: json.dumps(value) for name, value in described.items()}
    short = {name: text for name, text in texts.items() if len(text.encode()) <= _MAX_ATTRIBUTE}
    return {"study": plan.name, **about_study(plan), **short}


def file_attributes(place: Place, aggregate: str, study: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a shard: format and provenance. They are no part of the content digest."""
    return {
        **SHARD_FORMAT.head(),
        **study,
        "aggregate": aggregate,
        "shard": place.shard,
        "row_lo": place.lo,
        "row_hi": place.hi,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created": utc_now(),
    }
