"""The last step of a data set: check every shard, write ``ensemble.h5`` and ``manifest.json``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from merlin.base.clock import utc_now
from merlin.base.field import TEXT_DTYPE
from merlin.base.files import TEMPORARY_SUFFIX
from merlin.base.ranges import Range, Ranges, distinct, merged, numbers, to_ranges, total
from merlin.errors import ShardError
from merlin.ledger.replay import Replay
from merlin.plan.plan import Aggregate, PlannedField, StepInstance
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, NO_OUTCOME, Outcome
from merlin.shards.format.counts import Counts
from merlin.shards.format.digest import block_rows, combine, digest_array
from merlin.shards.format.manifest_file import (
    ColumnInfo,
    DataSet,
    FailedTasks,
    FieldInfo,
    FilterInfo,
    ShardEntry,
    SourceInfo,
    SplitInfo,
)
from merlin.shards.format.rows import RowMap, aggregate_of, row_map
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import (
    DatasetInfo,
    ShardInfo,
    info_name,
    next_info_name,
    shard_name,
    sized_info,
)
from merlin.shards.format.splits import split_indices
from merlin.shards.format.statistics import Statistics, merge
from merlin.shards.writing import bundle
from merlin.shards.writing.cleanup import clean_data_set
from merlin.shards.writing.gather import about_study, codec_of, write_shard
from merlin.shards.writing.growing import publish
from merlin.workspace.directory import Workspace

MAX_CAUSES = 1000  # groups of failed tasks that are listed with their cause; the rest share one entry

Describe = Callable[[int, Array], ShardInfo]  # describes a shard, given the rows that ended ok

# what the plan says of a field and the data set only repeats
_AS_PLANNED = (
    *("name", "kind", "units", "description", "axes", "layout", "channels"),
    *("ragged", "graph", "role", "keep_bits", "expression", "finite"),
)
_MISSING = (Outcome.INTERRUPTED, NO_OUTCOME)


def write_manifest(workspace: Workspace, manifest_instance: StepInstance) -> None:
    """Finish the data set of a manifest instance, then remove its bundles, and clean up if that is wanted.

    A shard that does not hold exactly the rows whose tasks ended ok (after a restart made more of them so) is
    written again first. Raises ShardError if rows are lost.
    """
    aggregate = workspace.instance(manifest_instance.finishes)
    publish(workspace, aggregate, make_part)
    clean_data_set(workspace, aggregate)
    shutil.rmtree(workspace.path / aggregate.id / bundle.DIRECTORY, ignore_errors=True)
    _remove_leftovers(workspace.data_set_dir(aggregate), row_map(workspace, aggregate))


def make_part(workspace: Workspace, aggregate: StepInstance, describe: Describe | None = None) -> DataSet:
    """What this study's rows put into the manifest, as if they were all of the data set.

    By default, shards that are not as they should be are written again.
    """
    ended = _endings(Replay(workspace.ledger_dir, workspace.plan), aggregate)
    return part_of(workspace, aggregate, ended, describe or partial(_current, workspace, aggregate))


class Endings(Struct, frozen=True):
    """What became of the tasks that a data set collects from."""

    outcomes: list[RunMap]  # by source
    failures: Iterable[tuple[str, int, str]]  # source, task, cause


def _endings(replay: Replay, aggregate: StepInstance) -> Endings:
    sources = aggregate_of(aggregate).sources
    failures = ((each.instance, each.failure.task, each.failure.cause) for each in replay.failures(sources))
    return Endings([replay.outcomes[source] for source in sources], failures)


def part_of(workspace: Workspace, aggregate: StepInstance, ended: Endings, describe: Describe) -> DataSet:
    """What a study's rows put into the manifest of a data set whose shards `describe` knows."""
    rows = row_map(workspace, aggregate)
    summary = ShardSummary(rows)
    for shard in rows.shards:
        present = present_rows(rows, ended.outcomes, shard)
        summary.add(describe(shard, present), present)
    plan = workspace.plan
    return summary.data_set(
        workspace.data_set_dir(aggregate),
        aggregate.id,
        study={
            "name": plan.name,
            **about_study(plan),
            "created": plan.created,
            "finished": utc_now(),
        },
        per_sample=rows.per_sample,
        sources=_sources(workspace, rows, ended.outcomes, summary.filtered_rows()),
        failures=_failures(workspace, ended.failures),
    )


