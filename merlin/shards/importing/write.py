"""What an import leaves: shards with their sidecars, ``ensemble.h5`` and a manifest, as after an aggregate step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from merlin import __version__
from merlin.base.clock import utc_now
from merlin.base.ranges import numbers, to_ranges
from merlin.errors import ShardError
from merlin.shards.format.counts import Counts
from merlin.shards.format.manifest_file import FailedTasks, SourceInfo
from merlin.shards.format.segments import Array, Ragged, Values, offsets_of
from merlin.shards.format.shard_info import ATTEMPT, info_name, read_info
from merlin.shards.importing.directory import ImportedShard, study_id
from merlin.shards.importing.numbering import SampleSpan
from merlin.shards.importing.plan import SOURCE, ImportPlan
from merlin.shards.importing.streams import Stream
from merlin.shards.writing.columns import ColumnSpec, FileHead
from merlin.shards.writing.gather import (
    Place,
    field_columns,
    file_attributes,
    group_attributes,
    memory_column,
    store_shard,
)
from merlin.shards.writing.growing import write_manifest_file
from merlin.shards.writing.manifest import MAX_CAUSES, ShardSummary


class ImportedRows:
    """The samples of one shard, as they come out of the files; those that are dropped are left out."""

    def __init__(self, plan: ImportPlan, lo: int, hi: int, dropped: Iterable[int]) -> None:
        keep = np.ones(hi - lo, dtype=bool)
        keep[np.array(sorted(dropped), dtype=np.int64) - lo] = False
        self._positions = lo + np.flatnonzero(keep)
        self._streams = {stream.path: stream for stream in plan.streams}
        self._offsets: dict[str, Array] = {}
        self._checked = plan.schema.bad_values == "drop"
        self.rows: Array = plan.rows[self._positions]

    def read(self, path: str, lo: int, hi: int, out: Array) -> None:
        """Put rows number [lo, hi) of a column into `out`. Raises ShardError for a value that does not fit."""
        for values in self._blocks(path, lo, hi):
            out[: len(values)] = values
            out = out[len(values) :]

    def _blocks(self, path: str, lo: int, hi: int) -> Iterator[Values]:
        """The values of rows number [lo, hi), some at a time."""
        stream = self._streams[path]
        for a, b in to_ranges(self._positions[lo:hi]):
            for start, end in stream.blocks(a, b):
                values = stream.read(start, end)
                if not self._checked:
                    _refuse_bad_values(stream, start, end, values)
                yield values

    def offsets(self, path: str) -> Array:
        """(n + 1,) where each row's items begin."""
        if path not in self._offsets:
            stream = self._streams[path]
            lengths = [stream.lengths(a, b) for a, b in to_ranges(self._positions)]
            self._offsets[path] = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
        return self._offsets[path]

    def read_items(self, path: str, lo: int, hi: int, out: Array) -> None:
        """Put items [lo, hi) of all rows into `out`."""
        offsets = self.offsets(path)
        first = int(np.searchsorted(offsets, lo, side="right")) - 1
        last = int(np.searchsorted(offsets, hi, side="left"))
        begin = int(offsets[first])
        for values in self._blocks(path, first, last):
            assert isinstance(values, Ragged)
            items = values.items[max(0, lo - begin) : max(0, hi - begin)]
            out[: len(items)] = items
            out = out[len(items) :]
            begin += len(values.items)


def _refuse_bad_values(stream: Stream, lo: int, hi: int, values: Values) -> None:
    problems = stream.problems(lo, hi, values)
    if not problems:
        return
    position, why = min(problems.items())
    more = f" (and in {len(problems) - 1} more samples of the next {hi - lo})" if len(problems) > 1 else ""
    keep = "keep it with finite: false in a schema, " if "finite value" in why else ""
    raise ShardError(
        f"{stream.place(position)}: {why}{more}; mend it, {keep}or leave such samples out with bad_values: drop"
    )


