"""What a manifest promises about rows: which of them a shard holds, and whose they are."""

from __future__ import annotations

import numpy as np

from merlin.base.ranges import Ranges, mark, to_ranges, touching
from merlin.errors import ShardError
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.segments import Array

ABSENT = OUTCOMES[1:]  # of rows that are not in the data set


def expected_rows(data: DataSet, lo: int, hi: int) -> Array:
    """Rows of [lo, hi) that the data set holds, ascending: all but those that failed, were filtered …"""
    mask = np.ones(hi - lo, dtype=bool)
    for source in data.sources:
        first = source.first_row
        for outcome in ABSENT:
            mark(mask, touching(getattr(source, outcome), lo - first, hi - first), lo - first, False)
    return lo + np.flatnonzero(mask)


def sample_ids(data: DataSet, rows: Array) -> Array:
    """The samples of rows (n,): int64. Rows that no source has get their own number."""
    ids = np.array(rows, dtype=np.int64)
    if data.per_sample:
        for source in data.sources:
            mine = (rows >= source.first_row) & (rows < source.first_row + source.num_tasks)
            ids[mine] += source.first_sample - source.first_row
    return ids


def tasks_of(data: DataSet, rows: Array) -> dict[tuple[str, str], Ranges]:
    """Rows as ranges of tasks by (workspace below the study's, instance id).

    Raises ShardError for a row that no source has.
    """
    rows = np.unique(rows)
    found: dict[tuple[str, str], Ranges] = {}
    num = 0
    for source in data.sources:
        mine = rows[(rows >= source.first_row) & (rows < source.first_row + source.num_tasks)]
        if len(mine):
            found[source.workspace, source.id] = to_ranges(mine - source.first_row)
            num += len(mine)
    if num != len(rows):
        raise ShardError(f"{data.directory}: {len(rows) - num} rows belong to no source in the manifest")
    return found