def _remove_leftovers(directory: Path, rows: RowMap) -> None:
    """Remove what killed writers left; other studies may be writing other shards of the data set."""
    ours = {name(shard) for shard in rows.shards for name in (shard_name, info_name, next_info_name)}
    for shard in rows.shards:
        (directory / next_info_name(shard)).unlink(missing_ok=True)  # every shard has its own by now
    for leftover in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        if leftover.name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[0] in ours:
            leftover.unlink(missing_ok=True)


def present_rows(rows: RowMap, outcomes: list[RunMap], shard: int) -> Array:
    """The rows of a shard whose tasks ended ok."""
    lo, hi = rows.shard_range(shard)
    mask = np.zeros(hi - lo, dtype=bool)
    for span in rows.spans(lo, hi):
        for x, y in outcomes[span.source].ranges([Outcome.OK], span.lo, span.hi):
            mask[span.first_row + x - lo : span.first_row + y - lo] = True
    return lo + np.flatnonzero(mask)


def absent_rows(rows: RowMap, shard: int, present: Array) -> Ranges:
    """The other rows of a shard."""
    return to_ranges(np.setdiff1d(np.arange(*rows.shard_range(shard)), present, assume_unique=True))


def _current(workspace: Workspace, aggregate: StepInstance, shard: int, present: Array) -> ShardInfo:
    """The shard's description; the shard is written again unless it holds exactly the rows `present`."""
    info = sized_info(workspace.data_set_dir(aggregate), shard)
    if info is not None and holds(info, present):
        return info
    absent = absent_rows(row_map(workspace, aggregate), shard, present)
    return write_shard(workspace, aggregate, shard, absent)


def holds(info: ShardInfo, present: Array) -> bool:
    """Return whether the shard's rows and the filtered rows are together exactly `present`, by digest."""
    filtered = _filtered_rows(info)
    if not np.isin(filtered, present).all():
        return False
    step = block_rows(8)
    numbers = np.setdiff1d(present, filtered, assume_unique=True).astype("<i8")
    blocks = tuple(digest_array(numbers[lo : lo + step]) for lo in range(0, len(numbers), step))
    return any(d.name == "row" and d.blocks == blocks for d in info.datasets)


def _filtered_rows(info: ShardInfo) -> Array:
    return numbers(r for ranges in info.filtered.values() for r in ranges)


class Numbered(Protocol):
    """The rows of a data set, as a summary needs them."""

    @property
    def aggregate(self) -> Aggregate: ...

    def sample_ids(self, rows: Array) -> Array: ...


