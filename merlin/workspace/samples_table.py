"""Rows of samples, whatever file they are in, and rows of several files as one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from merlin.errors import Diagnostic, SamplesError
from merlin.workspace.reading_progress import reading_part, report_read

BLOCK_ROWS = 1 << 16  # digests of samples in plans depend on it

Columns = dict[str, NDArray[Any]]


def finding(
    path: Path, code: str, message: str, *, line: int = 0, col: int = 0, text: str = "", hint: str = ""
) -> Diagnostic:
    """A finding about a samples file, or about a place in it."""
    return Diagnostic(str(path), line, col, message, text=text, hint=hint, code=f"samples-{code}")


def samples_error(path: Path, code: str, message: str, **more: Any) -> SamplesError:
    """An error with a single `finding`."""
    return SamplesError([finding(path, code, message, **more)])


def check_columns(path: Path, found: int, labels: tuple[str, ...], line: int = 0) -> None:
    """Raises SamplesError unless a file has a column for each label."""
    if found != len(labels):
        what = f"{found} column{'s' * (found != 1)}, but column_labels has {len(labels)}"
        hint = f"column_labels: [{', '.join(labels)}]"
        raise samples_error(path, "columns", what, line=line, col=min(line, 1), hint=hint)


def row_blocks(lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `BLOCK_ROWS` rows, which together are [lo, hi)."""
    return ((start, min(start + BLOCK_ROWS, hi)) for start in range(lo, hi, BLOCK_ROWS))


