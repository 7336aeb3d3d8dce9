"""What became of every planned row of a data set: its outcome, and the cause if it is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.manifest_file import DataSet, Ranges

Array = np.ndarray[Any, Any]

NO_CAUSE = -1


@dataclass(frozen=True, slots=True)
class Fates:
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


def fates_of(data: DataSet) -> Fates:
    """Read from the manifest alone; 34 bytes for each planned row."""
    parts = sorted(range(len(data.sources)), key=lambda i: data.sources[i].first_row)
    sizes = [data.sources[i].num_tasks for i in parts]
    row = _joined([data.sources[i].first_row + np.arange(data.sources[i].num_tasks) for i in parts], np.int64)
    task = _joined([np.arange(size) for size in sizes], np.int64)
    first = np.repeat(np.array([data.sources[i].first_sample for i in parts], np.int64), sizes)
    fates = Fates(
        row=row,
        source=np.repeat(np.array(parts, np.int32), sizes),
        task=task,
        sample_id=task + first if data.per_sample else row,
        outcome=np.zeros(len(row), np.uint8),
        cause=np.full(len(row), NO_CAUSE, np.int32),
        causes=(*(group.cause for group in data.failures), *(found.expression for found in data.filters)),
    )
    _fill(fates, data)
    return fates


def _fill(fates: Fates, data: DataSet) -> None:
    first_rows = {}
    for source in data.sources:
        first_rows[source.workspace, source.id] = source.first_row
        for outcome in ("failed", "filtered", "skipped", "missing"):
            code = OUTCOMES.index(outcome)
            _paint(fates.outcome, fates.row, getattr(source, outcome), source.first_row, code)
    for code, group in enumerate(data.failures):
        _paint(fates.cause, fates.row, group.tasks, first_rows[group.workspace, group.source], code)
    for code, found in enumerate(data.filters, start=len(data.failures)):
        _paint(fates.cause, fates.row, found.rows, 0, code)


def _paint(values: Array, row: Array, ranges: Ranges, first_row: int, code: int) -> None:
    """values = code where a row is in one of the ranges, which count from `first_row`."""
    for lo, hi in ranges:
        a, b = np.searchsorted(row, [first_row + lo, first_row + hi])
        values[a:b] = code


def _joined(parts: list[Array], dtype: type) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
