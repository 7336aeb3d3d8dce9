"""More samples for a study: what is old in a table, what is new, and a file of the new rows alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.files import replacing
from merlin.errors import Diagnostic
from merlin.workspace.samples import Columns, SamplesTable

_BLOCK_ROWS = 1 << 16
TEXT_FORMATS = {".csv": ",", ".tab": "\t"}


class JoinedRows:
    """Rows of several tables, one after another: of each, rows [lo, hi)."""

    def __init__(self, parts: Sequence[tuple[SamplesTable, int, int]]) -> None:
        self._parts = tuple(parts)
        self._starts = [0]
        for _, lo, hi in self._parts:
            self._starts.append(self._starts[-1] + hi - lo)
        self.num = self._starts[-1]
        self.labels = self._parts[0][0].labels

    @property
    def numeric(self) -> bool:
        return all(table.numeric for table, _, _ in self._parts)

    def _pieces(self, lo: int, hi: int) -> Iterator[tuple[SamplesTable, int, int]]:
        if not 0 <= lo <= hi <= self.num:
            raise IndexError(f"rows [{lo}, {hi}) are not inside [0, {self.num})")
        index = min(max(0, bisect_right(self._starts, lo) - 1), len(self._parts) - 1)
        while True:
            table, first, _ = self._parts[index]
            start, end = self._starts[index], self._starts[index + 1]
            yield table, first + lo - start, first + min(hi, end) - start
            if hi <= end:
                return
            lo, index = end, index + 1

    def rows(self, lo: int, hi: int) -> Columns:
        found = [table.rows(a, b) for table, a, b in self._pieces(lo, hi)]
        return {label: np.concatenate([part[label] for part in found]) for label in self.labels}

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        return [row for table, a, b in self._pieces(lo, hi) for row in table.text_rows(a, b)]

    def stored(self, lo: int, hi: int) -> bytes:
        return b"".join(table.stored(a, b) for table, a, b in self._pieces(lo, hi))

    def findings(self, limit: int) -> list[Diagnostic]:
        """Of the whole tables, also of the rows that are left out."""
        return [finding for table, _, _ in self._parts for finding in table.findings(limit)][:limit]


def rows_of(table: SamplesTable, lo: int, hi: int) -> SamplesTable:
    """Rows [lo, hi) of a table, as a table."""
    return JoinedRows([(table, lo, hi)])


def kinds(table: SamplesTable) -> dict[str, str]:
    """Label -> "numbers" or "text"."""
    first = table.rows(0, min(1, table.num))
    return {label: "numbers" if column.dtype.kind in "fiub" else "text" for label, column in first.items()}


def first_difference(a: SamplesTable, b: SamplesTable, num: int, *, b_from: int = 0) -> int | None:
    """The first of rows [0, num) of `a` that is not row b_from + i of `b`, None if all are equal."""
    for lo in range(0, num, _BLOCK_ROWS):
        hi = min(lo + _BLOCK_ROWS, num)
        ours, theirs = a.rows(lo, hi), b.rows(b_from + lo, b_from + hi)
        differs = np.zeros(hi - lo, dtype=bool)
        for label in a.labels:
            x, y = ours[label], theirs[label]
            same_kind = (x.dtype.kind in "fiub") == (y.dtype.kind in "fiub")
            differs |= (x != y) if same_kind else np.ones(hi - lo, dtype=bool)
        if differs.any():
            return lo + int(np.argmax(differs))
    return None


def write_rows(path: Path, table: SamplesTable, lo: int) -> None:
    """Write rows [lo, n) of a table atomically: text as it is written there for .csv and .tab, else .npy."""
    with replacing(path) as temporary:
        if path.suffix.lower() in TEXT_FORMATS:
            _write_text(temporary, table, lo, TEXT_FORMATS[path.suffix.lower()])
        else:
            _write_npy(temporary, table, lo)


def _write_text(path: Path, table: SamplesTable, lo: int, delimiter: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(f"# {delimiter.join(table.labels)}\n")
        for at in range(lo, table.num, _BLOCK_ROWS):
            for row in table.text_rows(at, min(at + _BLOCK_ROWS, table.num)):
                file.write(delimiter.join(row) + "\n")


def _write_npy(path: Path, table: SamplesTable, lo: int) -> None:
    """One column type: (n, d); several: a structured array, so that every value keeps its type."""
    types = _types(table, lo)
    uniform = set(types.values())
    one = next(iter(uniform)) if len(uniform) == 1 else None
    dtype = np.dtype(list(types.items())) if one is None else one
    shape: tuple[int, ...] = (table.num - lo,) if one is None else (table.num - lo, len(types))
    out: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    for at in range(lo, table.num, _BLOCK_ROWS):
        end = min(at + _BLOCK_ROWS, table.num)
        for j, (label, column) in enumerate(table.rows(at, end).items()):
            if one is None:
                out[label][at - lo : end - lo] = column
            else:
                out[at - lo : end - lo, j] = column
    out.flush()


def _types(table: SamplesTable, lo: int) -> dict[str, np.dtype[Any]]:
    """The dtype that holds every value of each column."""
    found: dict[str, np.dtype[Any]] = {}
    for at in range(lo, table.num, _BLOCK_ROWS):
        for label, column in table.rows(at, min(at + _BLOCK_ROWS, table.num)).items():
            found[label] = np.promote_types(found.get(label, column.dtype), column.dtype)
    return found