class SamplesTable(ABC):
    """Rows of samples; row i is sample i. Reading never changes the file."""

    path: Path
    num: int
    labels: tuple[str, ...]

    @property
    @abstractmethod
    def numeric(self) -> bool:
        """True if every column holds numbers; may have to read all rows."""

    @property
    def known_numeric(self) -> bool:
        """True if every column is known to hold numbers; reads no rows."""
        return self.numeric

    def rows(self, lo: int, hi: int) -> Columns:
        """An array of hi - lo values per label: numbers in their dtype (float64 from text), or text."""
        self._check_range(lo, hi)
        return self._read(lo, hi)

    def picked(self, rows: NDArray[np.int64]) -> Columns:
        """The values of some rows, in ascending order.

        A column of numbers here may have text in other rows of a text file, which are not read.
        """
        found = [self.text_rows(row, row + 1)[0] for row in rows.tolist()]
        columns = zip(*found, strict=True) if found else ((),) * len(self.labels)
        return {label: _values(column) for label, column in zip(self.labels, columns, strict=True)}

    @abstractmethod
    def _read(self, lo: int, hi: int) -> Columns:
        """`rows` of a range that exists."""

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        """The values as they are written into commands, one tuple per sample."""
        return list(zip(*map(_printed, self.rows(lo, hi).values()), strict=True))

    def stored(self, lo: int, hi: int) -> bytes:
        """The rows as bytes of the file, to find out whether they have changed."""
        return repr(self.text_rows(lo, hi)).encode("utf-8", "surrogateescape")

    def findings(self, limit: int) -> list[Diagnostic]:
        """The first `limit` findings about the rows: ragged lines, values that are not finite. Reads all, in blocks."""
        out: list[Diagnostic] = []
        for lo, hi in self.blocks():
            for label, column in self.rows(lo, hi).items():
                if column.dtype.kind == "f":
                    for row in np.flatnonzero(~np.isfinite(column))[: limit - len(out)].tolist():
                        message = f"row {lo + row}, column {label}: {column[row]} is not finite"
                        out.append(finding(self.path, "not-finite", message, text=str(column[row])))
            if len(out) >= limit:
                break
        return out

    def blocks(self, num: int | None = None) -> Iterator[tuple[int, int]]:
        """The first `num` rows, or all, to be read block by block: keeps none in memory, and says how far it is."""
        num = self.num if num is None else num
        for lo, hi in row_blocks(0, num):
            yield lo, hi
            self._forget_rows(lo, hi)
            report_read(hi, num)

    def _forget_rows(self, lo: int, hi: int) -> None:
        """Give back the memory of rows that were read."""
        return

    def has_only(self, characters: bytes) -> bool:
        """True if the values are known to consist of these characters; does not divide rows into values."""
        return False

    def place(self, row: int, j: int) -> tuple[str, int, int]:
        """File, line and column of value j of a row; line and column are 0 in a file without lines."""
        return str(self.path), 0, 0

    def _check_range(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.num:
            raise IndexError(f"rows [{lo}, {hi}) are not inside [0, {self.num})")


def _values(column: Sequence[str]) -> NDArray[Any]:
    """Numbers, if all of them are."""
    try:
        return np.array(list(map(float, column)), np.float64)
    except ValueError:
        return np.array(column, np.str_)


def _printed(column: NDArray[Any]) -> list[str]:
    """`str` of every value, as NumPy scalars print: float32 0.1 is "0.1", not its digits as a double."""
    if column.dtype.kind == "f" and column.dtype.itemsize < 8:
        return [str(value) for value in column]
    return [str(value) for value in column.tolist()]


class JoinedRows(SamplesTable):
    """Rows of several tables, one after another: of each, rows [lo, hi)."""

    def __init__(self, parts: Sequence[tuple[SamplesTable, int, int]]) -> None:
        self._parts = tuple(parts)
        self._starts = [0]
        for _, lo, hi in self._parts:
            self._starts.append(self._starts[-1] + hi - lo)
        self.num = self._starts[-1]
        self.path, self.labels = self._parts[0][0].path, self._parts[0][0].labels

    @property
    def numeric(self) -> bool:
        return all(table.numeric for table, _, _ in self._parts)

    @property
    def known_numeric(self) -> bool:
        return all(table.known_numeric for table, _, _ in self._parts)

    def _pieces(self, lo: int, hi: int) -> Iterator[tuple[SamplesTable, int, int]]:
        self._check_range(lo, hi)
        index = min(max(0, bisect_right(self._starts, lo) - 1), len(self._parts) - 1)
        while True:
            table, first, _ = self._parts[index]
            start, end = self._starts[index], self._starts[index + 1]
            yield table, first + lo - start, first + min(hi, end) - start
            if hi <= end:
                return
            lo, index = end, index + 1

    def _read(self, lo: int, hi: int) -> Columns:
        found = [table.rows(a, b) for table, a, b in self._pieces(lo, hi)]
        return {label: np.concatenate([part[label] for part in found]) for label in self.labels}

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        return [row for table, a, b in self._pieces(lo, hi) for row in table.text_rows(a, b)]

    def stored(self, lo: int, hi: int) -> bytes:
        return b"".join(table.stored(a, b) for table, a, b in self._pieces(lo, hi))

    def picked(self, rows: NDArray[np.int64]) -> Columns:
        found = []
        for (table, lo, hi), start in zip(self._parts, self._starts, strict=False):
            here = rows[(rows >= start) & (rows < start + hi - lo)]
            found.append(table.picked(here - start + lo))
        return {label: np.concatenate([part[label] for part in found]) for label in self.labels}

    def findings(self, limit: int) -> list[Diagnostic]:
        """The findings about all rows of the tables, also about rows that are left out."""
        out: list[Diagnostic] = []
        done, total = 0, sum(table.num for table, _, _ in self._parts)
        for table, _, _ in self._parts:
            if len(out) < limit:
                with reading_part(done, total):
                    out += table.findings(limit - len(out))
            done += table.num
        return out

    def _forget_rows(self, lo: int, hi: int) -> None:
        for table, a, b in self._pieces(lo, hi):
            table._forget_rows(a, b)

    def place(self, row: int, j: int) -> tuple[str, int, int]:
        table, lo, _ = next(self._pieces(row, row + 1))
        return table.place(lo, j)


def rows_of(table: SamplesTable, lo: int, hi: int) -> SamplesTable:
    """Rows [lo, hi) of a table, as a table."""
    return JoinedRows([(table, lo, hi)])
