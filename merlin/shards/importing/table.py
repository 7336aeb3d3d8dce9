"""Delimited text: ``.csv`` (comma), ``.tab`` and ``.tsv`` (tab), with or without a line of titles.

Rows are read forward and kept for as long as the import works on them (one shard). An empty cell is NaN in a
column of floating-point numbers, and a bad value in any other.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards.export.view import Array, Values
from merlin.shards.importing.sources import Facts, SourceFile, as_text, list_some

_LOOK = 1000  # rows that decide whether a column holds numbers
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


class TableFile(SourceFile):
    """A column is found by its title, or its number from 0; a pattern such as ``p*`` makes a series of several."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._delimiter = "," if path.suffix.lower() == ".csv" else "\t"
        self._titles: list[str] = []
        self._titles, self._width, self._num = self._look_through()
        self._kept: list[tuple[int, list[str]]] = []  # (line, cells)
        self._kept_from = 0
        self._rows = self._iterate()
        self._next = 0

    def _iterate(self) -> Iterator[tuple[int, list[str]]]:
        """(line, cells) of each row, titles and empty lines left out."""
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=self._delimiter)
            skip = bool(self._titles)
            try:
                for cells in reader:
                    if any(cell.strip() for cell in cells):
                        if not skip:
                            yield reader.line_num, [cell.strip() for cell in cells]
                        skip = False
            except csv.Error as e:
                raise ShardError(f"{self.path}:{reader.line_num}: {e}") from e

    def _look_through(self) -> tuple[list[str], int, int]:
        """Titles, number of columns and number of rows; ShardError for a row of another length."""
        titles: list[str] = []
        width = num = 0
        for line, cells in self._iterate():
            if not width:
                width = len(cells)
                if any(cell and _number(cell) is None for cell in cells):
                    titles = cells
                    continue
            if len(cells) != width:
                raise ShardError(f"{self.path}:{line}: expected {width} values, found {len(cells)}")
            num += 1
        if not width:
            raise ShardError(f"{self.path}: the file is empty")
        return titles, width, num

    def names(self) -> list[str]:
        return self._titles or [str(i) for i in range(self._width)]

    def has(self, key: str) -> bool:
        return bool(self._columns(key))

    def _columns(self, key: str) -> list[int]:
        names = self.names()
        if key in names:
            return [names.index(key)]
        if key.isdigit() and int(key) < self._width:
            return [int(key)]
        if any(letter in key for letter in "*?["):
            return [i for i, name in enumerate(names) if fnmatchcase(name, key)]
        return []

    def facts(self, key: str, offsets: str | None = None) -> Facts:
        columns = self._columns(key)
        if not columns:
            raise ShardError(f"{self.path} has no column '{key}'; there are: {list_some(self.names())}")
        cells = [cells[i] for _, cells in self._get(0, min(_LOOK, self._num)) for i in columns]
        is_series = len(columns) > 1 or (self.names()[columns[0]] != key and not key.isdigit())
        return Facts(self._num, _guess(cells), (len(columns),) if is_series else ())

    def expect(self, lo: int, hi: int) -> None:
        if lo < self._next:
            self._rows, self._next = self._iterate(), 0
        self._kept = []
        while self._next < hi:
            row = next(self._rows)
            if self._next >= lo:
                self._kept.append(row)
            self._next += 1
        self._kept_from = lo

    def _get(self, lo: int, hi: int) -> list[tuple[int, list[str]]]:
        if not self._kept_from <= lo <= hi <= self._kept_from + len(self._kept):
            self.expect(lo, hi)
        return self._kept[lo - self._kept_from : hi - self._kept_from]

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        """Cells that `problems` reports are zero."""
        columns = self._columns(key)
        cells = [cells[i] for _, cells in self._get(lo, hi) for i in columns]
        values = as_text(cells) if facts.is_text else _numbers(cells, facts.dtype)
        return values.reshape(hi - lo, *facts.shape)

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        if facts.is_text:
            return {}
        columns, found = self._columns(key), {}
        for row, (_, cells) in enumerate(self._get(lo, hi), lo):
            for i in columns:
                if _parse(cells[i], facts.dtype) is None:
                    what = f"found {cells[i][:40]!r}" if cells[i] else "the value is missing"
                    found[row] = f"expected {facts.dtype.name}, {what}"
        return found

    def place(self, key: str, row: int) -> str:
        line, cells = self._get(row, row + 1)[0]
        columns = self._columns(key)
        column = sum(len(cell) + 1 for cell in cells[: columns[0]]) + 1
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
    whole = len(known) == len(cells) and all(cell.lstrip("+-").isdigit() for cell in known)
    return np.dtype(np.int64 if whole else np.float64)


def _parse(cell: str, dtype: np.dtype[Any]) -> Any:
    """A number of the dtype's kind, or None."""
    try:
        match dtype.kind:
            case "i" | "u":
                return int(cell)
            case "b":
                return _TRUTH.get(cell.lower())
            case "c":
                return complex(cell)
        return float(cell) if cell else float("nan")
    except ValueError:
        return None


def _numbers(cells: list[str], dtype: np.dtype[Any]) -> Array:
    wide = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64), "f": np.dtype(np.float64)}.get(
        dtype.kind, dtype
    )
    if dtype.kind == "f":
        try:
            return np.array(list(map(float, cells)), wide)
        except ValueError:
            pass
    parsed = (_parse(cell, dtype) for cell in cells)
    try:
        return np.array([0 if value is None else value for value in parsed], wide)
    except OverflowError:
        # too large: reported as such
        return np.array([float(cell) if _parse(cell, dtype) else 0.0 for cell in cells])
