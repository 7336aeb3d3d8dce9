"""Rows of a data set: which source, task and sample each is, and which shard holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.errors import ShardError
from merlin.study.plan import Aggregate, StepInstance

if TYPE_CHECKING:
    from merlin.study.workspace import Workspace

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RowMap:
    """row = source_index * num_tasks + task; shard k holds rows [k * per_shard, (k + 1) * per_shard)."""

    aggregate: Aggregate
    num_tasks: int  # of every source
    per_sample: bool

    @property
    def num_rows(self) -> int:
        return len(self.aggregate.sources) * self.num_tasks

    @property
    def num_shards(self) -> int:
        return -(-self.num_rows // self.aggregate.samples_per_shard)

    def first_row(self, source: str) -> int:
        return self.aggregate.sources.index(source) * self.num_tasks

    def shard_range(self, shard: int) -> tuple[int, int]:
        size = self.aggregate.samples_per_shard
        if not 0 <= shard < self.num_shards:
            raise ShardError(f"shard {shard} is outside the data set, which has {self.num_shards} shards")
        return shard * size, min((shard + 1) * size, self.num_rows)

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Split rows [lo, hi) at shard borders: (shard, lo, hi)."""
        size = self.aggregate.samples_per_shard
        while lo < hi:
            shard = lo // size
            end = min(hi, (shard + 1) * size)
            yield shard, lo, end
            lo = end

    def locate(self, rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """(index of source, task) of each row."""
        source, task = np.divmod(rows, self.num_tasks)
        return source, task

    def sample_ids(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The task, if sources are expanded over samples; else the row, so that each source is a sample."""
        ids = rows % self.num_tasks if self.per_sample else rows
        return np.asarray(ids, dtype="<i8")


def row_map(workspace: Workspace, aggregate_instance: StepInstance) -> RowMap:
    """The row map of an aggregate (or manifest) instance."""
    aggregate = aggregate_instance.aggregate
    if aggregate is None:
        raise ShardError(f"step instance '{aggregate_instance.id}' collects nothing")
    sources = [workspace.instance(source) for source in aggregate.sources]
    if not sources or len({source.num_tasks for source in sources}) != 1:
        raise ShardError(f"the sources of '{aggregate_instance.id}' differ in their number of tasks")
    return RowMap(aggregate, sources[0].num_tasks, sources[0].per_sample)


def to_ranges(numbers: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Sorted unique integers as maximal half-open ranges."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = numbers[np.concatenate(([0], cuts))]
    ends = numbers[np.concatenate((cuts - 1, [len(numbers) - 1]))] + 1
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]


def format_ranges(ranges: list[tuple[int, int]], limit: int = 10) -> str:
    """ "3, 7-9, 12" for people; ends are inclusive."""
    words = [str(a) if b - a == 1 else f"{a}-{b - 1}" for a, b in ranges[:limit]]
    more = len(ranges) - limit
    return ", ".join(words) + (f" and {more} more ranges" if more > 0 else "")
