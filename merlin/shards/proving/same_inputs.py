"""Whether rows that are packed again get the inputs that they were made of."""

from __future__ import annotations

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.digest import digest_array
from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.rows import NO_ROWS, row_map
from merlin.shards.format.shard_info import info_name, read_info
from merlin.shards.writing.columns import ColumnSpec
from merlin.shards.writing.gather import input_columns
from merlin.workspace.directory import Workspace


def has_other_inputs(data: DataSet, entry: ShardEntry, workspace: Workspace) -> bool:
    """Return whether the samples are not those in a shard, as far as its sidecar proves what these were."""
    try:
        info = read_info(data.directory / info_name(entry.shard))
    except ShardError:
        return False
    rows = np.concatenate([NO_ROWS, *(np.arange(lo, hi) for lo, hi in info.rows)])
    if info.content_digest != entry.content_digest or (np.diff(rows) <= 0).any():
        return False
    known = {dataset.name: dataset for dataset in info.datasets}
    columns = input_columns(workspace, row_map(workspace, workspace.instance(data.aggregate)), rows)
    return any(
        _blocks(column, known[column.name].block_rows) != known[column.name].blocks
        for column in columns
        if column.name in known
    )


def _blocks(column: ColumnSpec, num_rows: int) -> tuple[str, ...]:
    values = np.empty(column.shape, dtype=column.dtype)
    column.fill(0, len(values), values)
    return tuple(digest_array(values[lo : lo + num_rows]) for lo in range(0, len(values), num_rows))
