"""Inputs and parameters of planned rows that a data set does not hold: what was tried and did not end well.

Parameters are in the manifest. Inputs are read from the study's samples, as long as its workspace is around the data
set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from merlin.base.field import TEXT_DTYPE
from merlin.errors import MerlinError
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.manifest_file import DataSet, SourceInfo
from merlin.shards.format.rows import to_ranges
from merlin.shards.reading.fates import Fates
from merlin.shards.writing.growing import source_workspace

Array = np.ndarray[Any, Any]


def absent_values(data: DataSet, fates: Fates, columns: Mapping[str, str]) -> tuple[Array, dict[str, Array]]:
    """Where `fates` has rows that are not in the data set (n,), and values (n,) by name.

    `columns` are paths by name; those that cannot be known are left out.
    """
    where = np.flatnonzero(fates.outcome != OUTCOMES.index("ok"))
    found: dict[str, Array] = {}
    for name, path in columns.items():
        group, _, label = path.partition("/")
        if group == "parameters" and all(label in source.params for source in data.sources):
            found[name] = _parameters(data, fates.source[where], label, path)
    inputs = {name: path.partition("/")[2] for name, path in columns.items() if path.startswith("inputs/")}
    if inputs and data.per_sample:
        found |= _inputs(data, fates, where, inputs)
    return where, found


def _parameters(data: DataSet, sources: Array, label: str, path: str) -> Array:
    dtype = next(column.dtype for column in data.columns if column.path == path)
    values = [source.params.get(label) for source in data.sources]
    if dtype == TEXT_DTYPE:
        return np.array(["" if v is None else str(v) for v in values], dtype=object)[sources]
    return np.array(values, dtype=np.dtype(dtype).newbyteorder("="))[sources]


def _inputs(data: DataSet, fates: Fates, where: Array, labels: Mapping[str, str]) -> dict[str, Array]:
    numbers = fates.source[where]
    found: dict[str, Array] = {}
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        blocks = _samples(data, data.sources[number], fates.task[where[mine]])
        if blocks is None or any(label not in blocks for label in labels.values()):
            return {}
        for name, label in labels.items():
            values = found.setdefault(name, np.empty(len(where), blocks[label].dtype))
            values[mine] = blocks[label]
    return found


def _samples(data: DataSet, source: SourceInfo, tasks: Array) -> dict[str, Array] | None:
    """The inputs of a source's tasks, ascending, by label; None if its workspace is not to be had."""
    from merlin.workspace.directory import open_workspace

    try:
        workspace = open_workspace(source_workspace(data, source))
        if not source.workspace and workspace.plan.study_id != data.study.get("study_id"):
            return None
        table = workspace.samples()
        pieces = [table.rows(lo, hi) for lo, hi in to_ranges(tasks)]
    except (MerlinError, OSError, IndexError):
        return None
    return {
        label: _plain(np.concatenate([np.asarray(piece[label]) for piece in pieces]))
        for label in table.labels
    }


def _plain(values: Array) -> Array:
    return values.astype(np.float64) if values.dtype.kind in "iufb" else values.astype(str).astype(object)
