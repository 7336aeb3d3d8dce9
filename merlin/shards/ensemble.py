"""Read a finished data set: lazy arrays over all shards, memory-mapped where they are not compressed.

ens = merlin.open_shards("study_20260101-120000/collect")
len(ens), list(ens.fields), ens["image"][10:20], ens["image"][[3, 1, 2]]
ens.inputs["x"][:], ens.splits["train"], ens.batch([5, 2], ["image"])
ens.query("yield > 1e14 and split = 'train'").to_pandas()
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from merlin.errors import NotADataSetError
from merlin.shards.format.manifest_file import NAME, manifest_path, read_manifest
from merlin.shards.reading.reader import SampleReader
from merlin.shards.reading.store import CACHE_BYTES, Store
from merlin.shards.reading.table import ResultTable, data_frame

if TYPE_CHECKING:
    from pandas import DataFrame

_NUM_LISTED = 8


def find_data_set(path: Path) -> Path:
    """The data set at `path`, or the only one in the workspace there; NotADataSetError if there is none, or several."""
    directory = manifest_path(path).parent
    if (directory / NAME).is_file():
        return directory
    if not path.exists():
        raise NotADataSetError(f"there is no {path}; name a data set, or a workspace with one")
    found = sorted(p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/{NAME}"))
    if not found:
        raise NotADataSetError(f"there is no finished data set in {path} (no {NAME})")
    if len(found) > 1:
        listing = ", ".join(str(p) for p in found[:_NUM_LISTED])
        raise NotADataSetError(f"{path} holds {len(found)} data sets; name one of them: {listing}")
    return found[0]


def open_shards(
    path: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES, threads: int | None = None
) -> Ensemble:
    """Open the data set at `path`: its directory, its manifest, or a workspace that holds just one.

    `cache_bytes` bounds the memory for decompressed chunks and text; `threads` is how many decompress, by
    default one for each core, 16 at most. Raises NotADataSetError if there is none, or several, and ShardError if
    its manifest is damaged.
    """
    found = find_data_set(Path(path)).absolute()  # the process may change its directory
    return Ensemble(Store(read_manifest(found), cache_bytes, threads))


class Ensemble(SampleReader):
    """A data set, or a selection of its samples; see the module for how to use it."""

    # SQL and plots are imported when they are used: each of many trainers waits until a data set can be opened

    def select(self, ids: Any) -> Self:
        """The samples of these ids, in the order given; a study with parameters has several rows for each.

        Raises UsageError that names the ids that are not here, and says what became of them.
        """
        from merlin.shards.reading.query import positions_of_ids

        return self.take(positions_of_ids(self, ids))

    def query(self, expression: str) -> Self:
        """The samples for which an SQL expression over their columns is true, e.g. "yield > 1e14".

        Columns: see docs/reading.md. Raises UsageError for an expression that DuckDB does not understand.
        """
        from merlin.shards.reading.query import positions_where

        return self.take(positions_where(self, expression))

    def query_table(self, sql: str) -> ResultTable:
        """The answer to an SQL query over the view `rows`, which has every planned row, whatever became of it.

        ens.query_table("select outcome, count(*) group by all").to_pandas()
        """
        from merlin.shards.reading.query import answer

        return answer(self, sql)

    def to_pandas(self, columns: Iterable[str] | None = None) -> DataFrame:
        """One row for each sample: row, sample_id, split, parameters, inputs, and the fields that are one number or
        text; or only those of `columns`."""
        return data_frame(self, None if columns is None else list(columns))

    def plot(self, kind: str = "all", **options: Any) -> Any:
        """A matplotlib Figure of the samples: "inputs", "scalars", "series", "images", … or "all"; for the options
        see `merlin.shards.plot.plot`. MissingExtraError without matplotlib."""
        from merlin.shards.plot import plot

        return plot(self, kind, **options)

    def _repr_html_(self) -> str:
        from merlin.shards.plot import summary_html

        return summary_html(self)