def write_shard(out: Path, plan: ImportPlan, shard: int, dropped: dict[int, str]) -> ImportedShard:
    """Write a shard without the positions that are dropped."""
    content = ImportedRows(plan, *plan.positions_of(shard), dropped)
    fields = plan.aggregate.fields
    columns = [
        *(column for field in fields for column in field_columns(field, plan.aggregate, content)),
        *(_plain_column(stream, content) for stream in plan.streams if not stream.path.startswith("fields/")),
        memory_column("sample_id", plan.sample_ids(content.rows)),
        memory_column("row", content.rows),
        memory_column(ATTEMPT, np.zeros(len(content.rows), "<i4")),
    ]
    per_shard = plan.aggregate.samples_per_shard
    place = Place(out, shard, shard * per_shard, min((shard + 1) * per_shard, plan.planned))
    head = FileHead(
        attributes=file_attributes(place, SOURCE, {"study": plan.schema.name, **_about(plan)}),
        groups=group_attributes(fields),
    )
    info = store_shard(place, content, fields, columns, head, {})
    by_cause = defaultdict(list)
    for position, why in sorted(dropped.items()):
        by_cause[why].append(int(plan.rows[position]))
    causes = {why: to_ranges(np.array(rows, dtype=np.int64)) for why, rows in by_cause.items()}
    return ImportedShard(shard, info.info_digest, causes)


def _plain_column(stream: Stream, content: ImportedRows) -> ColumnSpec:
    """An input or a parameter, in memory: a number or a text for each row."""
    values = np.empty(len(content.rows), stream.field.value_dtype)
    content.read(stream.path, 0, len(values), values)
    return memory_column(stream.path, values)


def _about(plan: ImportPlan) -> dict[str, Any]:
    return {
        "study_id": study_id(plan.identity),
        "spec_digest": plan.schema_digest,
        "code_version": __version__,
        "seed": plan.schema.seed,
    }


def write_manifest(out: Path, plan: ImportPlan, done: dict[int, ImportedShard]) -> None:
    """Put the shards together: ``ensemble.h5`` and, last, ``manifest.json``."""
    summary = ShardSummary(plan)
    failed = numbers(r for shard in done.values() for found in shard.dropped.values() for r in found)
    for shard in range(plan.num_shards):
        lo, hi = plan.positions_of(shard)
        present = np.setdiff1d(plan.rows[lo:hi], failed, assume_unique=True)
        summary.add(read_info(out / info_name(shard)), present)
    now = utc_now()
    study = {"name": plan.schema.name, **_about(plan), "created": now, "finished": now}
    if plan.schema.description:
        study["description"] = plan.schema.description
    named = list(zip(plan.aggregate.sources, plan.spans, strict=True))
    data = summary.data_set(
        out,
        SOURCE,
        study=study,
        per_sample=True,
        sources=[_source(name, span, plan.rows, failed) for name, span in named],
        failures=_failures(named, done),
    )
    write_manifest_file(out, data)


def _source(name: str, span: SampleSpan, rows: Array, failed: Array) -> SourceInfo:
    """What became of the samples of a span; those with an id that no sample in the files has are missing."""
    rows, failed = _tasks(span, rows), _tasks(span, failed)
    missing = np.setdiff1d(np.arange(span.num), rows, assume_unique=True)
    counts = Counts(
        planned=span.num, ok=len(rows) - len(failed), failed=len(failed), skipped=0, missing=len(missing)
    )
    return SourceInfo(
        id=name,
        first_row=span.first_row,
        first_sample=span.first_sample,
        num_tasks=span.num,
        params={},
        counts=counts,
        failed=to_ranges(failed),
        skipped=(),
        missing=to_ranges(missing),
    )


def _tasks(span: SampleSpan, rows: Array) -> Array:
    """The tasks of a span: those of the rows, which ascend, that are in it, counted from its first row."""
    lo, hi = np.searchsorted(rows, [span.first_row, span.first_row + span.num])
    return np.asarray(rows[lo:hi] - span.first_row)


def _failures(named: Sequence[tuple[str, SampleSpan]], done: dict[int, ImportedShard]) -> list[FailedTasks]:
    """Failed samples by cause and source, most frequent first; causes beyond `MAX_CAUSES` share one entry."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for shard in sorted(done):
        for cause, ranges in done[shard].dropped.items():
            known = cause in groups or len(groups) < MAX_CAUSES
            groups.setdefault(cause if known else "other causes", []).extend(ranges)
    found = []
    for cause, dropped in groups.items():
        rows = numbers(dropped)
        for name, span in named:
            tasks = _tasks(span, rows)
            if len(tasks):
                found.append(FailedTasks(name, cause, len(tasks), to_ranges(tasks)))
    return sorted(found, key=lambda group: -group.num)
