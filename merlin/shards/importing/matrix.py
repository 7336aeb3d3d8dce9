"""The columns of a matrix (n, k) that a schema names as one input: z0, z1, …, each a column of a file of its own."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from merlin.errors import ShardError
from merlin.shards.format.segments import Array, Values
from merlin.shards.importing.source_file import Facts, SourceFile

MAX_COLUMNS = 1000  # a data set has an array, statistics and a line in its tables for each of them
KEPT_BYTES = 64 << 20  # up to this size, rows of a shard are read once for all columns, else for each column


class MatrixFile(SourceFile):
    """A file's column of k numbers as k columns "0", "1", …; the rows of a shard are read once for all of them."""

    def __init__(self, source: SourceFile, key: str, facts: Facts) -> None:
        super().__init__(source.path)
        self.has_untyped_columns = source.has_untyped_columns
        self._source, self._key, self._row_facts = source, key, facts
        self._range = (0, 0)  # rows that every column reads next
        self._kept: tuple[Facts, Array] | None = None

    def names(self) -> list[str]:
        return [str(i) for i in range(self._row_facts.shape[0])]

    def has(self, key: str) -> bool:
        return key in self.names()

    def _facts(self, key: str) -> Facts:
        return replace(self._row_facts, shape=())

    def expect(self, lo: int, hi: int) -> None:
        self._source.expect(lo, hi)
        if (lo, hi) != self._range:
            self._range, self._kept = (lo, hi), None

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        facts_of_row = replace(self._row_facts, dtype=facts.dtype)
        first, last = self._range
        at_once = max(1, KEPT_BYTES // (facts.dtype.itemsize * facts_of_row.shape[0]))
        if last - first > at_once or not first <= lo <= hi <= last:
            parts = [
                self._rows(at, min(at + at_once, hi), facts_of_row)[:, int(key)].copy()
                for at in range(lo, hi, at_once)
            ]
            return np.concatenate([np.zeros(0, facts.dtype), *parts])
        if self._kept is None or self._kept[0] != facts_of_row:
            self._kept = facts_of_row, self._rows(first, last, facts_of_row)
        return self._kept[1][lo - first : hi - first, int(key)]

    def _rows(self, lo: int, hi: int, facts: Facts) -> Array:
        found = self._source.read(self._key, lo, hi, facts)
        if not isinstance(found, np.ndarray) or found.shape != (hi - lo, *facts.shape):
            raise ShardError(f"{self.path}: '{self._key}' has not {facts.shape[0]} numbers in every sample")
        return found

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        return self._source.problems(self._key, lo, hi, replace(self._row_facts, dtype=facts.dtype))

    def failures(self, lo: int, hi: int) -> dict[int, str]:
        return self._source.failures(lo, hi)

    def place(self, key: str, row: int) -> str:
        return f"{self._source.place(self._key, row)}, number {key}"
