"""Rows of delimited text: an index of line offsets, so that opening costs the same for any size of rows.

A row is a line, or several where a field in quotes holds line ends. Empty lines and lines of comments are no rows.
"""

from __future__ import annotations

import codecs
import mmap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from merlin.base.tables.quotes import Dialect, join_quoted_lines

BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 16 << 20

_Places = NDArray[np.int64]


class TextTable:
    """The rows of a text file, from its first or, after `drop_first`, from its second.

    `errors` says how bytes that are no UTF-8 are decoded. Memory: 24 bytes per row.

    Raises:
        OpenQuoteError: a quote is not closed.
    """

    def __init__(self, path: Path, dialect: Dialect, errors: str = "surrogateescape") -> None:
        self.path, self.dialect, self._errors = path, dialect, errors
        self._starts, self._ends, self._lines = _index_rows(path, dialect)

    @property
    def num(self) -> int:
        return len(self._starts)

    def drop_first(self) -> None:
        """The first row is a header."""
        self._starts, self._ends, self._lines = self._starts[1:], self._ends[1:], self._lines[1:]

    @cached_property
    def _bytes(self) -> mmap.mmap:
        with open(self.path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def text(self, row: int) -> str:
        """A row as it is in the file."""
        return self._bytes[int(self._starts[row]) : int(self._ends[row])].decode("utf-8", self._errors)

    def texts(self, lo: int, hi: int) -> list[str]:
        """Rows [lo, hi) as they are in the file; one read where nothing lies between them."""
        if lo < hi and self.line(hi - 1) - self.line(lo) == hi - 1 - lo:
            data = self._bytes[int(self._starts[lo]) : int(self._ends[hi - 1])]
            lines = data.decode("utf-8", self._errors).split("\n")
            if len(lines) == hi - lo:  # more, if the last row has line ends in quotes
                return lines
        return [self.text(row) for row in range(lo, hi)]

    def values(self, lo: int, hi: int) -> list[list[str]]:
        """The values of rows [lo, hi), as many as each has."""
        return [self.dialect.values(text) for text in self.texts(lo, hi)]

    def blocks(self) -> Iterator[tuple[int, list[str]]]:
        """All rows, some at a time: the number of the first, and their texts."""
        for lo in range(0, self.num, BLOCK_ROWS):
            yield lo, self.texts(lo, min(lo + BLOCK_ROWS, self.num))

    def line(self, row: int) -> int:
        """The row's first line, from 1."""
        return int(self._lines[row])

    def place(self, row: int, j: int) -> tuple[int, int]:
        """Line and column, from 1, where value j of a row begins."""
        text = self.text(row)
        start = self.dialect.placed_values(text)[j][0]
        before = text[:start]
        return self.line(row) + before.count("\n"), start - before.rfind("\n")

    def has_only(self, characters: bytes) -> bool:
        """True if all values consist of these characters; does not divide rows into values."""
        allowed = np.zeros(256, dtype=np.bool_)
        allowed[list(characters + b"\r\n" + (b"" if self.dialect.delimiter else b" \t"))] = True
        for lo in range(int(self._starts[0]), int(self._ends[-1]), _BLOCK_BYTES):
            block = self._bytes[lo : min(lo + _BLOCK_BYTES, int(self._ends[-1]))]
            if block.count(b"\r") != block.count(b"\r\n"):
                return False
            if not allowed[np.frombuffer(block, dtype=np.uint8)].all():
                return False
        return True


def _index_rows(path: Path, dialect: Dialect) -> tuple[_Places, _Places, _Places]:
    """Start, end and first line (from 1) of every row; of files without quotes nothing is decoded."""
    newlines, size, has_quotes = _find_line_ends(path, b"\n")
    if not len(newlines):
        newlines, size, has_quotes = _find_line_ends(path, b"\r")  # as old programs end lines
    starts = np.concatenate([[0], newlines + 1]).astype(np.int64)
    stops = np.concatenate([newlines, [size]]).astype(np.int64)
    keep = stops > starts
    if size:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8:
                starts[0] = len(codecs.BOM_UTF8)
                keep[0] = stops[0] > starts[0]
            _drop_empty(data, starts, stops, keep, dialect)
            if has_quotes:
                join_quoted_lines(data, starts, stops, keep, dialect)
    return starts[keep], stops[keep], (np.flatnonzero(keep) + 1).astype(np.int64)


def _find_line_ends(path: Path, newline: bytes) -> tuple[_Places, int, bool]:
    """The places of line ends, the size of the file, and whether there is a quote in it."""
    ends: list[_Places] = [np.empty(0, dtype=np.int64)]
    size, has_quotes = 0, False
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == newline[0]) + size)
            size += len(block)
            has_quotes = has_quotes or b'"' in block
    return np.concatenate(ends), size, has_quotes


def _drop_empty(
    data: mmap.mmap, starts: _Places, stops: _Places, keep: NDArray[np.bool_], dialect: Dialect
) -> None:
    """Lines without values are no rows: empty ones, and those of a comment."""
    blank = b" \t\r".replace((dialect.delimiter or "\0").encode(), b"")
    comment = b"#" if dialect.has_comments else b""
    first = np.frombuffer(data, dtype=np.uint8)[np.minimum(starts, len(data) - 1)]
    unclear = np.flatnonzero(keep & np.isin(first, np.frombuffer(blank + comment, dtype=np.uint8)))
    for index in unclear:
        line = data[int(starts[index]) : int(stops[index])].strip(blank)
        keep[index] = bool(line) and not (comment and line.startswith(comment))
