"""A run-length map over a range of tasks: the size follows the number of changes, not the number of tasks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from merlin.base.ranges import Range
from merlin.plan.tasks import NO_OUTCOME

_BLOCK = 2048  # most runs in one


class RunMap:
    """Maps every integer in [0, size) to a small integer, `default` until it is set.

    >>> m = RunMap(10); m.set(2, 5, 0); list(m.runs(0, 6))
    [(0, 2, 255), (2, 5, 0), (5, 6, 255)]
    """

    __slots__ = ("_blocks", "_firsts", "size")

    def __init__(self, size: int, default: int = NO_OUTCOME) -> None:
        self.size = size
        # the starts and the values of neighbouring runs: a change moves those of one block, and not of all runs
        self._blocks: list[tuple[list[int], list[int]]] = [([0], [default]) if size else ([], [])]
        self._firsts = [0]  # the first start of each block

    @classmethod
    def from_runs(cls, size: int, runs: Iterable[tuple[int, int, int]]) -> RunMap:
        """Build a map from (lo, hi, value) runs that are sorted and disjoint; linear in their number."""
        made = cls(size)
        starts, values, at = [], [], 0
        last: int | None = None
        for lo, hi, value in runs:
            if not at <= lo < hi <= size:
                raise ValueError(f"[{lo}, {hi}) is not inside [{at}, {size}), or empty")
            if at < lo and last != NO_OUTCOME:
                starts.append(at)
                values.append(NO_OUTCOME)
                last = NO_OUTCOME
            if value != last:
                starts.append(lo)
                values.append(value)
                last = value
            at = hi
        if at < size and last != NO_OUTCOME:
            starts.append(at)
            values.append(NO_OUTCOME)
        if starts:
            made._put(0, 0, starts, values)
        return made

    def set(self, lo: int, hi: int, value: int) -> None:
        """Set [lo, hi) to `value`; neighbours of equal value merge."""
        if not 0 <= lo <= hi <= self.size:
            raise ValueError(f"[{lo}, {hi}) is not inside [0, {self.size})")
        if lo == hi:
            return
        i = max(0, bisect_left(self._firsts, lo) - 1)  # the block of the task before lo
        j = bisect_right(self._firsts, hi) - 1  # the block of hi
        starts, values = self._blocks[i] if i == j else self._joined(i, j)
        first = bisect_left(starts, lo)  # first run that starts at or after lo
        last = bisect_right(starts, hi) - 1  # the run that holds hi (or starts at it)
        new_starts, new_values = [], []
        before = values[first - 1] if first > 0 else None
        if before != value:
            new_starts.append(lo)
            new_values.append(value)
        if hi < self.size:
            after = values[last]
            if after != value:
                new_starts.append(hi)
                new_values.append(after)
            end = last + 1
        else:
            end = len(starts)
        starts[first:end] = new_starts
        values[first:end] = new_values
        if i < j or len(starts) > _BLOCK:
            self._put(i, j, starts, values)

    def _joined(self, i: int, j: int) -> tuple[list[int], list[int]]:
        """The starts and values of blocks i to j, in new lists."""
        blocks = self._blocks[i : j + 1]
        return [s for starts, _ in blocks for s in starts], [v for _, values in blocks for v in values]

    def _put(self, i: int, j: int, starts: list[int], values: list[int]) -> None:
        """Replace blocks i to j by blocks of these runs that are half full."""
        step = _BLOCK // 2
        cuts = range(0, len(starts), step)
        self._blocks[i : j + 1] = [(starts[k : k + step], values[k : k + step]) for k in cuts]
        self._firsts[i : j + 1] = starts[::step]

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < self.size:
            raise IndexError(i)
        starts, values = self._blocks[bisect_right(self._firsts, i) - 1]
        return values[bisect_right(starts, i) - 1]

    def runs(self, lo: int = 0, hi: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield (lo, hi, value) runs that cover [lo, hi) exactly, in order."""
        hi = self.size if hi is None else hi
        if lo >= hi:
            return
        k = bisect_right(self._firsts, lo) - 1
        at = lo
        while at < hi:
            starts, values = self._blocks[k]
            k += 1
            stop = self._firsts[k] if k < len(self._firsts) else self.size
            for i in range(bisect_right(starts, at) - 1, len(starts)):
                end = starts[i + 1] if i + 1 < len(starts) else stop
                yield at, min(end, hi), values[i]
                at = end
                if at >= hi:
                    break

    def ranges(self, values: Iterable[int], lo: int = 0, hi: int | None = None) -> list[Range]:
        """Maximal ranges in [lo, hi) whose value is one of `values`."""
        wanted = frozenset(values)
        out: list[Range] = []
        for a, b, value in self.runs(lo, hi):
            if value in wanted:
                if out and out[-1][1] == a:
                    out[-1] = (out[-1][0], b)
                else:
                    out.append((a, b))
        return out

    def columns(self) -> tuple[list[int], list[int]]:
        """The starts of all runs, and their values; for those who count with arrays."""
        return self._joined(0, len(self._blocks) - 1)

    def counts(self) -> dict[int, int]:
        """Number of tasks per value."""
        out: dict[int, int] = {}
        for a, b, value in self.runs():
            out[value] = out.get(value, 0) + b - a
        return out
