"""The samples of a data set as lazy arrays, batches and splits.

Index i is the i-th of the samples, 0 <= i < len. Files are opened when first touched, in each process for itself, so
a reader may cross a fork, and be pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from merlin.errors import UsageError
from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import split_indices
from merlin.shards.reading.batches import Batches, Buffers, GatherPlan
from merlin.shards.reading.indexing import Rows, as_indices, read_only
from merlin.shards.reading.lazy import Inputs, LazyArray
from merlin.shards.reading.ragged import GraphArray, RaggedArray
from merlin.shards.reading.store import OnProgress, Store


class SampleReader:
    """The samples of a data set: all of them, or a selection in an order of its own, which shares the files."""

    def __init__(self, store: Store, rows: Rows | None = None, batches: Batches | None = None) -> None:
        self.manifest = store.data
        self.path = store.data.directory
        self.fields: dict[str, FieldInfo] = {field.name: field for field in store.data.fields}
        self.graphs: dict[str, dict[str, FieldInfo]] = {}  # members by role, of each graph
        for field in store.data.fields:
            if field.graph:
                self.graphs.setdefault(field.graph, {})[field.role] = field
        self._store = store
        self._rows = Rows(store.num_rows) if rows is None else rows
        self._batches = Batches(store) if batches is None else batches
        self._columns: dict[str, LazyArray | RaggedArray] = {}

    # the samples

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        num = f"{len(self)} samples" if self.is_whole else f"{len(self)} of {self._store.num_rows} samples"
        return f"{type(self).__name__}({str(self.path)!r}, {num}, fields: {', '.join(self.fields)})"

    @property
    def is_whole(self) -> bool:
        """True if these are all samples of the data set, in its order."""
        return self._rows.positions is None

    @property
    def positions(self) -> Array:
        """The indices of these samples in the complete data set."""
        return np.arange(len(self)) if self._rows.positions is None else self._rows.positions

    @cached_property
    def sample_id(self) -> Array:
        """The sample of each row (the same sample appears once per combination of parameters); read-only."""
        return read_only(self.column_at("sample_id")[:])

    @cached_property
    def row(self) -> Array:
        """The number of each row among the planned ones; read-only."""
        return read_only(self.column_at("row")[:])

    @cached_property
    def splits(self) -> dict[str, Array]:
        """Indices of each split, ascending, read-only; a sample's split never changes when samples are added."""
        splits = self.manifest.splits
        member = split_indices(self.sample_id, splits.fractions, splits.seed)
        return {name: read_only(np.flatnonzero(member == i)) for i, name in enumerate(splits.fractions)}

    # columns

    def __getitem__(self, name: str) -> Any:
        """A field by name (a `LazyArray`, `RaggedArray` or `GraphArray`), else an input, else a parameter.

        Raises KeyError for another name, and TypeError for what is no name.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"a name of a field is needed, not {name!r}; samples: .take([0, 1]), ['NAME'][0:2]"
            )
        if name in self.graphs:
            members = self.graphs[name].items()
            return GraphArray(name, {role: self.column_at(info.path) for role, info in members})
        return self.column_at(self._path_of(name))

    def __contains__(self, name: object) -> bool:
        return any(name in known for known in (self.fields, self.graphs, self.inputs, self.parameters))

    def column_at(self, path: str) -> Any:
        """A column by its path in the shards: "inputs/x", "sample_id", of a ragged field the group's."""
        if path not in self._columns:
            is_ragged = any(column.path == f"{path}/offsets" for column in self.manifest.columns)
            kind = RaggedArray if is_ragged else LazyArray
            self._columns[path] = kind(self._store, path, self._rows)
        return self._columns[path]

    def prepare(self, paths: Sequence[str], on_progress: OnProgress = lambda done, total: None) -> None:
        """Find columns that are to be read, by their paths, so that no shard is opened again for each of them."""
        shards = np.unique(self._store.locate_all(self.positions)[0])
        self._store.prepare(paths, shards, on_progress)

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
        for group in (self.inputs, self.parameters):
            if name in group:
                return group.path(name)
        known = ", ".join([*self.fields, *self.graphs, *self.inputs, *self.parameters])
        raise KeyError(f"no field, input or parameter '{name}' in {self.path}; there are: {known}")

    # several columns at once

    def batch(
        self, indices: Any, fields: Sequence[str] | None = None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Any]:
        """Rows `indices` (any order, repeats allowed) of several fields or inputs; by default those that `out` was
        allocated for, or all but text.

        A ragged field gives a `Ragged`, a graph a dict (see `GraphArray`). `out` gives arrays to fill instead of new
        ones: those of `allocate`, or others that are C-contiguous, of the field's dtype and (len(indices), …).
        """
        key = as_indices(indices, len(self))
        rows = key if self.is_whole else self.positions[key]
        if fields is None:
            fields = out.fields if isinstance(out, Buffers) else self._usual()
        if isinstance(out, Buffers) and out.plan.store is self._store and out.fields == tuple(fields):
            plan = out.plan
        else:
            plan = self._plan(fields)
        found = self._batches.gather(plan, rows, out)
        if len(found) == len(fields):
            return found
        return {name: found[name] if name in found else self[name][key] for name in fields}

    def allocate(self, num: int, fields: Sequence[str] | None = None) -> Buffers:
        """Arrays for `batch` to fill again and again, aligned so that filling them is fast; none for ragged
        fields and graphs, whose size is not known before."""
        fields = self._usual() if fields is None else fields
        return Buffers(self._plan(fields), fields, num)

    def _plan(self, names: Sequence[str]) -> GatherPlan:
        """How those of the columns are gathered that have rows of one size."""
        return self._batches.plan({name: self._path_of(name) for name in names if self._is_fixed(name)})

    def _is_fixed(self, name: str) -> bool:
        return name not in self.graphs and (name not in self.fields or not self.fields[name].ragged)

    def _usual(self) -> list[str]:
        """All fields but text; a graph stands for its members."""
        names = [info.graph or name for name, info in self.fields.items() if info.dtype != "text"]
        return list(dict.fromkeys(names))

    def batches(self, num: int, fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """All samples in order, `num` at a time (fewer in the last). Raises UsageError if `num` is no whole number
        from 1 on."""
        if not isinstance(num, int | np.integer) or num < 1:
            raise UsageError(f"a batch has at least 1 sample, not {num!r}")
        starts = range(0, len(self), num)
        return (self.batch(np.arange(lo, min(lo + num, len(self))), fields) for lo in starts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The samples, each as {name: value} of all fields (a graph's members under its name)."""
        names = list(dict.fromkeys(info.graph or name for name, info in self.fields.items()))
        for i in range(len(self)):
            yield {name: self[name][i] for name in names}

    # choosing samples

    def take(self, indices: Any) -> Self:
        """The samples at `indices` (integers, a mask or a slice; ens.splits["train"], say), in that order."""
        return type(self)(self._store, self._rows.narrow(indices), self._batches)

    # opening and closing

    def close(self) -> None:
        """Forget all open files; arrays that were handed out stay valid."""
        self._columns.clear()
        self._batches.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store, self._rows)
