"""A shard held against what belongs in its place: identity, columns, rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from merlin.shards.format.manifest_file import DataSet, ShardEntry
from merlin.shards.format.rows import format_ranges, to_ranges
from merlin.shards.format.shard_info import PROVENANCE, ShardInfo
from merlin.shards.proving.damage import Kind
from merlin.shards.proving.expected import sample_ids

Array = np.ndarray[Any, Any]

_EXAMPLES = 3


def foreign_marks(data: DataSet, entry: ShardEntry, attributes: Mapping[str, Any]) -> str:
    """How the attributes of a shard contradict its place in the data set; "" if they do not."""
    wanted = {
        "aggregate": data.aggregate,
        "shard": entry.shard,
        "row_lo": entry.lo,
        "row_hi": entry.hi,
        "study_id": data.study_id_of(entry.lo),
    }
    wrong = [
        f"{name} is {attributes.get(name)!r}, expected {value!r}"
        for name, value in wanted.items()
        if attributes.get(name) != value
    ]
    return "; ".join(wrong)


def schema_differences(
    info: ShardInfo, own: Mapping[str, tuple[str, tuple[int, ...]]]
) -> list[tuple[str, str, str]]:
    """(data set, what the sidecar says, what the file says) where these differ.

    `own`: dtype and shape of one row, by data set, as the file describes them.
    """
    wanted = {d.name: (d.dtype, tuple(d.shape[1:])) for d in info.datasets}
    names = {name for name in own if not name.startswith(PROVENANCE)} | wanted.keys()
    return [
        (name, _describe(wanted.get(name)), _describe(own.get(name)))
        for name in sorted(names)
        if wanted.get(name) != own.get(name)
    ]


def _describe(column: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if column is None else f"{column[0]} {column[1]}"


def compare_ids(data: DataSet, expected: Array, rows: Array, ids: Array) -> list[tuple[Kind, str, Array]]:
    """Hold the rows (n,) and sample ids (n,) of a file against the expected rows: (kind, message, rows)."""
    if len(rows) != len(expected) or len(ids) != len(rows):
        return _compare_sets(expected, rows)
    right = sample_ids(data, expected)
    differs = (rows != expected) | (ids != right)
    is_known = np.isin(rows, expected) & np.isin(ids, right)
    out: list[tuple[Kind, str, Array]] = []
    for kind, where in _kinds(differs & is_known, differs & ~is_known):
        if where.any():
            some = [f"row {rows[i]} of sample {ids[i]}" for i in np.flatnonzero(where)[:_EXAMPLES]]
            dots = " …" if where.sum() > _EXAMPLES else ""
            out.append(
                (
                    kind,
                    f"in the place of {in_rows(expected[where])}: {', '.join(some)}{dots}",
                    expected[where],
                )
            )
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


def places_of_items(items: Array, offsets: Array | None, num_rows: int) -> Array:
    """Rows of a ragged column that items (n,) belong to; all rows if the offsets are unknown or damaged."""
    if offsets is None or len(offsets) != num_rows + 1 or (np.diff(offsets) < 0).any():
        return np.arange(num_rows)
    # the last row that begins at or before the item: those without items begin there, too, and come before it
    return np.unique(np.searchsorted(offsets, items, side="right") - 1)


def in_rows(rows: Array) -> str:
    """ "rows 3, 7-9" for people."""
    return f"rows {format_ranges(to_ranges(np.unique(rows)))}" if len(rows) else "no row that can be named"
