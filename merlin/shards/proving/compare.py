"""A shard held against what belongs in its place: identity, columns, rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.rows import NO_ROWS
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import PROVENANCE, DatasetInfo
from merlin.shards.proving.damage import DataSetProblem, Kind, in_rows, problem
from merlin.shards.proving.expected import expected_rows, sample_ids

Schema = Mapping[str, tuple[str, tuple[int, ...]]]  # dtype and shape of one row, by data set

_EXAMPLES = 3


class ShardProblems:
    """The problems of one shard, in the order in which they are found."""

    def __init__(self, data: DataSet, entry: ShardEntry) -> None:
        self.data, self.entry = data, entry
        self.path = data.directory / entry.file
        self.expected = expected_rows(data, entry.lo, entry.hi)
        self.lost = NO_ROWS  # rows whose fields are gone; a problem that concerns some of them lists these
        self.found: list[DataSetProblem] = []

    def add(
        self, kind: Kind, message: str, *, file: str = "", dataset: str = "", rows: Array = NO_ROWS
    ) -> None:
        file = file or self.entry.file
        self.found.append(problem(self.data, kind, file, message, dataset=dataset, rows=rows, lost=self.lost))

    def add_all_lost(self, kind: Kind, message: str) -> None:
        """Add a problem that leaves no row of the shard."""
        self.lost = self.expected
        self.add(kind, message, rows=self.expected)

    def foreign_marks(self, attributes: Mapping[str, Any]) -> str:
        """How the attributes of the file contradict its place in the data set; "" if they do not."""
        wanted = {
            "aggregate": self.data.aggregate,
            "shard": self.entry.shard,
            "row_lo": self.entry.lo,
            "row_hi": self.entry.hi,
            "study_id": self.data.study_id_of(self.entry.lo),
        }
        return "; ".join(
            f"{name} is {attributes.get(name)!r}, expected {value!r}"
            for name, value in wanted.items()
            if attributes.get(name) != value
        )

    def compare_ids(self, rows: Array, ids: Array) -> list[tuple[Kind, str, Array]]:
        """Hold the rows (n,) and sample ids (n,) of the file against the expected rows: (kind, message, rows)."""
        expected = self.expected
        if len(rows) != len(expected) or len(ids) != len(rows):
            return _compare_sets(expected, rows)
        right = sample_ids(self.data, expected)
        differs = (rows != expected) | (ids != right)
        is_known = np.isin(rows, expected) & np.isin(ids, right)
        out: list[tuple[Kind, str, Array]] = []
        for kind, where in _kinds(differs & is_known, differs & ~is_known):
            if where.any():
                some = [f"row {rows[i]} of sample {ids[i]}" for i in np.flatnonzero(where)[:_EXAMPLES]]
                dots = " …" if where.sum() > _EXAMPLES else ""
                message = f"in the place of {in_rows(expected[where])}: {', '.join(some)}{dots}"
                out.append((kind, message, expected[where]))
        return out


def _compare_sets(expected: Array, rows: Array) -> list[tuple[Kind, str, Array]]:
    message = (
        f"it holds {len(rows)} rows, {len(expected)} are expected; it may be an older version of the shard"
    )
    out: list[tuple[Kind, str, Array]] = [("count mismatch", message, np.setdiff1d(expected, rows))]
    unique, times = np.unique(rows, return_counts=True)
    for kind, concerned in _kinds(unique[times > 1], np.setdiff1d(unique, expected)):
        if len(concerned):
            out.append((kind, in_rows(concerned), concerned))
    return out


def _kinds(duplicate: Array, foreign: Array) -> list[tuple[Kind, Array]]:
    return [("duplicate sample id", duplicate), ("foreign sample id", foreign)]


def schema_of(datasets: Iterable[DatasetInfo]) -> Schema:
    """The schema that a sidecar has recorded."""
    return {dataset.name: (dataset.dtype, dataset.shape[1:]) for dataset in datasets}


def schema_differences(wanted: Schema, found: Schema) -> Iterator[tuple[str, str]]:
    """(data set, message) where two schemas differ; a data set too many counts unless it is provenance."""
    for name in sorted({name for name in found if not name.startswith(PROVENANCE)} | wanted.keys()):
        expected, other = (
            "nothing" if name not in schema else "{} {}".format(*schema[name]) for schema in (wanted, found)
        )
        if expected != other:
            yield name, f"expected {expected}, found {other}"


def places_of_items(items: Array, offsets: Array | None, num_rows: int) -> Array:
    """Rows of a ragged column that items (n,) belong to; all rows if the offsets are unknown or damaged."""
    if offsets is None or len(offsets) != num_rows + 1 or (np.diff(offsets) < 0).any():
        return np.arange(num_rows)
    # the last row that begins at or before the item; rows without items that begin there come before it
    return np.unique(np.searchsorted(offsets, items, side="right") - 1)
