"""Parts of batches whose size varies: ragged fields, and graphs made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from merlin.errors import UsageError
from merlin.shards.format.segments import Ragged
from merlin.shards.reading.ragged import join_graphs
from merlin.train.loading.batches import Array, Layout, Source
from merlin.train.loading.columns import Column
from merlin.train.loading.scaling import Scaling

_OFFSETS = np.dtype(np.int64)
_PER_NODE = ("nodes", "positions", "node_targets")


@dataclass
class Varied:
    """A ragged field: "<name>" (items, *shape), the items of all samples, and "<name>.offsets" (n + 1,) int64."""

    column: Column
    dtype: np.dtype[Any]
    scaling: Scaling | None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.column.name, f"{self.column.name}.offsets"

    def layout(self, source: Source, num: int) -> Layout:
        values, offsets = self.keys
        capacity = max_items(self.column, source, num)
        return {values: ((capacity, *self.column.shape), self.dtype), offsets: ((num + 1,), _OFFSETS)}

    def read(self, source: Source, indices: Array, into: Mapping[str, Array] | None) -> dict[str, Array]:
        found: Ragged = self.column.read(source.ens, source.rows_of(indices))
        values, offsets = self.keys
        return {
            values: put(found.items, self.dtype, self.scaling, None if into is None else into[values]),
            offsets: put(
                found.offsets - found.offsets[0], _OFFSETS, None, None if into is None else into[offsets]
            ),
        }


@dataclass
class Graphs:
    """The graphs of a batch as one: "<graph>.<role>" for each member, and "<graph>.ptr", "<graph>.edge_ptr" (n + 1,).

    Nodes and edges of all graphs follow each other; edges count nodes through the batch (see
    `merlin.shards.reading.ragged.GraphArray`).
    """

    name: str
    members: Sequence[Column]
    dtypes: Mapping[str, np.dtype[Any]]  # by the member's name
    scalings: Mapping[str, Scaling]

    def __post_init__(self) -> None:
        roles = {member.role for member in self.members}
        if "edges" in roles and not roles & set(_PER_NODE):
            raise UsageError(f"edges of '{self.name}' count nodes: ask for its nodes or positions, too")

    @property
    def keys(self) -> tuple[str, ...]:
        return (*(member.name for member in self.members), *self._pointers)

    @property
    def _pointers(self) -> dict[str, str]:
        """Keys of the joined graphs' beginnings, to the names that `join_graphs` has for them."""
        ragged = {member.role for member in self.members if member.ragged}
        found = {f"{self.name}.ptr": "ptr"} if ragged & set(_PER_NODE) else {}
        return found | ({f"{self.name}.edge_ptr": "edge_ptr"} if "edges" in ragged else {})

    def layout(self, source: Source, num: int) -> Layout:
        made: Layout = {}
        for member in self.members:
            rows = max_items(member, source, num) if member.ragged else num
            made[member.name] = ((rows, *member.shape), self.dtypes[member.name])
        return made | dict.fromkeys(self._pointers, ((num + 1,), _OFFSETS))

    def read(self, source: Source, indices: Array, into: Mapping[str, Array] | None) -> dict[str, Array]:
        rows = source.rows_of(indices)
        joined = join_graphs({member.role: member.read(source.ens, rows) for member in self.members})
        batch = {}
        for member in self.members:
            key = member.name
            out = None if into is None else into[key]
            batch[key] = put(joined[member.role], self.dtypes[key], self.scalings.get(key), out)
        for key, name in self._pointers.items():
            batch[key] = put(joined[name], _OFFSETS, None, None if into is None else into[key])
        return batch


def max_items(column: Column, source: Source, num: int) -> int:
    """Items that `num` samples have at most; all of them, if there are more samples than that."""
    lengths = source.ens.column_at(column.path).lengths
    if source.rows is not None:
        lengths = lengths[source.rows]
    if num >= len(lengths):
        return int(lengths.sum()) * -(-num // max(1, len(lengths)))
    return int(np.partition(lengths, len(lengths) - num)[len(lengths) - num :].sum()) if num else 0


def put(values: Array, dtype: np.dtype[Any], scaling: Scaling | None, out: Array | None) -> Array:
    """`values`, scaled and converted, at the beginning of `out` or in an array of their own."""
    target = np.empty(values.shape, dtype) if out is None else out[: len(values)]
    if scaling is None:
        target[...] = values
    else:
        scaling.apply(values, target)
    return target
