"""Every planned row of a data set: its outcome, the cause if it is absent, and its inputs and parameters.

Outcomes and parameters are in the manifest. The inputs of absent rows are read from the study's samples, as long as
the data set lies in its workspace.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from merlin.base.field import TEXT_DTYPE
from merlin.base.ranges import Ranges, distinct, to_ranges
from merlin.errors import MerlinError
from merlin.shards.format.column import as_input
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.manifest_file import DataSet, SourceInfo, source_workspace
from merlin.shards.format.segments import Array
from merlin.workspace.directory import open_workspace

NO_CAUSE = -1


class PlannedRows(Struct, frozen=True):
    """All planned rows, ascending; (n,) arrays."""

    row: Array  # int64
    source: Array  # int32, index into the manifest's sources
    task: Array  # int64, of the source
    sample_id: Array  # int64
    outcome: Array  # uint8, index into OUTCOMES
    cause: Array  # int32, index into `causes`, or NO_CAUSE
    causes: tuple[str, ...]

    @property
    def index(self) -> Array:
        """(n,) int64: the index of each row in the data set; -1 for those that are not in it."""
        is_there = self.outcome == OUTCOMES.index("ok")
        return np.where(is_there, np.cumsum(is_there) - 1, -1)


def planned_rows(data: DataSet) -> PlannedRows:
    """All planned rows, read from the manifest alone; they take 34 bytes each."""
    sources = sorted(enumerate(data.sources), key=lambda each: each[1].first_row)
    sizes = [source.num_tasks for _, source in sources]
    task = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
    row = task + np.repeat(np.array([source.first_row for _, source in sources], np.int64), sizes)
    first_sample = np.repeat(np.array([source.first_sample for _, source in sources], np.int64), sizes)
    planned = PlannedRows(
        row=row,
        source=np.repeat(np.array([number for number, _ in sources], np.int32), sizes),
        task=task,
        sample_id=task + first_sample if data.per_sample else row,
        outcome=np.zeros(len(row), np.uint8),
        cause=np.full(len(row), NO_CAUSE, np.int32),
        causes=(*(group.cause for group in data.failures), *(found.expression for found in data.filters)),
    )

    def paint(values: Array, ranges: Ranges, first_row: int, code: int) -> None:
        for lo, hi in ranges:
            a, b = np.searchsorted(row, [first_row + lo, first_row + hi])
            values[a:b] = code

    first_rows = {(source.workspace, source.id): source.first_row for source in data.sources}
    for source in data.sources:
        for code, outcome in enumerate(OUTCOMES[1:], start=1):
            paint(planned.outcome, getattr(source, outcome), source.first_row, code)
    for code, group in enumerate(data.failures):
        paint(planned.cause, group.tasks, first_rows[group.workspace, group.source], code)
    for code, found in enumerate(data.filters, start=len(data.failures)):
        paint(planned.cause, found.rows, 0, code)
    return planned


def absent_values(
    data: DataSet, planned: PlannedRows, columns: Mapping[str, str]
) -> tuple[Array, dict[str, Array]]:
    """Places (n,) in `planned` of rows that are not in the data set, and their values (n,) by name.

    `columns` are paths by name; those that cannot be known are left out.
    """
    where = np.flatnonzero(planned.outcome != OUTCOMES.index("ok"))
    found: dict[str, Array] = {}
    for name, path in columns.items():
        group, _, label = path.partition("/")
        if group == "parameters" and all(label in source.params for source in data.sources):
            found[name] = _parameters(data, planned.source[where], label, path)
    labels = {name: path.partition("/")[2] for name, path in columns.items() if path.startswith("inputs/")}
    if labels and data.per_sample:
        found |= _inputs(data, planned.source[where], planned.task[where], labels)
    return where, found


def _parameters(data: DataSet, sources: Array, label: str, path: str) -> Array:
    dtype = next(column.dtype for column in data.columns if column.path == path)
    values = [source.params.get(label) for source in data.sources]
    if dtype == TEXT_DTYPE:
        return np.array(["" if v is None else str(v) for v in values], dtype=object)[sources]
    return np.array(values, dtype=np.dtype(dtype).newbyteorder("="))[sources]


def _inputs(data: DataSet, sources: Array, tasks: Array, labels: Mapping[str, str]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for number in distinct(sources).tolist():
        mine = sources == number
        inputs = task_inputs(data, data.sources[number], tasks[mine])
        if not set(labels.values()) <= inputs.keys():
            return {}
        for name, label in labels.items():
            values = found.setdefault(name, np.empty(len(sources), inputs[label].dtype))
            values[mine] = inputs[label]
    return found


def task_inputs(data: DataSet, source: SourceInfo, tasks: Array) -> dict[str, Array]:
    """The inputs of a source's tasks (n,), ascending, by label: float64 or str.

    Empty if the data set was moved out of its workspace, or the samples are not what they were.
    """
    try:
        workspace = open_workspace(source_workspace(data, source))
        if not source.workspace and workspace.plan.study_id != data.study.get("study_id"):
            return {}
        table = workspace.samples()
        pieces = [table.rows(lo, hi) for lo, hi in to_ranges(tasks)]
    except (MerlinError, OSError, IndexError):
        return {}
    if not pieces:
        return {}
    return {
        label: as_input(np.concatenate([np.asarray(piece[label]) for piece in pieces]))
        for label in table.labels
    }
