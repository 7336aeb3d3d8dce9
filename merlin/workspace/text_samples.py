"""Samples in comma or blank separated text, without empty lines and what follows a ``#``.

A first line that repeats the labels is a header, not a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from merlin.base.tables.quotes import Dialect, OpenQuoteError
from merlin.base.tables.text import TextTable
from merlin.errors import Diagnostic, SamplesError
from merlin.workspace.samples_table import (
    Columns,
    SamplesTable,
    check_columns,
    finding,
    samples_error,
)

DIALECTS = {".csv": Dialect(","), ".tab": Dialect(None)}


class TextSamples(SamplesTable):
    def __init__(self, path: Path, labels: tuple[str, ...]) -> None:
        self.path, self.labels = path, labels
        try:
            self._table = TextTable(path, DIALECTS[path.suffix.lower()])
        except OpenQuoteError as error:
            hint = 'close it; a quote inside of a value in quotes is written twice: "say ""hi"""'
            raise samples_error(path, "quote", str(error), line=error.line, col=1, hint=hint) from error
        if self._table.num and tuple(v.strip() for v in self._table.values(0, 1)[0]) == labels:
            self._table.drop_first()
        self.num = self._table.num
        if self.num == 0:
            raise samples_error(path, "empty", "the samples file is empty")
        check_columns(path, len(self._table.values(0, 1)[0]), labels, self._table.line(0))

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        self._check_range(lo, hi)
        out, width = [], len(self.labels)
        are_padded = self._table.dialect.delimiter is not None  # blanks beside values belong to them
        for row, values in enumerate(self._table.values(lo, hi), lo):
            if len(values) != width:
                raise SamplesError([self._ragged(row, len(values))])
            if are_padded and " " in "".join(values):
                values = list(map(_bare_number, values))
            out.append(tuple(values))
        return out

    def has_only(self, characters: bytes) -> bool:
        return self._table.has_only(characters)

    def stored(self, lo: int, hi: int) -> bytes:
        self._check_range(lo, hi)
        return "".join(f"{text}\n" for text in self._table.texts(lo, hi)).encode("utf-8", "surrogateescape")

    def _read(self, lo: int, hi: int) -> Columns:
        rows = self.text_rows(lo, hi)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.labels)
        return {
            label: np.array(list(map(float, column))) if is_number else np.array(column, dtype=np.str_)
            for label, column, is_number in zip(self.labels, columns, self._number_columns, strict=True)
        }

    @property
    def numeric(self) -> bool:
        return all(self._number_columns)

    @property
    def known_numeric(self) -> bool:
        return False

    @cached_property
    def _number_columns(self) -> tuple[bool, ...]:
        """Which columns parse as numbers in every row; found out once, by reading the file."""
        number = [True] * len(self.labels)
        for lo, hi in self.blocks():
            columns = zip(*self.text_rows(lo, hi), strict=True)
            number = [
                was and _numbers(column) is not None for was, column in zip(number, columns, strict=True)
            ]
            if not any(number):
                break
        return tuple(number)

    def place(self, row: int, j: int) -> tuple[str, int, int]:
        return str(self.path), *self._table.place(row, j)

    def findings(self, limit: int) -> list[Diagnostic]:
        out: list[Diagnostic] = []
        columns = [_ColumnCheck() for _ in self.labels]
        width = len(self.labels)
        for lo, hi in self.blocks():
            texts = self._table.texts(lo, hi)
            block = [self._table.dialect.values(text) for text in texts]
            out += [self._ragged(lo + i, len(v)) for i, v in enumerate(block) if len(v) != width]
            out += self._not_text(lo, texts)
            if len(out) >= limit:
                break
            rows: Sequence[int] = range(lo, lo + len(block))
            if out:  # a ragged line has no columns
                rows = [row for row in rows if len(block[row - lo]) == width]
                block = [values for values in block if len(values) == width]
            for check, column in zip(columns, zip(*block, strict=True), strict=False):
                check.look_at(rows, column, limit)
        for j, check in enumerate(columns):
            out += [
                self._suspect(row, j, text)
                for row, text in check.suspects()
                if check.has_numbers or not self._is_quoted(row, j)  # "" is a text
            ]
        return sorted(out, key=lambda found: (found.line, found.col))[:limit]

    def _is_quoted(self, row: int, j: int) -> bool:
        _, col = self._table.place(row, j)
        return self._table.text(row)[col - 1 : col] == '"'

    def _ragged(self, row: int, found: int) -> Diagnostic:
        what = f"{found} value{'s' * (found != 1)}, but {len(self.labels)} columns"
        text = self._table.text(row).rstrip()
        return finding(self.path, "ragged", what, line=self._table.line(row), col=1, text=text)

    def _not_text(self, lo: int, texts: list[str]) -> list[Diagnostic]:
        try:
            "\n".join(texts).encode()
            return []
        except UnicodeEncodeError:
            bad = [i for i, text in enumerate(texts) if any("\udc80" <= c <= "\udcff" for c in text)]
        hint = "save it as UTF-8, or as .npy"
        lines = ((self._table.line(lo + i), ascii(texts[i])) for i in bad)
        return [
            finding(self.path, "encoding", "not UTF-8 text", line=line, col=1, text=text, hint=hint)
            for line, text in lines
        ]

    def _suspect(self, row: int, j: int, text: str) -> Diagnostic:
        """A finding about a value that is not a finite number, in a column of numbers."""
        shown = text.strip()
        line, col = self._table.place(row, j)
        where, hint = f"row {row}", ""
        if _numbers([text]) is not None:
            code, message = "not-finite", f"{shown} is not finite"
        elif shown:
            where = f"line {line}"  # a title is not a row
            code, message = "header", f"{shown!r} is not a number; the other values of this column are"
            labels = ",".join(self.labels)
            hint = f"begin a line of titles with #, or write it as column_labels has it: {labels}"
        else:
            code, message = "empty-value", "the value is missing"
        message = f"{where}, column {self.labels[j]}: {message}"
        return finding(self.path, code, message, line=line, col=col, text=shown, hint=hint)


