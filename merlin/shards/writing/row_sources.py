"""What holds rows of a shard, and how a block of them is read from several sources whose rows alternate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from msgspec import Struct

from merlin.shards.format.digest import BLOCK_BYTES
from merlin.shards.format.segments import Array, numbers_of_runs

_SMALL_BYTES = 64 << 10  # a read costs as much as that many bytes
_TEXT_BYTES = 512  # a text counts as so many


class RowSource(Protocol):
    """Something that holds some rows of a shard."""

    rows: Array  # (n,) ascending
    attempts: Array  # (n,) which attempt made each of them
    filtered: dict[str, Array]  # rows that it knows to be rejected, by the filter's expression

    def read(self, name: str, lo: int, out: Array) -> None:
        """Put rows (of the values of a ragged field: items) [lo, lo + len(out)) of a data set into `out`."""

    def offsets(self, name: str) -> Array:
        """(n + 1,) of a ragged field: where the items of each row begin."""

    def close(self) -> None: ...


class Stretches(Struct, frozen=True):
    """Rows (or items) that follow each other in the shard, as (k,) stretches that follow each other in one source."""

    sources: Array  # by number
    begins: Array  # in the source, ascending among the stretches of one source
    ends: Array  # in the shard, where the first one begins at 0

    def read(self, sources: Sequence[RowSource], name: str, lo: int, hi: int, out: Array) -> None:
        """Put [lo, hi) of a data set into `out`; short stretches of one source are read together.

        Memory: two blocks (`BLOCK_BYTES`) beside `out`.
        """
        if lo == hi:
            return
        part = self._part(lo, hi)
        lengths = np.diff(part.ends, prepend=0)
        starts = part.ends - lengths
        for group in part._groups(lengths, out):
            source, first, last = sources[part.sources[group[0]]], group[0], group[-1]
            begin, end = int(part.begins[first]), int(part.begins[last] + lengths[last])
            if first == last:
                source.read(name, begin, out[starts[first] : part.ends[first]])
                continue
            found = np.empty((end - begin, *out.shape[1:]), out.dtype)
            source.read(name, begin, found)
            picks = numbers_of_runs(part.begins[group] - begin, lengths[group])
            out[numbers_of_runs(starts[group], lengths[group])] = found[picks]

    def _part(self, lo: int, hi: int) -> Stretches:
        """The stretches of [lo, hi), as if that were all; none is empty."""
        first, last = np.searchsorted(self.ends, lo, side="right"), np.searchsorted(self.ends, hi) + 1
        ends = np.minimum(self.ends[first:last], hi) - lo
        begins = self.begins[first:last].copy()
        if len(begins):
            begins[0] += lo - (self.ends[first - 1] if first else 0)
        holds = np.diff(ends, prepend=0) > 0
        return Stretches(self.sources[first:last][holds], begins[holds], ends[holds])

    def _groups(self, lengths: Array, out: Array) -> Iterator[Array]:
        """The numbers of stretches that are read together: of one source, short, near each other, in one block."""
        row_bytes = _TEXT_BYTES if out.dtype.kind == "O" else max(1, out[:1].nbytes)
        order = np.argsort(self.sources, kind="stable")
        source, begin, length = self.sources[order], self.begins[order], lengths[order]
        is_short = length * row_bytes < _SMALL_BYTES
        gap = begin[1:] - begin[:-1] - length[:-1]
        block = begin // max(1, BLOCK_BYTES // row_bytes)
        joins = (np.diff(source) == 0) & (np.diff(block) == 0) & is_short[1:] & is_short[:-1]
        joins &= gap * row_bytes < _SMALL_BYTES
        for a, b in pairwise([0, *(1 + np.flatnonzero(~joins)).tolist(), len(order)]):
            yield order[a:b]
