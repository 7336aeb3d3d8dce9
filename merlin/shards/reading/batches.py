"""Many columns at the same rows, into memory that is used again and again.

Columns of small rows are kept in memory, row after row, so that twenty scalars cost one gather and not
twenty; so are compressed columns of larger rows, which would be unpacked again and again. Others are read
from where they are mapped, so that of several processes that read a part each, none holds all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.shards.format.aligned import aligned_empty
from merlin.shards.format.segments import Array
from merlin.shards.reading.indexing import require_fit
from merlin.shards.reading.sharing import ForkLock
from merlin.shards.reading.store import Store

SMALL_BYTES = 256  # per row; columns of larger rows are not kept in memory
COMPRESSED_BYTES = 4096  # the same for compressed columns
TABLE_BYTES = 1 << 30  # of small columns that are kept in memory, at most
_MAX_PLANS = 4  # lists of columns that are remembered


@dataclass(eq=False)
class _Table:
    """Small columns of one dtype and shape, kept together."""

    names: list[str]
    paths: list[str]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    values: Array | None = field(default=None, repr=False)  # (rows of the data set, columns, *shape)

    def nbytes(self, num_rows: int) -> int:
        return num_rows * len(self.paths) * self.dtype.itemsize * prod(self.shape)

    def load(self, store: Store) -> Array:
        if self.values is None:
            values = np.empty((store.num_rows, len(self.paths), *self.shape), self.dtype)
            for shard, (lo, hi) in enumerate(pairwise(store.starts.tolist())):
                for i, path in enumerate(self.paths):
                    values[lo:hi, i] = store.read(path, shard, 0, hi - lo)
            self.values = values
        return self.values

    def fill(self, store: Store, rows: Array, block: Array) -> None:
        """block (columns, n, *shape) at rows (n,)."""
        values = self.load(store)
        if len(self.paths) == 1:
            np.take(values[:, 0], rows, axis=0, out=block[0], mode="clip")
            return
        np.copyto(block, np.take(values, rows, axis=0, mode="clip").swapaxes(0, 1))


class GatherPlan(Struct, eq=False):
    """How a list of columns is gathered: all numeric and of fixed shape, or text."""

    store: Store
    columns: dict[str, str]  # path by name
    tables: list[_Table]
    others: dict[str, str]  # path by name, each gathered for itself

    def blocks(self, num: int) -> list[Array]:
        """Memory for `num` rows of each table: (columns, num, *shape)."""
        return [aligned_empty((len(t.paths), num, *t.shape), t.dtype) for t in self.tables]


class Buffers(dict[str, Array]):
    """Arrays (num, …) by name for `Ensemble.batch` to fill, each aligned so that filling it is fast."""

    def __init__(self, plan: GatherPlan, fields: Iterable[str], num: int) -> None:
        """`fields` are names of batches, those that the plan does not gather among them."""
        self.plan = plan
        self.fields = tuple(fields)
        self.num = num
        self.blocks = plan.blocks(num)
        found = {
            name: block[i]
            for table, block in zip(plan.tables, self.blocks, strict=True)
            for i, name in enumerate(table.names)
        }
        for name, path in plan.others.items():
            dtype, shape = plan.store.layout(path)
            found[name] = aligned_empty((num, *shape), dtype)
        super().__init__((name, found[name]) for name in plan.columns)


class Batches:
    """Gathers of several columns; shared by an ensemble and its selections."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._plans: OrderedDict[tuple[str, ...], GatherPlan] = OrderedDict()
        self._lock = ForkLock()

    def plan(self, columns: Mapping[str, str]) -> GatherPlan:
        """`columns`: path by name."""
        names = tuple(columns)
        with self._lock:
            found = self._plans.get(names)
            if found is None:
                found = self._plans[names] = self._make(columns)
                while len(self._plans) > _MAX_PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(names)
            return found

    def _make(self, columns: Mapping[str, str]) -> GatherPlan:
        tables: dict[Any, _Table] = {}
        others: dict[str, str] = {}
        for name, path in columns.items():
            dtype, shape = self._store.layout(path)
            most = COMPRESSED_BYTES if self._store.is_compressed(path) else SMALL_BYTES
            if dtype.kind == "O" or self._store.item_bytes(path) > most:
                others[name] = path
                continue
            table = tables.setdefault((dtype, shape), _Table([], [], dtype, shape))
            table.names.append(name)
            table.paths.append(path)
        left, kept = TABLE_BYTES, []
        for table in tables.values():
            size = table.nbytes(self._store.num_rows)
            if size <= left:
                left -= size
                kept.append(table)
            else:
                others |= zip(table.names, table.paths, strict=True)
        return GatherPlan(self._store, dict(columns), kept, others)

    def gather(self, plan: GatherPlan, rows: Array, out: Mapping[str, Array] | None) -> dict[str, Array]:
        """Rows (n,) of the data set, into the arrays of `out` where it has them."""
        given: dict[str, Array] = {}
        if not isinstance(out, Buffers) or out.plan is not plan or out.num != len(rows):
            given = {name: out[name] for name in plan.columns if name in out} if out else {}
            out = Buffers(plan, plan.columns, len(rows))
        for name, values in given.items():
            require_fit(values, out[name].dtype, out[name].shape)
            if name in plan.others:
                out[name] = values
        for table, block in zip(plan.tables, out.blocks, strict=True):
            table.fill(self._store, rows, block)
        for name, path in plan.others.items():
            self._store.take_rows(path, rows, out[name])
        found = dict(out)
        for name in given.keys() - plan.others.keys():
            np.copyto(given[name], found[name])
            found[name] = given[name]
        return found

    def close(self) -> None:
        self._plans.clear()