class ShardSummary:
    """What the shards hold together."""

    def __init__(self, rows: Numbered) -> None:
        self.rows = rows
        self.shards: list[ShardEntry] = []
        self.columns: dict[str, DatasetInfo] = {}
        self._statistics: dict[str, Statistics | None] = {}
        self._in_split = np.zeros(len(rows.aggregate.splits) + 1, dtype=np.int64)
        self._filtered: dict[str, list[Range]] = {text: [] for text in rows.aggregate.valid}

    def add(self, info: ShardInfo, present: Array) -> None:
        """Take in a shard; `present` are the rows whose tasks ended ok."""
        self.shards.append(ShardEntry.of(info))
        for dataset in info.datasets:
            known = self.columns.setdefault(dataset.name, dataset)
            if (known.dtype, known.shape[1:]) != (dataset.dtype, dataset.shape[1:]):
                raise ShardError(
                    f"{info.file}: '{dataset.name}' is {dataset.dtype} {dataset.shape[1:]}, "
                    f"other shards have {known.dtype} {known.shape[1:]}"
                )
            before = [self._statistics[dataset.name]] if dataset.name in self._statistics else []
            self._statistics[dataset.name] = merge([*before, dataset.statistics])
        for expression, ranges in info.filtered.items():
            self._filtered.setdefault(expression, []).extend(ranges)
        stored = np.setdiff1d(present, _filtered_rows(info), assume_unique=True)
        aggregate = self.rows.aggregate
        member = split_indices(self.rows.sample_ids(stored), dict(aggregate.splits), aggregate.seed)
        self._in_split += np.bincount(member, minlength=len(self._in_split))

    def filtered_rows(self) -> Array:
        """All rows that a filter rejected, ascending."""
        return numbers(r for ranges in self._filtered.values() for r in ranges)

    def data_set(
        self,
        directory: Path,
        name: str,
        *,
        study: dict[str, Any],
        per_sample: bool,
        sources: Sequence[SourceInfo],
        failures: Sequence[FailedTasks],
    ) -> DataSet:
        """The manifest, without the file that shows all shards as one."""
        aggregate = self.rows.aggregate
        in_splits = zip(aggregate.splits, self._in_split.tolist(), strict=False)
        return DataSet(
            directory=directory,
            study=study,
            aggregate=name,
            per_sample=per_sample,
            samples_per_shard=aggregate.samples_per_shard,
            counts=reduce(add, (source.counts for source in sources)),
            sources=tuple(sources),
            failures=tuple(failures),
            content_digest=combine([entry.content_digest for entry in self.shards]),
            filters=tuple(
                FilterInfo(expression, total(ranges), tuple(merged(ranges)))
                for expression, ranges in self._filtered.items()
            ),
            fields=tuple(self._field(field) for field in aggregate.fields),
            columns=tuple(
                ColumnInfo(path, column.dtype, column.shape[1:], self._statistics[path], column.ragged)
                for path, column in self.columns.items()
            ),
            splits=SplitInfo(
                dict(aggregate.splits), aggregate.seed, {split: num for (split, _), num in in_splits}
            ),
            shards=tuple(self.shards),
        )

    def _field(self, field: PlannedField) -> FieldInfo:
        column = self.columns[f"{field.path}/values" if field.ragged else field.path]
        codec = codec_of(field, self.rows.aggregate)
        is_compressed = not (codec.is_none or column.dtype == TEXT_DTYPE)
        return FieldInfo(
            **{
                **{name: getattr(field, name) for name in _AS_PLANNED},
                "dtype": column.dtype,
                "shape": column.shape[1:],
                "compression": codec.name if is_compressed else "none",
                "shuffle": codec.shuffle if is_compressed else "",
                "statistics": self._statistics[column.name],
                "lengths": self._statistics[f"{field.path}/offsets"] if field.ragged else None,
            }
        )


def _sources(
    workspace: Workspace, rows: RowMap, outcomes: list[RunMap], filtered_rows: Array
) -> list[SourceInfo]:
    """What became of every planned task: counts, and the ranges of those that are not in the data set."""
    found = []
    for name, runs in zip(rows.aggregate.sources, outcomes, strict=True):
        first = rows.first_row(name)
        mine = filtered_rows[(filtered_rows >= first) & (filtered_rows < first + rows.num_tasks)]
        lost: dict[str, Ranges] = {
            "failed": tuple(runs.ranges(FAILURES)),
            "filtered": to_ranges(mine - first),
            "skipped": tuple(runs.ranges([Outcome.SKIPPED])),
            "missing": tuple(runs.ranges(_MISSING)),
        }
        nums = {outcome: total(ranges) for outcome, ranges in lost.items()}
        ok = total(runs.ranges([Outcome.OK])) - len(mine)
        found.append(
            SourceInfo(
                id=name,
                workspace=workspace.member,
                first_row=first,
                first_sample=rows.first_sample,
                num_tasks=rows.num_tasks,
                params=workspace.instance(name).params,
                counts=Counts(planned=rows.num_tasks, ok=ok, **nums),
                **lost,
            )
        )
    return found


def _failures(workspace: Workspace, failures: Iterable[tuple[str, int, str]]) -> list[FailedTasks]:
    """Failed tasks by source and cause, most frequent first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for source, task, cause in failures:
        key = (source, cause)
        if key not in groups and len(groups) >= MAX_CAUSES:
            key = (source, "other causes (see merlin failures)")
        groups.setdefault(key, []).append(task)
    found = []
    for (source, cause), tasks in sorted(groups.items(), key=lambda item: -len(item[1])):
        ranges = to_ranges(distinct(np.array(tasks, dtype=np.int64)))
        found.append(FailedTasks(source, cause, total(ranges), ranges, workspace.member))
    return found
