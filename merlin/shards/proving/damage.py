"""What can be wrong with a data set, in words that stay the same, and the samples that each finding concerns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from msgspec import Struct

from merlin.base.ranges import Ranges, format_ranges, numbers, to_ranges, total
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.rows import NO_ROWS
from merlin.shards.format.segments import Array
from merlin.shards.proving.expected import sample_ids

Kind = Literal[
    "missing file",
    "truncated",
    "flipped bytes",
    "wrong schema",
    "foreign shard",  # of another study or place, or an older version of itself
    "duplicate sample id",
    "foreign sample id",
    "count mismatch",
    "out of range",  # a value contradicts the statistics of its shard, or is not finite where that is promised
    "damaged sidecar",
    "damaged manifest",
    "damaged ensemble",
]


class DataSetProblem(Struct, frozen=True):
    """One finding. `rows` are the row numbers of the data set that it concerns, `samples` their samples' ids."""

    kind: Kind
    file: str
    message: str
    dataset: str = ""  # "fields/image"
    rows: Ranges = ()
    samples: Ranges = ()
    lost: Ranges = ()  # those of the rows whose fields are gone: only running their tasks again brings them back

    @property
    def num_rows(self) -> int:
        return total(self.rows)

    def render(self) -> str:
        """One line for people."""
        where = f"{self.file}: {self.dataset}" if self.dataset else self.file
        what = f" (samples {format_ranges(self.samples)})" if self.samples else ""
        return f"{where}: {self.kind}: {self.message}{what}"


def problem(
    data: DataSet,
    kind: Kind,
    file: str,
    message: str,
    *,
    dataset: str = "",
    rows: Array = NO_ROWS,
    lost: Array = NO_ROWS,
) -> DataSetProblem:
    """A finding about rows (n,) of a data set, in any order; of these, the ones in `lost` are lost."""
    rows = np.unique(rows)
    samples = to_ranges(np.unique(sample_ids(data, rows)))
    gone = to_ranges(np.intersect1d(rows, lost))
    return DataSetProblem(kind, file, message, dataset, to_ranges(rows), samples, gone)


def lost_rows(problems: Iterable[DataSetProblem]) -> Array:
    """Rows (n,) whose tasks have to run again, ascending."""
    return numbers(r for p in problems for r in p.lost)


def samples_by_kind(problems: Iterable[DataSetProblem]) -> dict[str, Ranges]:
    """The ids of the samples that each kind of damage concerns."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in problems:
        found.setdefault(each.kind, []).extend(each.samples)
    return {kind: to_ranges(numbers(ranges)) for kind, ranges in found.items()}


def in_rows(rows: Array) -> str:
    """ "rows 3, 7-9" for people."""
    return f"rows {format_ranges(to_ranges(np.unique(rows)))}" if len(rows) else "no row that can be named"
