"""Values from the shards that a study has written, read from proven rows only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from merlin.base.field import Field
from merlin.plan.plan import PlannedField
from merlin.shards.evidence.previous import ProvenRows, previous_rows
from merlin.shards.format.segments import Array, Ragged, Values, offsets_of, stretches_of
from merlin.shards.recollecting.share import Share
from merlin.shards.writing.collect import SLICE_BYTES

_TEXT_BYTES = 256  # assumed size of a text


class StoredRows(Struct, frozen=True):
    """Proven rows of a shard that stand for tasks [lo, hi), or some of them."""

    lo: int
    hi: int
    is_there: Array  # (hi - lo,) bool
    proven: ProvenRows
    first: int  # of the proven rows, the place of the first one that is there

    def values(self, old: PlannedField, new: Field) -> Values:
        """A field's column of tasks [lo, hi); values of tasks that are not there mean nothing."""
        num, place = int(np.count_nonzero(self.is_there)), self.first
        if new.ragged:
            ends = self.proven.offsets(old.path)[place : place + num + 1]
            items = np.empty((int(ends[-1] - ends[0]), *new.shape), new.value_dtype)
            self.proven.read(f"{old.path}/values", int(ends[0]), items)
            lengths = np.zeros(self.hi - self.lo, np.int64)
            lengths[self.is_there] = np.diff(ends)
            return Ragged(items, offsets_of(lengths))
        found = np.empty((num, *new.shape), new.value_dtype)
        self.proven.read(old.path, place, found)
        if num == len(self.is_there):
            return found
        shape = len(self.is_there), *new.shape
        column = np.full(shape, "", object) if new.is_text else np.zeros(shape, new.value_dtype)
        column[self.is_there] = found
        return column


class OldShards:
    """The shards of one study's share in its data set; the one that was used last stays open."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._rows = None if share.old is None else share.old_rows
        self._number = -1
        self._open: list[ProvenRows] = []
        self.problems: list[str] = []  # of the shard that is open

    def pieces(self, source: str, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Split a source's tasks [lo, hi) at the borders of old shards: (old shard, lo, hi); none if it was not in
        the data set."""
        if self._rows is None or source not in self._rows.aggregate.sources:
            return
        first = self._rows.first_row(source)
        for shard, a, b in self._rows.pieces(first + lo, first + hi):
            yield shard, a - first, b - first

    def rows(
        self, shard: int, source: str, lo: int, hi: int, columns: Sequence[Field]
    ) -> Iterator[StoredRows]:
        """The proven rows of a source's tasks [lo, hi), which lie in one old shard, in slices that fit the memory.

        `columns` are those that are going to be read, by their new fields.
        """
        assert self._rows is not None
        first = self._rows.first_row(source)
        for proven in self._opened(shard):
            a, b = np.searchsorted(proven.rows, [first + lo, first + hi]).tolist()
            for x, y in stretches_of(self._bytes_of(proven, a, b, columns), SLICE_BYTES):
                tasks = proven.rows[a + x : a + y] - first
                begin, end = int(tasks[0]), int(tasks[-1]) + 1
                is_there = np.zeros(end - begin, dtype=bool)
                is_there[tasks - begin] = True
                yield StoredRows(begin, end, is_there, proven, a + x)

    def filtered(self, shard: int, source: str) -> dict[str, Array]:
        """The tasks of a source that the old filters rejected, by expression."""
        assert self._rows is not None
        first = self._rows.first_row(source)
        found: dict[str, Array] = {}
        for proven in self._opened(shard):
            for expression, rows in proven.filtered.items():
                mine = rows[(rows >= first) & (rows < first + self._rows.num_tasks)] - first
                found[expression] = np.union1d(found.get(expression, mine), mine)
        return found

    def _opened(self, shard: int) -> list[ProvenRows]:
        if shard != self._number:
            self.close()
            assert self._share.old_directory is not None
            self._open, self.problems = previous_rows(self._share.old_directory, shard)
            self._number = shard
        return self._open

    def _bytes_of(self, proven: ProvenRows, lo: int, hi: int, columns: Sequence[Field]) -> Array:
        """(hi - lo,) how much memory the values of each row take, about."""
        taken = np.zeros(hi - lo, np.int64)
        for column in columns:
            if column.ragged:
                ends = proven.offsets(self._share.stored[column.name].path)[lo : hi + 1]
                taken += np.diff(ends) * column.item_bytes
            else:
                taken += _TEXT_BYTES if column.is_text else column.item_bytes
        return taken

    def close(self) -> None:
        for proven in self._open:
            proven.close()
        self._open, self._number = [], -1
