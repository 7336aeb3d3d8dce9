"""Read a finished data set: lazy arrays over all shards, memory-mapped where they are not compressed.

    ens = merlin.open_shards("study_20260101-120000/collect")
    len(ens), list(ens.fields), ens["image"][10:20], ens["image"][[3, 1, 2]]
    ens.inputs["x"][:], ens.splits["train"], ens.batch([5, 2], ["image"])
    ens.query("yield > 1e14 and split = 'train'").to_pandas()

Index i is the i-th row present in the data set, 0 <= i < len(ens). Files are opened when first touched, in
each process for itself, so an Ensemble may cross a fork, and be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.shards.format.manifest_file import DataSet, FieldInfo, read_manifest
from merlin.shards.format.segments import Ragged
from merlin.shards.format.splits import split_indices
from merlin.shards.reading.batches import Batches, Buffers
from merlin.shards.reading.indexing import Rows, as_indices
from merlin.shards.reading.lazy import Inputs, LazyArray
from merlin.shards.reading.ragged import GraphArray, RaggedArray
from merlin.shards.reading.store import CACHE_BYTES, Store

if TYPE_CHECKING:
    from pandas import DataFrame

    from merlin.shards.reading.table import Table

Array = np.ndarray[Any, Any]
Column = LazyArray | RaggedArray | GraphArray

__all__ = ["Ensemble", "Inputs", "LazyArray", "Ragged", "Selection", "open_shards"]


def open_shards(
    path: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES, threads: int | None = None
) -> Ensemble:
    """Open the data set in directory `path`, or at its manifest; NotADataSetError if there is none.

    `cache_bytes` bounds the memory for decompressed chunks and text; `threads` is how many decompress, by
    default one for each core, 16 at most.
    """
    return Ensemble(read_manifest(Path(path)), cache_bytes=cache_bytes, threads=threads)


class Ensemble:
    """A data set; see the module for how to use it."""

    def __init__(self, data: DataSet, *, cache_bytes: int = CACHE_BYTES, threads: int | None = None) -> None:
        self.manifest = data
        self.path = data.directory
        self.fields: dict[str, FieldInfo] = {field.name: field for field in data.fields}
        self.graphs = _graphs(data)
        self._store = Store(data, cache_bytes, threads)
        self._batches = Batches(self._store)
        self._rows = Rows(self._store.num_rows)
        self._columns: dict[str, Column] = {}

    # the samples

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Ensemble({str(self.path)!r}, {len(self)} samples, fields: {', '.join(self.fields)})"

    @property
    def is_whole(self) -> bool:
        """Whether these are all samples of the data set, in its order."""
        return self._rows.positions is None

    @property
    def positions(self) -> Array:
        """Which rows of the whole data set these are, as its indices."""
        return np.arange(len(self)) if self._rows.positions is None else self._rows.positions

    @cached_property
    def sample_id(self) -> Array:
        """The sample of each row (the same sample appears once per combination of parameters)."""
        return np.asarray(self.column_at("sample_id")[:])

    @cached_property
    def row(self) -> Array:
        """The number of each row among the planned ones."""
        return np.asarray(self.column_at("row")[:])

    @cached_property
    def splits(self) -> dict[str, Array]:
        """Indices of each split, ascending; a sample's split never changes when samples are added."""
        splits = self.manifest.splits
        member = split_indices(self.sample_id, splits.fractions, splits.seed)
        return {name: np.flatnonzero(member == i) for i, name in enumerate(splits.fractions)}

    # columns

    def __getitem__(self, name: str) -> Any:
        """A field by name (a `LazyArray`, `RaggedArray` or `GraphArray`), or an input if no field is called so."""
        return self._graph(name) if name in self.graphs else self.column_at(self._path_of(name))

    def __contains__(self, name: object) -> bool:
        return name in self.fields or name in self.graphs or name in self.inputs

    def column_at(self, path: str) -> Any:
        """A column by its path in the shards: "inputs/x", "sample_id", of a ragged field the group's."""
        found = self._columns.get(path)
        if found is None:
            ragged = any(column.path == f"{path}/offsets" for column in self.manifest.columns)
            kind = RaggedArray if ragged else LazyArray
            found = self._columns[path] = kind(self._store, path, self._rows)
        return found

    def _graph(self, name: str) -> GraphArray:
        if name not in self._columns:
            members = {role: self.column_at(info.path) for role, info in self.graphs[name].items()}
            self._columns[name] = GraphArray(name, members)
        found = self._columns[name]
        assert isinstance(found, GraphArray)
        return found

    @cached_property
    def inputs(self) -> Inputs:
        """The samples file's columns at the rows of the data set."""
        return self._group("inputs")

    @cached_property
    def parameters(self) -> Inputs:
        """The parameters of each row, if the sources have any."""
        return self._group("parameters")

    @cached_property
    def provenance(self) -> Inputs:
        """How each row came to be: `attempt`."""
        return self._group("provenance")

    def _group(self, group: str) -> Inputs:
        names = [c.name for c in self.manifest.columns if c.path.startswith(f"{group}/")]
        return Inputs(self._store, group, names, self._rows)

    def _path_of(self, name: str) -> str:
        if name in self.fields:
            return self.fields[name].path
        if name in self.inputs:
            return f"inputs/{name}"
        known = ", ".join([*self.fields, *self.graphs, *self.inputs])
        raise KeyError(f"no field or input '{name}' in {self.path}; there are: {known}")

    # several columns at once

    def batch(
        self, indices: Any, fields: Sequence[str] | None = None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Any]:
        """Rows `indices` (any order, repeats allowed) of several fields or inputs; all but text by default.

        A ragged field gives a `Ragged`, a graph a dict (see `GraphArray`). `out` gives arrays to fill instead of new
        ones: those of `allocate`, or others that are C-contiguous, of the field's dtype and (len(indices), …).
        """
        key = as_indices(indices, len(self))
        rows = key if self.is_whole else self.positions[key]
        if isinstance(out, Buffers) and (fields is None or tuple(fields) == out.plan.names):
            return self._batches.gather(out.plan, rows, out)
        names = self._usual() if fields is None else fields
        fixed = self._batches.plan({name: self._path_of(name) for name in names if self._is_fixed(name)})
        found = self._batches.gather(fixed, rows, out)
        if len(found) == len(names):
            return found
        return {name: found[name] if name in found else self[name][key] for name in names}

    def allocate(self, num: int, fields: Sequence[str] | None = None) -> Buffers:
        """Arrays for `batch` to fill again and again, aligned so that filling them is fast; none for ragged
        fields and graphs, whose size is not known before."""
        names = self._usual() if fields is None else fields
        plan = self._batches.plan({name: self._path_of(name) for name in names if self._is_fixed(name)})
        return Buffers(plan, self._store, num)

    def _is_fixed(self, name: str) -> bool:
        if name in self.graphs:
            return False
        return name not in self.fields or not self.fields[name].ragged

    def _usual(self) -> list[str]:
        """All fields but text; a graph stands for its members."""
        names = [info.graph or name for name, info in self.fields.items() if info.dtype != "text"]
        return list(dict.fromkeys(names))

    def batches(self, num: int, fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """All samples in order, `num` at a time (fewer in the last)."""
        for lo in range(0, len(self), num):
            yield self.batch(np.arange(lo, min(lo + num, len(self))), fields)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The samples, each as {name: value} of all fields (a graph's members under its name)."""
        names = list(dict.fromkeys(info.graph or name for name, info in self.fields.items()))
        for i in range(len(self)):
            yield {name: self[name][i] for name in names}

    # choosing samples

    def take(self, indices: Any) -> Selection:
        """The samples at `indices` (integers, a mask or a slice; ens.splits["train"], say), in that order."""
        return Selection(self, self._rows.narrow(indices))

    def select(self, ids: Any) -> Selection:
        """The samples of these ids, in the order given; a study with parameters has several rows for each.

        Raises UsageError that names the ids that are not here, and says what became of them.
        """
        from merlin.shards.reading.query import positions_of_ids

        return self.take(positions_of_ids(self, ids))

    def query(self, expression: str) -> Selection:
        """The samples for which an SQL expression over their columns is true, e.g. "yield > 1e14".

        Columns: see docs/reading.md. Raises UsageError for an expression that DuckDB does not understand.
        """
        from merlin.shards.reading.query import positions_where

        return self.take(positions_where(self, expression))

    def query_table(self, sql: str) -> Table:
        """The answer to an SQL query over the view `rows`, which has every planned row, whatever became of it.

        ens.query_table("select outcome, count(*) group by all").to_pandas()
        """
        from merlin.shards.reading.query import answer

        return answer(self, sql)

    def to_pandas(self, columns: Iterable[str] | None = None) -> DataFrame:
        """One row for each sample: row, sample_id, split, parameters, inputs, and the fields that are one number or
        text; or only those of `columns`."""
        from merlin.shards.reading.table import data_frame

        return data_frame(self, None if columns is None else list(columns))

    # looking at it

    def plot(self, kind: str = "all", **options: Any) -> Any:
        """A matplotlib Figure of the samples: "inputs", "scalars", "series", "images", … or "all"; for the options
        see `merlin.shards.plot.plot`. MissingExtraError without matplotlib."""
        from merlin.shards.plot import plot

        return plot(self, kind, **options)

    def _repr_html_(self) -> str:
        from merlin.shards.plot import summary_html

        return summary_html(self)

    # opening and closing

    def close(self) -> None:
        """Forget all open files; arrays that were handed out stay valid."""
        self._columns.clear()
        self._batches.close()
        self._store.close()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        cache_bytes, threads = self._store.options
        return {
            "manifest": self.manifest,
            "cache_bytes": cache_bytes,
            "threads": threads,
            "positions": self._rows.positions,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Ensemble.__init__(self, state["manifest"], cache_bytes=state["cache_bytes"], threads=state["threads"])
        self._rows = Rows(self._store.num_rows, state["positions"])


class Selection(Ensemble):
    """Some samples of a data set, in an order of their own; everything that an Ensemble is, and shares its files."""

    def __init__(self, ensemble: Ensemble, rows: Rows) -> None:
        self.manifest = ensemble.manifest
        self.path = ensemble.path
        self.fields = ensemble.fields
        self.graphs = ensemble.graphs
        self._store = ensemble._store
        self._batches = ensemble._batches
        self._rows = rows
        self._columns = {}

    def __repr__(self) -> str:
        return f"Selection({len(self)} of {self._store.num_rows} samples of {str(self.path)!r})"


def _graphs(data: DataSet) -> dict[str, dict[str, FieldInfo]]:
    """Members by role, of each graph."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for field in data.fields:
        if field.graph:
            found.setdefault(field.graph, {})[field.role] = field
    return found
