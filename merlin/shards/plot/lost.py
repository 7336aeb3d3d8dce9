"""Inputs of the samples that are not in a data set, from the workspace that it was made in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.errors import MerlinError
from merlin.shards.writing.growing import source_workspace

if TYPE_CHECKING:
    from merlin.shards.format.manifest_file import DataSet, Ranges, SourceInfo
    from merlin.workspace.samples_table import SamplesTable

Array = np.ndarray[Any, Any]

FATES = ("failed", "filtered", "skipped", "missing")
MAX_LOST = 400  # of each fate; so many marks can still be told apart


def lost_inputs(data: DataSet, labels: tuple[str, ...], parameters: tuple[str, ...]) -> dict[str, Array]:
    """Per fate, inputs and parameters of at most `MAX_LOST` samples: (m, labels + parameters) float64.

    Empty if the data set was moved out of its workspace, or its sources do not run per sample.
    """
    found: dict[str, list[Array]] = {fate: [] for fate in FATES}
    if not data.per_sample:
        return {}
    for source in data.sources:
        table = _samples(data, source)
        if table is None or not set(labels) <= set(table.labels):
            continue
        try:
            extra = [float(source.params[name]) for name in parameters]
            for fate in FATES:
                rows = _rows(table, _some(getattr(source, fate), MAX_LOST), labels)
                found[fate].append(np.hstack([rows, np.tile(extra, (len(rows), 1))]))
        except (MerlinError, KeyError, TypeError, ValueError):
            continue  # the samples file was removed or is not what it was; the picture does without
    lost = {fate: np.concatenate(parts) for fate, parts in found.items() if parts}
    return {fate: rows[_even(len(rows), MAX_LOST)] for fate, rows in lost.items() if len(rows)}


def _samples(data: DataSet, source: SourceInfo) -> SamplesTable | None:
    from merlin.workspace.directory import open_workspace

    try:
        workspace = open_workspace(source_workspace(data, source))
        if not source.workspace and workspace.plan.study_id != data.study.get("study_id"):
            return None
        return workspace.samples()
    except (MerlinError, IndexError):
        return None


def _some(ranges: Ranges, num: int) -> Array:
    """At most `num` of the tasks in the ranges, spread evenly."""
    total = sum(b - a for a, b in ranges)
    wanted = _even(total, num)
    starts = np.cumsum([0, *(b - a for a, b in ranges)])
    which = np.searchsorted(starts, wanted, side="right") - 1
    firsts = np.array([a for a, _ in ranges], dtype=np.int64)
    return np.asarray(firsts[which] + wanted - starts[which]) if total else np.zeros(0, dtype=np.int64)


def _even(size: int, num: int) -> Array:
    return np.unique(np.linspace(0, max(0, size - 1), min(size, num)).astype(np.int64))


def _rows(table: SamplesTable, tasks: Iterable[int], labels: tuple[str, ...]) -> Array:
    rows = []
    for task in tasks:
        columns = table.rows(int(task), int(task) + 1)
        rows.append([float(columns[label][0]) for label in labels])
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(labels))
