"""Write one shard: every row whose task ended ok, from the bundles, an earlier shard, or the tasks' own
files.

Memory is bounded by one shard (a few blocks of it, where the rows come from few bundles). The same rows give
the same content digest, whichever way they came.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from merlin.errors import ShardError
from merlin.shards import bundle
from merlin.shards.atomic import remove_leftovers, replacing, write_text
from merlin.shards.check import field_dtype, is_text
from merlin.shards.collect import CollectRequest, gather_columns
from merlin.shards.columns import ColumnReader, ColumnSpec, skeleton_digest, write_columns
from merlin.shards.rows import RowMap, format_ranges, row_map, to_ranges
from merlin.shards.shard_info import ShardInfo, info_name, shard_name
from merlin.shards.statistics import channel_axis
from merlin.study.plan import Field, Plan, StepInstance, StepKind

if TYPE_CHECKING:
    from merlin.study.workspace import Workspace

FORMAT = "merlin-shard"
VERSION = 1

_MAX_OPEN = 100  # bundles kept open at once; beyond that their rows are read into memory

Array = np.ndarray[Any, Any]


class RowSource(Protocol):
    """Something that holds some rows of a shard."""

    rows: Array

    def read(self, name: str, lo: int, out: Array) -> None: ...

    def close(self) -> None: ...


class MemoryRows:
    """Rows held in memory."""

    def __init__(self, rows: Array, values: dict[str, Array]) -> None:
        self.rows = rows
        self._values = values

    def read(self, name: str, lo: int, out: Array) -> None:
        out[...] = self._values[name][lo : lo + len(out)]

    def close(self) -> None:
        pass


def write_shard(
    workspace: Workspace,
    aggregate_instance: StepInstance,
    shard: int,
    absent_rows: Iterable[tuple[int, int]],
) -> ShardInfo:
    """Write ``shard_<k>.h5`` and its sidecar from exactly the rows of the shard that are not in
    `absent_rows`.

    Of several bundles with the same row the highest attempt counts, then the newest; rows in no bundle come
    from the shard as it was written before, then from the files of `cmd` tasks.

    Raises:
        ShardError: rows that nothing holds; the message names them.
    """
    rows = row_map(workspace, aggregate_instance)
    lo, hi = rows.shard_range(shard)
    present = np.ones(hi - lo, dtype=bool)
    for a, b in absent_rows:
        present[max(a, lo) - lo : max(min(b, hi) - lo, 0)] = False
    wanted = lo + np.flatnonzero(present)
    assembly = _Assembly(workspace, aggregate_instance, rows, shard, wanted)
    try:
        return _write(workspace, aggregate_instance, rows, shard, assembly)
    finally:
        assembly.close()


class _Assembly:
    """Which source each wanted row comes from."""

    def __init__(
        self, workspace: Workspace, instance: StepInstance, rows: RowMap, shard: int, wanted: Array
    ) -> None:
        self.rows = wanted
        self._fields = rows.aggregate.fields
        self._sources: list[RowSource] = []
        self._source_of = np.full(len(wanted), -1, dtype=np.int64)
        self._position = np.zeros(len(wanted), dtype=np.int64)
        self._problems: list[str] = []
        try:
            self._add_bundles(bundle.bundle_directory(workspace.path, instance.id, shard))
            self._add_previous(workspace.path / instance.id / shard_name(shard))
            self._add_task_files(workspace, instance, rows)
            self._require_all(instance, shard)
        except BaseException:
            self.close()
            raise
        self._cut_into_runs()

    def _add_bundles(self, directory: Path) -> None:
        files = bundle.list_bundles(directory)
        for file in files:  # the strongest claim comes last and overwrites
            try:
                source: RowSource = ColumnReader(file.path, bundle.FORMAT, bundle.VERSION)
            except ShardError as e:
                self._problems.append(str(e))
                continue
            if len(files) > _MAX_OPEN:
                source = self._into_memory(source)
            self._claim(source, overwrite=True)

    def _into_memory(self, source: RowSource) -> MemoryRows:
        """Copy a source's rows, so that shards of thousands of bundles do not need as many open files."""
        values = {}
        for field in self._fields:
            values[field.name] = np.empty((len(source.rows), *_row_shape(field)), dtype=field_dtype(field))
            source.read(field.name, 0, values[field.name])
        source.close()
        return MemoryRows(source.rows, values)

    def _add_previous(self, path: Path) -> None:
        if (self._source_of < 0).any() and path.exists():
            try:
                self._claim(ColumnReader(path, FORMAT, VERSION), overwrite=False)
            except ShardError as e:
                self._problems.append(str(e))

    def _add_task_files(self, workspace: Workspace, instance: StepInstance, rows: RowMap) -> None:
        missing = self.rows[self._source_of < 0]
        for lo, hi in to_ranges(missing):
            for source_index in range(lo // rows.num_tasks, (hi - 1) // rows.num_tasks + 1):
                source = workspace.instance(rows.aggregate.sources[source_index])
                first = source_index * rows.num_tasks
                if source.kind is not StepKind.CMD:
                    continue
                a, b = max(lo, first) - first, min(hi, first + rows.num_tasks) - first
                keep, causes = np.ones(b - a, dtype=bool), dict[int, str]()
                request = CollectRequest(
                    workspace=workspace,
                    aggregate=instance,
                    source=source,
                    lo=a,
                    hi=b,
                    ok=keep,
                    outputs=None,
                    attempt=0,
                    worker="",
                )
                columns = gather_columns(request, a, b, keep, causes)
                self._problems.extend(f"row {first + task}: {cause}" for task, cause in causes.items())
                if keep.any():
                    values = {name: column.values[keep] for name, column in columns.items()}
                    self._claim(MemoryRows(first + a + np.flatnonzero(keep), values), overwrite=False)

    def _claim(self, source: RowSource, *, overwrite: bool) -> None:
        """Take the source's rows where wanted (and, unless `overwrite`, not yet found)."""
        number = len(self._sources)
        self._sources.append(source)
        if not len(self.rows) or not len(source.rows):
            return
        at = np.searchsorted(self.rows, source.rows)
        at[at == len(self.rows)] = 0
        useful = self.rows[at] == source.rows
        if not overwrite:
            useful &= self._source_of[at] < 0
        self._source_of[at[useful]] = number
        self._position[at[useful]] = np.flatnonzero(useful)

    def _require_all(self, instance: StepInstance, shard: int) -> None:
        missing = self._source_of < 0
        if missing.any():
            what = format_ranges(to_ranges(self.rows[missing]))
            why = "".join(f"\n  {problem}" for problem in self._problems[:5])
            raise ShardError(
                f"shard {shard} of '{instance.id}': nothing holds row {what}, though the tasks ended ok; "
                f"delete their MERLIN_FINISHED or run them again{why}"
            )

    def _cut_into_runs(self) -> None:
        """Stretches of rows that are consecutive in one source."""
        same = (np.diff(self._source_of) == 0) & (np.diff(self._position) == 1)
        starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(self.rows) else np.zeros(0, np.int64)
        self._starts = starts
        self._ends = np.append(starts[1:], len(self.rows)) if len(starts) else starts

    def read(self, name: str, lo: int, hi: int, out: Array) -> None:
        """Put wanted rows number [lo, hi) of a field into `out`."""
        run = int(np.searchsorted(self._ends, lo, side="right"))
        while lo < hi:
            end = min(hi, int(self._ends[run]))
            source = self._sources[self._source_of[lo]]
            source.read(name, int(self._position[lo]), out[: end - lo])
            out, lo, run = out[end - lo :], end, run + 1

    def close(self) -> None:
        for source in self._sources:
            source.close()


def _row_shape(field: Field) -> tuple[int, ...]:
    return () if is_text(field) else field.shape


def _write(
    workspace: Workspace, instance: StepInstance, rows: RowMap, shard: int, assembly: _Assembly
) -> ShardInfo:
    directory = workspace.path / instance.id
    path, sidecar = directory / shard_name(shard), directory / info_name(shard)
    lo, hi = rows.shard_range(shard)
    columns = [
        *(_field_column(f, rows.aggregate.compression, assembly) for f in rows.aggregate.fields),
        *_input_columns(workspace, rows, assembly.rows),
        *_parameter_columns(workspace, rows, assembly.rows),
        _column("sample_id", rows.sample_ids(assembly.rows)),
        _column("row", assembly.rows.astype("<i8")),
    ]
    remove_leftovers(directory, path.name)
    with replacing(path, durable_name=False) as temporary:  # the sidecar's rename makes both durable
        datasets = write_columns(temporary, columns, _attributes(workspace.plan, instance, shard, lo, hi))
        info = ShardInfo(
            file=path.name,
            shard=shard,
            lo=lo,
            hi=hi,
            num_rows=len(assembly.rows),
            size_bytes=temporary.stat().st_size,
            skeleton=skeleton_digest(temporary, datasets),
            datasets=tuple(datasets),
        )
        sidecar.unlink(missing_ok=True)  # it must never describe another file than the one beside it
    write_text(sidecar, info.to_json())
    return info


def _field_column(field: Field, compression: str, assembly: _Assembly) -> ColumnSpec:
    def fill(lo: int, hi: int, out: Array) -> None:
        assembly.read(field.name, lo, hi, out)

    attributes = {"kind": field.kind, "units": field.units, "description": field.description}
    dtype = field_dtype(field)
    return ColumnSpec(
        f"fields/{field.name}",
        dtype,
        (len(assembly.rows), *_row_shape(field)),
        fill,
        compression=field.compression or compression,
        attributes={**attributes, "axes": json.dumps(list(field.axes)), "finite": field.finite},
        channel_axis=channel_axis(field),
        with_statistics=dtype.kind in "iufb",
    )


def _column(name: str, values: Array) -> ColumnSpec:
    """A small column that is in memory already."""

    def fill(lo: int, hi: int, out: Array) -> None:
        out[...] = values[lo:hi]

    described = name.startswith("inputs/") and values.dtype.kind == "f"
    return ColumnSpec(name, values.dtype, values.shape, fill, with_statistics=described)


def _input_columns(workspace: Workspace, rows: RowMap, wanted: Array) -> list[ColumnSpec]:
    """The samples file's columns at the wanted rows: float64, or text."""
    if workspace.plan.samples is None or not rows.per_sample:
        return []
    table = workspace.samples()
    parts: dict[str, list[Array]] = {label: [] for label in table.labels}
    _, tasks = rows.locate(wanted)
    # at a border between sources the tasks start again from 0
    for group in np.split(tasks, np.flatnonzero(np.diff(tasks) < 0) + 1):
        if len(group):
            lo = int(group[0])
            block = table.rows(lo, int(group[-1]) + 1)
            for label in parts:
                parts[label].append(np.asarray(block[label])[group - lo])
    columns = []
    for label, pieces in parts.items():
        values = np.concatenate(pieces) if pieces else np.zeros(0)
        values = values.astype("<f8") if values.dtype.kind in "iufb" else values.astype(str).astype(object)
        columns.append(_column(f"inputs/{label}", values))
    return columns


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
        columns.append(_column(f"parameters/{name}", table[which]))
    return columns


def _attributes(plan: Plan, instance: StepInstance, shard: int, lo: int, hi: int) -> dict[str, Any]:
    """Attributes of the file: format and provenance. They are no part of the content digest."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "study": plan.name,
        "study_id": plan.study_id,
        "spec_digest": plan.spec_digest,
        "code_version": plan.code_version,
        "seed": plan.seed,
        "aggregate": instance.id,
        "shard": shard,
        "row_lo": lo,
        "row_hi": hi,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
