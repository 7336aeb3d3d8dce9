"""Whole batches of NumPy arrays, gathered into memory that is used again and again; no torch here.

A batch is what a trainer asked for, under the keys it will see: matrices of scalars, dense fields, ragged fields.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.kinds import NODE_ROLES
from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.aligned import aligned_empty
from merlin.shards.format.column import Column
from merlin.shards.format.segments import Array, Ragged
from merlin.shards.reading.ragged import join_graphs
from merlin.train.loading.scaling import Scaling

Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and type of arrays, by key

FLOAT = np.dtype("<f4")
_BLOCK_ROWS = 1 << 18
_OFFSETS = np.dtype(np.int64)


class Source(Struct, frozen=True):
    """The samples of a data set that a trainer sees: sample i is row rows[i] of the ensemble, or row i."""

    ens: Ensemble
    rows: Array | None

    def __len__(self) -> int:
        return len(self.ens) if self.rows is None else len(self.rows)

    def rows_of(self, indices: Array) -> Array:
        return indices if self.rows is None else self.rows[indices]


class BatchField(Struct, frozen=True):
    """A field of a batch: the type that it has there, and how it is normalised."""

    column: Column
    dtype: np.dtype[Any]
    scaling: Scaling | None
    move: tuple[int, int] | None = None  # of the channels' axis in a tensor: from, to, counted from the end

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def tensor_scaling(self) -> Scaling | None:
        """The scaling for a tensor, whose channels may have moved."""
        if self.scaling is None or self.move is None:
            return self.scaling
        return self.scaling.moved(self.move[1])

    def put(self, values: Array, out: Array | None) -> Array:
        """`values`, normalised and converted, at the beginning of `out` or in an array of their own."""
        target = np.empty(values.shape, self.dtype) if out is None else out[: len(values)]
        if self.scaling is None:
            target[...] = values
        else:
            self.scaling.apply(values, target)
        return target


@dataclass
class Matrix:
    """Numbers and series side by side: (n, numbers of a sample) float32, normalised when they are read.

    Kept in memory if that takes no more than `cache_bytes`, so that a batch is a single gather.
    """

    key: str
    columns: Sequence[Column]
    scaling: Scaling | None
    cache_bytes: int
    _cached: Array | None = field(default=None, repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def width(self) -> int:
        return sum(len(column.column_names) for column in self.columns)

    def layout(self, source: Source, num: int) -> Layout:
        return {self.key: ((num, self.width), FLOAT)}

    def prepare(self, source: Source) -> None:
        """Read everything, if it is to be kept."""
        if self._cached is not None:
            return
        shape = (len(source), self.width)
        if FLOAT.itemsize * shape[0] * shape[1] > self.cache_bytes:
            return
        source.ens.prepare([column.path for column in self.columns])
        values = aligned_empty(shape, FLOAT)
        for lo in range(0, len(source), _BLOCK_ROWS):
            part = values[lo : lo + _BLOCK_ROWS]
            self._gather(source, source.rows_of(np.arange(lo, lo + len(part))), part)
        self._cached = values

    def read(self, source: Source, indices: Array, into: Mapping[str, Array]) -> dict[str, Array]:
        out = into[self.key][: len(indices)]
        self.prepare(source)
        if self._cached is None:
            self._gather(source, source.rows_of(indices), out)
        else:
            self._cached.take(indices, axis=0, out=out, mode="clip")
        return {self.key: out}

    def _gather(self, source: Source, rows: Array, out: Array) -> None:
        values = np.empty(out.shape, np.float64)
        place = 0
        for column in self.columns:
            width = len(column.column_names)
            values[:, place : place + width] = np.reshape(
                source.ens.column_at(column.path)[rows], (-1, width)
            )
            place += width
        if self.scaling is None:
            out[...] = values
        else:
            self.scaling.apply(values, out)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}


@dataclass
class DenseFields:
    """Fields of fixed shape, (n, *shape) each, gathered together."""

    parts: Sequence[BatchField]
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    def layout(self, source: Source, num: int) -> Layout:
        return {part.name: ((num, *part.column.shape), part.dtype) for part in self.parts}

    def read(self, source: Source, indices: Array, into: Mapping[str, Array]) -> dict[str, Array]:
        num = len(indices)
        out = {key: into[key][:num] for key in self.keys}
        stored = {
            part.name: out[part.name] if part.dtype == part.column.dtype else self._narrow(part.column, num)
            for part in self.parts
        }
        source.ens.batch(source.rows_of(indices), list(stored), stored)
        for part in self.parts:
            values, target = stored[part.name], out[part.name]
            if part.scaling is not None or values is not target:
                part.put(values, target)
        return out

    def _narrow(self, column: Column, num: int) -> Array:
        """Memory for values as they are stored, before they are converted."""
        kept: Array | None = getattr(self._scratch, column.name, None)
        if kept is None or len(kept) < num:
            kept = aligned_empty((num, *column.shape), column.dtype)
            setattr(self._scratch, column.name, kept)
        return kept[:num]

    def __reduce__(self) -> Any:
        return DenseFields, (self.parts,)


class RaggedField(Struct):
    """A ragged field: "<name>" (items, *shape), the items of all samples, and "<name>.offsets" (n + 1,) int64."""

    part: BatchField

    @property
    def keys(self) -> tuple[str, ...]:
        return self.part.name, f"{self.part.name}.offsets"

    def layout(self, source: Source, num: int) -> Layout:
        values, offsets = self.keys
        shape = max_items(self.part.column, source, num), *self.part.column.shape
        return {values: (shape, self.part.dtype), offsets: ((num + 1,), _OFFSETS)}

    def read(self, source: Source, indices: Array, into: Mapping[str, Array]) -> dict[str, Array]:
        found: Ragged = source.ens.column_at(self.part.column.path)[source.rows_of(indices)]
        values, offsets = self.keys
        return {
            values: self.part.put(found.items, into.get(values)),
            offsets: _put_offsets(found.offsets - found.offsets[0], into.get(offsets)),
        }


class Graphs(Struct):
    """The graphs of a batch as one: "<graph>.<role>" for each member, and "<graph>.ptr", "<graph>.edge_ptr" (n + 1,).

    Nodes and edges of all graphs follow each other; edges count nodes through the batch (see
    `merlin.shards.reading.ragged.GraphArray`).
    """

    name: str
    members: Sequence[BatchField]

    def __post_init__(self) -> None:
        roles = {member.column.role for member in self.members}
        if "edges" in roles and not roles & set(NODE_ROLES):
            raise UsageError(f"edges of '{self.name}' count nodes: ask for its nodes or positions, too")

    @property
    def keys(self) -> tuple[str, ...]:
        return (*(member.name for member in self.members), *self._pointers)

    @property
    def _pointers(self) -> dict[str, str]:
        """The keys of where each graph begins, with the names that `join_graphs` has for these."""
        ragged = {member.column.role for member in self.members if member.column.ragged}
        found = {f"{self.name}.ptr": "ptr"} if ragged & set(NODE_ROLES) else {}
        return found | ({f"{self.name}.edge_ptr": "edge_ptr"} if "edges" in ragged else {})

    def layout(self, source: Source, num: int) -> Layout:
        made: Layout = {}
        for member in self.members:
            rows = max_items(member.column, source, num) if member.column.ragged else num
            made[member.name] = ((rows, *member.column.shape), member.dtype)
        return made | dict.fromkeys(self._pointers, ((num + 1,), _OFFSETS))

    def read(self, source: Source, indices: Array, into: Mapping[str, Array]) -> dict[str, Array]:
        rows = source.rows_of(indices)
        columns = [member.column for member in self.members]
        joined = join_graphs({column.role: source.ens.column_at(column.path)[rows] for column in columns})
        batch = {m.name: m.put(joined[m.column.role], into.get(m.name)) for m in self.members}
        pointers = self._pointers.items()
        return batch | {key: _put_offsets(joined[name], into.get(key)) for key, name in pointers}


def max_items(column: Column, source: Source, num: int) -> int:
    """The most items that `num` samples can have; beyond the number of samples, some count repeatedly."""
    lengths = source.ens.column_at(column.path).lengths
    if source.rows is not None:
        lengths = lengths[source.rows]
    if num >= len(lengths):
        return int(lengths.sum()) * -(-num // max(1, len(lengths)))
    return int(np.partition(lengths, len(lengths) - num)[len(lengths) - num :].sum()) if num else 0


def _put_offsets(offsets: Array, out: Array | None) -> Array:
    target = np.empty(offsets.shape, _OFFSETS) if out is None else out[: len(offsets)]
    target[...] = offsets
    return target


Item = Matrix | DenseFields | RaggedField | Graphs
"""A part of a batch, of one key or several. `layout` says which arrays hold up to `num` samples, and `read` fills those
that it is given; only what varies in size makes arrays of its own if there are none."""


class BatchReader:
    """Reads batches of some items of a source; any thread may."""

    def __init__(self, source: Source, items: Sequence[Item]) -> None:
        self.source = source
        self.items = items

    def layout(self, num: int) -> Layout:
        """The arrays that hold any batch of up to `num` samples."""
        return {key: what for item in self.items for key, what in item.layout(self.source, num).items()}

    def prepare(self) -> None:
        """Read what is kept in memory, e.g. before a process is forked that shall share it."""
        for item in self.items:
            if isinstance(item, Matrix):
                item.prepare(self.source)

    def read(self, indices: Array, into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Read samples `indices` (n,), int64 and in range; returns the filled parts of `into`, or new arrays.

        An array has n samples, or if it is of variable length as many items as these have.
        """
        if into is None:
            fixed = [
                item.layout(self.source, len(indices))
                for item in self.items
                if isinstance(item, Matrix | DenseFields)
            ]
            into = {key: aligned_empty(*what) for layout in fixed for key, what in layout.items()}
        batch: dict[str, Array] = {}
        for item in self.items:
            batch |= item.read(self.source, indices, into)
        return batch
