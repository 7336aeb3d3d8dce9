"""Fields of variable length, and graphs made of them, read over all shards.

A batch of graphs follows PyTorch Geometric: the nodes of all graphs one after the other, `ptr` where each graph
begins, and edges that count nodes through the batch. Edges are (edges, 2); their transpose is `edge_index`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from merlin.base.kinds import NODE_ROLES
from merlin.errors import ShardError, command_line
from merlin.shards.format.aligned import aligned_empty
from merlin.shards.format.segments import Array, Ragged, offsets_of
from merlin.shards.reading.indexing import Rows, as_number
from merlin.shards.reading.lazy import LazyArray
from merlin.shards.reading.store import Store


class RaggedArray:
    """A ragged field over all shards: an index gives an array (items, *shape), anything else a `Ragged`."""

    def __init__(self, store: Store, path: str, rows: Rows) -> None:
        """`path` is the group's, e.g. "fields/track"."""
        self._store, self._path, self._rows = store, path, rows
        self.dtype, self.item_shape = store.layout(f"{path}/values")

    @property
    def name(self) -> str:
        return self._path.removeprefix("fields/").replace("/", ".")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """(samples, None, *shape of one item)."""
        return (len(self), None, *self.item_shape)

    @cached_property
    def lengths(self) -> Array:
        """(samples,) int64: the number of items of each."""
        begins, ends = self._bounds(*self._store.locate_all(self._rows.many(slice(None))))
        return ends - begins

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            raise IndexError(f"'{self.name}' is ragged: choose samples, and then among the items of each")
        number = as_number(key)
        if number is not None:
            shard, local = self._store.locate(self._rows.one(number))
            begins, ends = self._bounds(np.array([shard]), np.array([local]))
            return self._store.read(f"{self._path}/values", shard, int(begins[0]), int(ends[0]))
        stretch = self._rows.stretch(key)
        pieces = list(self._store.pieces(*stretch)) if stretch else []
        if len(pieces) == 1:
            return self._view(*pieces[0])
        return self._take(self._rows.many(key))

    def _view(self, shard: int, lo: int, hi: int) -> Ragged:
        """Consecutive rows of one shard: the values as they are mapped."""
        begins, ends = self._bounds(np.full(hi - lo, shard), np.arange(lo, hi))
        if not (begins[1:] == ends[:-1]).all():
            raise self._damaged(shard)
        values = self._store.read(f"{self._path}/values", shard, int(begins[0]), int(ends[-1]))
        return Ragged(values, np.append(begins, ends[-1]) - begins[0])

    def _take(self, rows: Array) -> Ragged:
        shards, local = self._store.locate_all(rows)
        begins, ends = self._bounds(shards, local)
        offsets = offsets_of(ends - begins)
        values = aligned_empty((int(offsets[-1]), *self.item_shape), self.dtype)
        self._store.take_runs(f"{self._path}/values", shards, begins, ends - begins, values)
        return Ragged(values, offsets)

    def _bounds(self, shards: Array, local: Array) -> tuple[Array, Array]:
        """First item, and the one after the last, within the shard; ShardError if they are impossible."""
        path = f"{self._path}/offsets"
        begins, ends = np.empty(len(shards), np.int64), np.empty(len(shards), np.int64)
        self._store.take(path, shards, local, begins)
        self._store.take(path, shards, local + 1, ends)
        touched, which = np.unique(shards, return_inverse=True)
        limits = np.array(
            [self._store.num_items(f"{self._path}/values", k) for k in touched.tolist()], np.int64
        )
        wrong = (begins < 0) | (ends < begins) | (ends > limits[which] if len(limits) else False)
        if wrong.any():
            raise self._damaged(int(shards[np.argmax(wrong)]))
        return begins, ends

    def _damaged(self, shard: int) -> ShardError:
        directory = self._store.data.directory
        file = directory / self._store.data.shards[shard].file
        return ShardError(
            f"{file}: {self._path}/offsets is damaged; run {command_line('shards', 'verify', directory)}"
        )

    def __iter__(self) -> Iterator[Array]:
        for i in range(len(self)):
            yield self[i]

    def __repr__(self) -> str:
        return f"RaggedArray({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class GraphArray:
    """A graph field over all shards: an index gives a dict of its members, anything else a batch of graphs."""

    def __init__(self, name: str, members: Mapping[str, LazyArray | RaggedArray]) -> None:
        """`members` by role."""
        self.name = name
        self.members = dict(members)

    def __len__(self) -> int:
        return len(next(iter(self.members.values())))

    def __getitem__(self, key: Any) -> dict[str, Array]:
        """One graph: {role: array}. Several: members one after the other (`targets`, one for each graph, stacked),
        edges counting nodes through the batch, and where each graph's nodes and edges begin, `ptr` and
        `edge_ptr` (graphs + 1,)."""
        if isinstance(key, tuple):
            raise IndexError(
                f"'{self.name}' holds graphs: choose samples, and then among the members of each"
            )
        found = {role: member[key] for role, member in self.members.items()}
        return found if as_number(key) is not None else join_graphs(found)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for i in range(len(self)):
            yield self[i]

    def __repr__(self) -> str:
        return f"GraphArray({self.name!r}, {len(self)} graphs of {', '.join(self.members)})"


def join_graphs(members: Mapping[str, Array | Ragged]) -> dict[str, Array]:
    """A batch of graphs as one; see `GraphArray`."""
    joined: dict[str, Array] = {}
    for role, values in members.items():
        joined[role] = values.items if isinstance(values, Ragged) else values
    per_node = [members[role] for role in NODE_ROLES if role in members]
    edges = members.get("edges")
    if per_node and isinstance(per_node[0], Ragged):
        joined["ptr"] = per_node[0].offsets - per_node[0].offsets[0]
    if isinstance(edges, Ragged):
        joined["edge_ptr"] = edges.offsets - edges.offsets[0]
        if "ptr" in joined:
            shift = np.repeat(joined["ptr"][:-1], edges.lengths)
            joined["edges"] = joined["edges"] + shift.astype(joined["edges"].dtype)[:, None]
    return joined
