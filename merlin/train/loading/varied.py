"""Parts of batches whose size varies: ragged fields, and graphs made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from merlin.errors import UsageError
from merlin.shards.format.column import Column
from merlin.shards.format.segments import Ragged
from merlin.shards.reading.ragged import join_graphs
from merlin.train.loading.batches import Array, Layout, Part, Source

_OFFSETS = np.dtype(np.int64)
_PER_NODE = {"nodes", "positions", "node_targets"}


@dataclass
class Varied:
    """A ragged field: "<name>" (items, *shape), the items of all samples, and "<name>.offsets" (n + 1,) int64."""

    part: Part
    is_fixed = False

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


@dataclass
class Graphs:
    """The graphs of a batch as one: "<graph>.<role>" for each member, and "<graph>.ptr", "<graph>.edge_ptr" (n + 1,).

    Nodes and edges of all graphs follow each other; edges count nodes through the batch (see
    `merlin.shards.reading.ragged.GraphArray`).
    """

    name: str
    members: Sequence[Part]
    is_fixed = False

    def __post_init__(self) -> None:
        roles = {member.column.role for member in self.members}
        if "edges" in roles and not roles & _PER_NODE:
            raise UsageError(f"edges of '{self.name}' count nodes: ask for its nodes or positions, too")

    @property
    def keys(self) -> tuple[str, ...]:
        return (*(member.name for member in self.members), *self._pointers)

    @property
    def _pointers(self) -> dict[str, str]:
        """Keys of the joined graphs' beginnings, to the names that `join_graphs` has for them."""
        ragged = {member.column.role for member in self.members if member.column.ragged}
        found = {f"{self.name}.ptr": "ptr"} if ragged & _PER_NODE else {}
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
    """Items that `num` samples have at most; all of them, if there are more samples than that."""
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
