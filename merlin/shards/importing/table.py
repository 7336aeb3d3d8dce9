"""Delimited text: ``.csv`` (comma), ``.tab`` and ``.tsv`` (tab), with or without a line of titles.

The rows of one shard are kept for as long as the import works on them. An empty cell is NaN in a column of
floating-point numbers, and a bad value in any other. A row of empty cells is a row; only blank lines are none.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.tables.quotes import Dialect, OpenQuoteError
from merlin.base.tables.text import TextTable
from merlin.errors import ShardError, UsageError
from merlin.shards.format.segments import Values
from merlin.shards.importing.source_file import Facts, SourceFile, as_text, list_some, require_one
from merlin.shards.importing.text_numbers import not_numbers, numbers_in

_LOOK = 1000  # rows that decide whether a column holds numbers


class TableFile(SourceFile):
    """A column is found by its title, or its number from 0; a pattern such as ``p*`` makes a series of several."""

    has_untyped_columns = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        delimiter = "," if path.suffix.lower() == ".csv" else "\t"
        try:
            self._table = TextTable(path, Dialect(delimiter, has_comments=False), "replace")
        except OpenQuoteError as error:
            raise ShardError(f"{path}:{error.line}: {error}") from error
        if not self._table.num:
            raise ShardError(f"{path}: the file is empty")
        first = self._cells(0, 1)[0]
        self._names = [str(i) for i in range(len(first))]
        if any(cell and _number(cell) is None for cell in first):
            self._names = first
            self._table.drop_first()
        self._require_width()
        self._kept: list[list[str]] = []  # cells of the rows that are worked on
        self._kept_from = 0

    def _cells(self, lo: int, hi: int) -> list[list[str]]:
        return [[cell.strip() for cell in cells] for cells in self._table.values(lo, hi)]

    def _require_width(self) -> None:
        """Raise ShardError for a row of another length."""
        width = len(self._names)
        for lo, texts in self._table.blocks():
            for row, text in enumerate(texts, lo):
                found = len(self._table.dialect.values(text))
                if found != width:
                    line = self._table.line(row)
                    raise ShardError(f"{self.path}:{line}: expected {width} values, found {found}")

    def names(self) -> list[str]:
        return self._names

    def has(self, key: str) -> bool:
        return bool(self._columns(key))

    def _columns(self, key: str) -> list[int]:
        if key in self._names:
            return [self._names.index(key)]
        if key.isdigit() and int(key) < len(self._names):
            return [int(key)]
        if any(letter in key for letter in "*?["):
            return [i for i, name in enumerate(self._names) if fnmatchcase(name, key)]
        return []

    def _facts(self, key: str) -> Facts:
        columns = self._columns(key)
        if not columns:
            raise ShardError(f"{self.path} has no column '{key}'; there are: {list_some(self._names)}")
        require_one(self.path, self._names, key)
        self._refuse_values_as_titles(key)
        cells = [cells[i] for cells in self._rows(0, min(_LOOK, self._table.num)) for i in columns]
        is_series = len(columns) > 1 or (self._names[columns[0]] != key and not key.isdigit())
        return Facts(self._table.num, _guess(cells), (len(columns),) if is_series else ())

    def _refuse_values_as_titles(self, key: str) -> None:
        """Raise UsageError for a column by number if the first row, taken for titles, may be one of values."""
        if (
            key not in self._names
            and key.isdigit()
            and any(_number(name) is not None for name in self._names)
        ):
            raise UsageError(
                f"{self.path}: the first row holds numbers and text, so it may be titles or values, and '{key}' is "
                "the number of a column; write a row of titles above it, or give the columns by their titles"
            )

    def expect(self, lo: int, hi: int) -> None:
        self._kept, self._kept_from = self._cells(lo, hi), lo

    def _rows(self, lo: int, hi: int) -> list[list[str]]:
        if not self._kept_from <= lo <= hi <= self._kept_from + len(self._kept):
            self.expect(lo, hi)
        return self._kept[lo - self._kept_from : hi - self._kept_from]

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        """Read cells; those that `problems` reports become zero."""
        columns = self._columns(key)
        cells = [cells[i] for cells in self._rows(lo, hi) for i in columns]
        values = as_text(cells) if facts.is_text else numbers_in(cells, facts.dtype)
        return values.reshape(hi - lo, *facts.shape)

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        if facts.is_text:
            return {}
        columns = self._columns(key)
        cells = [cells[i] for cells in self._rows(lo, hi) for i in columns]
        return {lo + i // len(columns): why for i, why in not_numbers(cells, facts.dtype).items()}

    def place(self, key: str, row: int) -> str:
        line, column = self._table.place(row, self._columns(key)[0])
        return f"{self.path}:{line}:{column}: row {row}, '{key}'"


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _guess(cells: list[str]) -> np.dtype[Any]:
    """int64, float64 or text, by what the cells look like; empty ones are NaN."""
    known = [cell for cell in cells if cell]
    if not known or any(_number(cell) is None for cell in known):
        return np.dtype(np.float64 if not known and cells else object)
    are_integers = len(known) == len(cells) and all(cell.lstrip("+-").isdigit() for cell in known)
    return np.dtype(np.int64 if are_integers else np.float64)
