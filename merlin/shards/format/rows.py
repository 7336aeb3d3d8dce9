"""Rows of a data set: which source, task and sample each is, and which shard holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from merlin.base.ranges import Range
from merlin.errors import ShardError
from merlin.plan.plan import Aggregate, StepInstance
from merlin.shards.format.segments import Array

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

NO_ROWS: Array = np.zeros(0, dtype=np.int64)


class Span(Struct, frozen=True):
    """Consecutive rows of one source: tasks [lo, hi); task t is row first_row + t."""

    source: int  # index into the aggregate's sources
    first_row: int
    lo: int
    hi: int


class RowMap(Struct, frozen=True):
    """The rows of a data set that one study makes; those of an extension follow the ones before.

    row = aggregate.first_row + source_index * num_tasks + task. Shards, too, are numbered through the data set:
    shard first_shard + k holds rows [first_row + k * per_shard, first_row + (k + 1) * per_shard).
    """

    aggregate: Aggregate
    num_tasks: int  # of every source
    per_sample: bool
    first_sample: int = 0  # id of the sample of task 0

    @property
    def num_rows(self) -> int:
        return len(self.aggregate.sources) * self.num_tasks

    @property
    def num_shards(self) -> int:
        return -(-self.num_rows // self.aggregate.samples_per_shard)

    @property
    def shards(self) -> range:
        first = self.aggregate.first_shard
        return range(first, first + self.num_shards)

    def first_row(self, source: str) -> int:
        """The row of the source's task 0."""
        return self.aggregate.first_row + self.aggregate.sources.index(source) * self.num_tasks

    def shard_range(self, shard: int) -> Range:
        """The rows [lo, hi) that a shard of this study stands for."""
        if shard not in self.shards:
            raise ShardError(
                f"shard {shard} is outside the study's part of the data set, which has {self.num_shards} "
                f"shards from {self.aggregate.first_shard} on"
            )
        size, first = self.aggregate.samples_per_shard, self.aggregate.first_row
        number = shard - self.aggregate.first_shard
        return first + number * size, first + min((number + 1) * size, self.num_rows)

    def shard_task(self, task: int, absent: Iterable[Range]) -> tuple[int, list[Range]]:
        """What a task of the aggregate stands for: its shard, and the absent rows, which the scheduler counts
        from the study's first row."""
        first = self.aggregate.first_row
        return self.aggregate.first_shard + task, [(first + lo, first + hi) for lo, hi in absent]

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Split rows [lo, hi) at shard borders: (shard, lo, hi)."""
        size, first = self.aggregate.samples_per_shard, self.aggregate.first_row
        while lo < hi:
            number = (lo - first) // size
            end = min(hi, first + (number + 1) * size)
            yield self.aggregate.first_shard + number, lo, end
            lo = end

    def spans(self, lo: int, hi: int) -> Iterator[Span]:
        """Split rows [lo, hi) at borders between sources."""
        while lo < hi:
            source = (lo - self.aggregate.first_row) // self.num_tasks
            first = self.aggregate.first_row + source * self.num_tasks
            end = min(hi, first + self.num_tasks)
            yield Span(source, first, lo - first, end - first)
            lo = end

    def locate(self, rows: Array) -> tuple[Array, Array]:
        """(index of source, task) of each row."""
        source, task = np.divmod(rows - self.aggregate.first_row, self.num_tasks)
        return source, task

    def sample_ids(self, rows: Array) -> Array:
        """The task's sample, if sources are expanded over samples; else the row, as each source is a sample."""
        ids = self.first_sample + self.locate(rows)[1] if self.per_sample else rows
        return np.asarray(ids, dtype="<i8")


def aggregate_of(instance: StepInstance) -> Aggregate:
    """What an aggregate (or manifest) instance collects."""
    if instance.aggregate is None:
        raise ShardError(f"step instance '{instance.id}' collects nothing")
    return instance.aggregate


def row_map(workspace: Workspace, aggregate_instance: StepInstance) -> RowMap:
    """The row map of an aggregate (or manifest) instance."""
    aggregate = aggregate_of(aggregate_instance)
    sources = [workspace.instance(source) for source in aggregate.sources]
    if not sources or len({source.num_tasks for source in sources}) != 1:
        raise ShardError(f"the sources of '{aggregate_instance.id}' differ in their number of tasks")
    first = sources[0]
    return RowMap(aggregate, first.num_tasks, first.per_sample, workspace.first_sample)