class _ColumnCheck(Struct):
    """What a look at all values of a column has found: whether they are numbers, and which values are not."""

    is_number: bool = True
    num_numbers: int = 0
    odd: list[tuple[int, str]] = field(default_factory=list)  # (row, value) that is no finite number
    empty: list[int] = field(default_factory=list)  # rows

    def look_at(self, rows: Sequence[int], column: Sequence[str], limit: int) -> None:
        if "" in column:
            self.empty += [row for row, text in zip(rows, column, strict=True) if not text]
            del self.empty[limit + 1 :]
        if not self.is_number:
            return
        values = _numbers(column)
        if values is not None and math.isfinite(sum(values)):
            self.num_numbers += len(values)
            return
        for row, text in zip(rows, column, strict=True):
            value = _numbers([text])
            if value is not None and math.isfinite(value[0]):
                self.num_numbers += 1
                continue
            if value is None and text.strip() and row:
                self.is_number = False  # text below the first line: a column of text
                return
            if len(self.odd) < limit + 1:
                self.odd.append((row, text))

    @property
    def has_numbers(self) -> bool:
        """True if this seems to be a column of numbers."""
        looks_so = self.num_numbers > 0 or all(_numbers([text]) is not None for _, text in self.odd)
        return self.is_number and looks_so

    def suspects(self) -> list[tuple[int, str]]:
        return self.odd if self.has_numbers else [(row, "") for row in self.empty]


def _bare_number(text: str) -> str:
    """The value without the blanks around it if it is a number; text stays as it stands in the file."""
    return text.strip(" ") if " " in (text[:1], text[-1:]) and _numbers([text]) is not None else text


def _numbers(column: Sequence[str]) -> list[float] | None:
    """The values as numbers, None if one of them is not a number."""
    try:
        return list(map(float, column))
    except ValueError:
        return None
