"""Samples files: one row per sample, opened without reading them whole.

``.npy`` files are memory-mapped, text files keep an index of line offsets, so opening costs the same memory
for ten samples and for a hundred million. A name with wildcards stands for all ``.npy`` files it matches, in
sorted order.

How a value is put into a command follows what users of text and NumPy files expect: a value of a text file
goes in as it is written there, a value of a NumPy file as ``str`` of it ("0.1", "1e-05", "3").
"""

from __future__ import annotations

import codecs
import glob as globbing
import math
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from merlin.base.files import replacing
from merlin.errors import Diagnostic, MissingExtraError, SamplesError
from merlin.workspace.quoted_text import OpenQuoteError, join_quoted_lines, quoted_fields

FORMATS = (".npy", ".csv", ".tab", ".parquet")
MAX_DIAGNOSTICS = 20
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = 16 << 20

Columns = dict[str, NDArray[Any]]


@runtime_checkable
class SamplesTable(Protocol):
    """Rows of samples; row i is sample i. Reading never changes the file."""

    @property
    def num(self) -> int: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def numeric(self) -> bool:
        """Whether every column holds numbers."""
        ...

    def rows(self, lo: int, hi: int) -> Columns:
        """An array of hi - lo values per label: numbers in their dtype (float64 from text), or text."""
        ...

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        """The values as they are written into commands, one tuple per sample."""
        ...

    def stored(self, lo: int, hi: int) -> bytes:
        """The rows as the file has them, to tell whether they have changed."""
        ...

    def findings(self, limit: int) -> list[Diagnostic]:
        """What is wrong with the rows: ragged lines, values that are not finite. Reads all, in blocks."""
        ...


def open_samples(path: str | os.PathLike[str], labels: Sequence[str]) -> SamplesTable:
    """Open a samples file whose columns are `labels`; checks its existence, emptiness and number of columns.

    Raises:
        SamplesError: the file cannot serve; see also `check_samples`, which looks at every row.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path = Path(path)
    labels = tuple(labels)
    if not path.exists() and globbing.has_magic(str(path)):
        return _open_glob(path, labels)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise _error(path, "unknown kind of samples file", code="samples-format", hint=_formats_hint())
    if not path.is_file():
        raise _error(path, "samples file does not exist", code="samples-missing")
    if suffix == ".npy":
        return _NpyTable(path, labels)
    if suffix == ".parquet":
        return _ParquetTable(path, labels)
    return _TextTable(path, labels, delimiter="," if suffix == ".csv" else None)


def check_samples(table: SamplesTable) -> None:
    """Look at every row; SamplesError lists what is wrong, at most `MAX_DIAGNOSTICS` findings."""
    findings = table.findings(MAX_DIAGNOSTICS)
    if findings:
        raise SamplesError(findings)


def blocks(table: SamplesTable) -> Iterator[tuple[int, list[tuple[str, ...]]]]:
    """All rows as they are written into commands, some at a time: the first row's number, and the rows."""
    for lo in range(0, table.num, _BLOCK_ROWS):
        yield lo, table.text_rows(lo, min(lo + _BLOCK_ROWS, table.num))


def holds_numbers_only(table: SamplesTable) -> bool:
    """Whether that is known without reading all rows."""
    return not isinstance(table, _TextTable) and table.numeric


def holds_only(table: SamplesTable, characters: bytes) -> bool:
    """Whether the values of a text file have no others; does not take its rows apart."""
    return isinstance(table, _TextTable) and table.has_only(characters)


def place_in_text(table: SamplesTable, row: int, j: int) -> tuple[str, int, int]:
    """File, line and column of value j of a row; line and column are 0 in a file without lines."""
    if isinstance(table, _TextTable):
        return str(table.path), *table.place(row, j)
    if isinstance(table, _GlobTable):
        part, lo, _ = next(table.parts(row, row + 1))
        return place_in_text(part, lo, j)
    return str(table.path) if isinstance(table, _NpyTable | _ParquetTable) else "samples", 0, 0


def save_samples(path: str | os.PathLike[str], array: NDArray[Any], labels: Sequence[str]) -> None:
    """Write an (n, d) array atomically in the format that the suffix of `path` names.

    Text files carry the labels in a leading ``#`` comment, which every reader of such files skips.
    """
    path = Path(path)
    if array.ndim != 2 or array.shape[1] != len(labels):
        raise ValueError(f"an array of shape {array.shape} does not have {len(labels)} columns")
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise _error(path, "unknown kind of samples file", code="samples-format", hint=_formats_hint())
    with replacing(path) as temporary, open(temporary, "wb") as file:
        if suffix == ".npy":
            np.save(file, array, allow_pickle=False)
        elif suffix == ".parquet":
            _write_parquet(file, array, labels)
        else:
            _write_text(file, array, labels, "," if suffix == ".csv" else "\t")


def _write_text(file: Any, array: NDArray[Any], labels: Sequence[str], delimiter: str) -> None:
    file.write(f"# {delimiter.join(labels)}\n".encode())
    for lo in range(0, len(array), _BLOCK_ROWS):
        rows = array[lo : lo + _BLOCK_ROWS].tolist()
        file.write("".join(delimiter.join(map(str, row)) + "\n" for row in rows).encode())


def _write_parquet(file: Any, array: NDArray[Any], labels: Sequence[str]) -> None:
    pyarrow, parquet = _import_parquet()
    columns = [pyarrow.array(array[:, j]) for j in range(array.shape[1])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=list(labels)), file)


def _import_parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "reading samples from a Parquet file") from error
    return pyarrow, pyarrow.parquet


def _formats_hint() -> str:
    return f"allowed: {', '.join(FORMATS)}"


def _finding(
    path: Path, message: str, *, line: int = 0, col: int = 0, text: str = "", **more: str
) -> Diagnostic:
    return Diagnostic(file=str(path), line=line, col=col, message=message, text=text, **more)  # type: ignore[arg-type]


def _error(path: Path, message: str, **more: Any) -> SamplesError:
    return SamplesError([_finding(path, message, **more)])


def _check_columns(path: Path, found: int, labels: tuple[str, ...], line: int = 0) -> None:
    if found != len(labels):
        raise _error(
            path,
            f"{_count(found, 'column')}, but column_labels has {len(labels)}",
            line=line,
            col=1 if line else 0,
            code="samples-columns",
            hint=f"column_labels: [{', '.join(labels)}]",
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _check_range(lo: int, hi: int, num: int) -> None:
    if not 0 <= lo <= hi <= num:
        raise IndexError(f"rows [{lo}, {hi}) are not inside [0, {num})")


def _texts(column: NDArray[Any]) -> list[str]:
    """`str` of every value, as NumPy scalars print: float32 0.1 is "0.1", not its digits as a double."""
    if column.dtype.kind == "f" and column.dtype.itemsize < 8:
        return [str(value) for value in column]
    if column.dtype.kind == "S":
        return [value.decode("utf-8", "surrogateescape") for value in column.tolist()]
    return [str(value) for value in column.tolist()]


# ------------------------------------------------------------------------------------------- NumPy


class _NpyTable:
    """A ``.npy`` file: (n, d), (n,) for one label, or a structured (n,)."""

    def __init__(self, path: Path, labels: tuple[str, ...]) -> None:
        self.path, self.labels = path, labels
        try:
            self._array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            if "Object arrays" in str(error) or "Python objects in dtype" in str(error):
                hint = "save it with a number or text dtype, e.g. array.astype(str)"
                raise _error(
                    path, "holds Python objects, which are not read", code="samples-object", hint=hint
                ) from error
            reason = "it does not begin as one" if "pickle" in str(error) else error
            raise _error(path, f"not a readable .npy file ({reason})", code="samples-unreadable") from error
        shape, names = self._array.shape, self._array.dtype.names
        if self._array.ndim not in (1, 2) or (names and self._array.ndim != 1):
            raise _error(path, f"has shape {shape}, not (samples, columns)", code="samples-shape")
        self.num = int(shape[0])
        if self.num == 0:
            raise _error(path, "the samples file is empty", code="samples-empty")
        _check_columns(path, len(names) if names else (1 if len(shape) == 1 else int(shape[1])), labels)
        self._names = None if names is None else (labels if set(labels) == set(names) else names)
        kinds = [self._array.dtype[name].kind for name in names] if names else [self._array.dtype.kind]
        self.numeric = all(kind in "fiub" for kind in kinds)
        if any(kind not in "fiubUS" for kind in kinds):
            raise _error(
                path, f"has values of type {self._array.dtype}, not numbers or text", code="samples-dtype"
            )

    def _columns(self, lo: int, hi: int) -> list[NDArray[Any]]:
        _check_range(lo, hi, self.num)
        block = self._array[lo:hi]
        if self._names is not None:
            return [block[name] for name in self._names]
        return [block] if block.ndim == 1 else [block[:, j] for j in range(block.shape[1])]

    def rows(self, lo: int, hi: int) -> Columns:
        return {
            label: np.array(_texts(column)) if column.dtype.kind == "S" else np.array(column)
            for label, column in zip(self.labels, self._columns(lo, hi), strict=True)
        }

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        return list(zip(*(_texts(column) for column in self._columns(lo, hi)), strict=True))

    def stored(self, lo: int, hi: int) -> bytes:
        _check_range(lo, hi, self.num)
        return self._array[lo:hi].tobytes()

    def findings(self, limit: int) -> list[Diagnostic]:
        out: list[Diagnostic] = []
        for lo, block in self._blocks():
            for label, column in zip(self.labels, block, strict=True):
                if column.dtype.kind != "f" or bool(np.isfinite(column).all()):
                    continue
                for row in np.flatnonzero(~np.isfinite(column))[: limit - len(out)]:
                    out.append(_not_finite(self.path, lo + int(row), label, str(column[row])))
                if len(out) >= limit:
                    return out
        return out

    def _blocks(self) -> Iterator[tuple[int, list[NDArray[Any]]]]:
        """Rows block by block, each through a new map, so pages already seen do not count as memory."""
        array = self._array
        step = max(1, (8 << 20) // max(1, array.dtype.itemsize * (array.size // self.num)))
        for lo in range(0, self.num, step):
            fresh = _NpyTable.__new__(_NpyTable)
            fresh.__dict__.update(self.__dict__)
            fresh._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
            yield lo, fresh._columns(lo, min(lo + step, self.num))


def _not_finite(path: Path, row: int, label: str, text: str, line: int = 0, col: int = 0) -> Diagnostic:
    return _finding(
        path,
        f"row {row}, column {label}: {text} is not finite",
        line=line,
        col=col,
        text=text,
        code="samples-not-finite",
    )


class _GlobTable:
    """Several ``.npy`` files, one after the other."""

    def __init__(self, tables: list[_NpyTable]) -> None:
        self._tables = tables
        self._starts = [0]
        for table in tables:
            self._starts.append(self._starts[-1] + table.num)
        self.num, self.labels = self._starts[-1], tables[0].labels
        self.numeric = all(table.numeric for table in tables)

    def parts(self, lo: int, hi: int) -> Iterator[tuple[_NpyTable, int, int]]:
        _check_range(lo, hi, self.num)
        index = max(0, bisect_right(self._starts, lo) - 1)
        while True:
            index = min(index, len(self._tables) - 1)
            start, end = self._starts[index], self._starts[index + 1]
            yield self._tables[index], lo - start, min(hi, end) - start
            if hi <= end:
                return
            lo, index = end, index + 1

    def rows(self, lo: int, hi: int) -> Columns:
        parts = [table.rows(a, b) for table, a, b in self.parts(lo, hi)]
        return {label: np.concatenate([part[label] for part in parts]) for label in self.labels}

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        return [row for table, a, b in self.parts(lo, hi) for row in table.text_rows(a, b)]

    def stored(self, lo: int, hi: int) -> bytes:
        return b"".join(table.stored(a, b) for table, a, b in self.parts(lo, hi))

    def findings(self, limit: int) -> list[Diagnostic]:
        out: list[Diagnostic] = []
        for table in self._tables:
            if len(out) < limit:
                out += table.findings(limit - len(out))
        return out


def _open_glob(path: Path, labels: tuple[str, ...]) -> SamplesTable:
    names = sorted(globbing.glob(str(path)))  # noqa: PTH207 - the pattern may be absolute
    if not names:
        raise _error(path, "no file matches this pattern", code="samples-missing")
    wrong = [name for name in names if not name.lower().endswith(".npy")]
    if wrong:
        hint = "a pattern may match .npy files only"
        raise _error(
            Path(wrong[0]), "matched by the samples pattern, but not .npy", code="samples-format", hint=hint
        )
    return _GlobTable([_NpyTable(Path(name), labels) for name in names])


# -------------------------------------------------------------------------------------------- text


class _TextTable:
    """Comma or blank separated text, without empty lines and what follows a ``#``.

    A first line that repeats the labels is a header, not a sample. A row is a line, or several where a field in
    quotes holds line ends.
    """

    def __init__(self, path: Path, labels: tuple[str, ...], delimiter: str | None) -> None:
        self.path, self.labels, self._delimiter = path, labels, delimiter
        try:
            self._starts, self._ends, self._lines = _index_lines(path, delimiter)
        except OpenQuoteError as error:
            hint = 'close it; a quote inside of a value in quotes is written twice: "say ""hi"""'
            raise _error(
                path, "a quote is not closed", line=error.line + 1, col=1, code="samples-quote", hint=hint
            ) from error
        if len(self._starts) and tuple(v.strip() for v in self._values(self._raw(0))) == labels:
            self._starts, self._ends, self._lines = self._starts[1:], self._ends[1:], self._lines[1:]
        self.num = len(self._starts)
        if self.num == 0:
            raise _error(path, "the samples file is empty", code="samples-empty")
        _check_columns(path, len(self._values(self._raw(0))), labels, self._line(0))

    @cached_property
    def _bytes(self) -> mmap.mmap:
        with open(self.path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _raw(self, row: int) -> str:
        return self._bytes[int(self._starts[row]) : int(self._ends[row])].decode("utf-8", "surrogateescape")

    def _raws(self, lo: int, hi: int) -> list[str]:
        """The lines of rows [lo, hi), in one read where nothing lies between them."""
        if lo < hi and self._line(hi - 1) - self._line(lo) == hi - 1 - lo:
            data = self._bytes[int(self._starts[lo]) : int(self._ends[hi - 1])]
            lines = data.decode("utf-8", "surrogateescape").split("\n")
            if len(lines) == hi - lo:  # more, if the last row has line ends in quotes
                return lines
        return [self._raw(row) for row in range(lo, hi)]

    def _line(self, row: int) -> int:
        return int(self._lines[row])

    def _values(self, line: str) -> list[str]:
        if '"' in line:
            return [value for _, value in quoted_fields(line, self._delimiter)]
        if "#" in line:
            line = line[: line.index("#")]
        return line.rstrip("\r").split(self._delimiter)

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        _check_range(lo, hi, self.num)
        out = []
        width = len(self.labels)
        for row, line in enumerate(self._raws(lo, hi), lo):
            values = self._values(line)
            if len(values) != width:
                raise SamplesError([self._ragged(row, len(values))])
            out.append(tuple(values))
        return out

    def has_only(self, characters: bytes) -> bool:
        allowed = np.zeros(256, dtype=np.bool_)
        allowed[list(characters + b"\r\n" + (b"" if self._delimiter else b" \t"))] = True
        for lo in range(int(self._starts[0]), int(self._ends[-1]), _BLOCK_BYTES):
            block = self._bytes[lo : min(lo + _BLOCK_BYTES, int(self._ends[-1]))]
            if block.count(b"\r") != block.count(b"\r\n"):
                return False
            if not allowed[np.frombuffer(block, dtype=np.uint8)].all():
                return False
        return True

    def stored(self, lo: int, hi: int) -> bytes:
        _check_range(lo, hi, self.num)
        return "".join(f"{line}\n" for line in self._raws(lo, hi)).encode("utf-8", "surrogateescape")

    def _ragged(self, row: int, found: int) -> Diagnostic:
        return _finding(
            self.path,
            f"{_count(found, 'value')}, but {len(self.labels)} columns",
            line=self._line(row),
            col=1,
            text=self._raw(row).rstrip(),
            code="samples-ragged",
        )

    def rows(self, lo: int, hi: int) -> Columns:
        rows = self.text_rows(lo, hi)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.labels)
        return {
            label: np.array(list(map(float, column))) if is_number else np.array(column, dtype=np.str_)
            for label, column, is_number in zip(self.labels, columns, self._number_columns, strict=True)
        }

    @property
    def numeric(self) -> bool:
        return all(self._number_columns)

    @cached_property
    def _number_columns(self) -> tuple[bool, ...]:
        """Which columns parse as numbers in every row; found out once, by reading the file."""
        number = [True] * len(self.labels)
        for lo in range(0, self.num, _BLOCK_ROWS):
            columns = list(zip(*self.text_rows(lo, min(lo + _BLOCK_ROWS, self.num)), strict=True))
            number = [
                was and _numbers(column) is not None for was, column in zip(number, columns, strict=True)
            ]
            if not any(number):
                break
        return tuple(number)

    def findings(self, limit: int) -> list[Diagnostic]:
        out: list[Diagnostic] = []
        columns = [_ColumnFacts() for _ in self.labels]
        width = len(self.labels)
        for lo in range(0, self.num, _BLOCK_ROWS):
            lines = self._raws(lo, min(lo + _BLOCK_ROWS, self.num))
            block = [self._values(line) for line in lines]
            out += [self._ragged(lo + i, len(v)) for i, v in enumerate(block) if len(v) != width]
            out += self._not_text(lo, lines)
            if len(out) >= limit:
                break
            rows: Sequence[int] = range(lo, lo + len(block))
            if out:  # a ragged line has no columns
                rows = [row for row in rows if len(block[row - lo]) == width]
                block = [values for values in block if len(values) == width]
            for facts, column in zip(columns, zip(*block, strict=True), strict=False):
                facts.look(rows, column, limit)
        for j, facts in enumerate(columns):
            out += [self._suspect(row, j, text) for row, text in facts.suspects()]
        return sorted(out, key=lambda finding: (finding.line, finding.col))[:limit]

    def _not_text(self, lo: int, lines: list[str]) -> list[Diagnostic]:
        try:
            "\n".join(lines).encode()
            return []
        except UnicodeEncodeError:
            return [
                _finding(
                    self.path,
                    "not UTF-8 text",
                    line=self._line(lo + i),
                    col=1,
                    text=ascii(line),
                    code="samples-encoding",
                    hint="save it as UTF-8, or as .npy",
                )
                for i, line in enumerate(lines)
                if any("\udc80" <= c <= "\udcff" for c in line)
            ]

    def _suspect(self, row: int, j: int, text: str) -> Diagnostic:
        """A value that is no finite number, in a column of numbers."""
        label, shown = self.labels[j], text.strip()
        line, col = self.place(row, j)
        where = f"row {row}"
        if _numbers([text]) is not None:
            message, code, hint = f"{shown} is not finite", "samples-not-finite", ""
        elif shown:
            where = f"line {line}"  # a title is no row
            message, code = (
                f"{shown!r} is not a number; the other values of this column are",
                "samples-header",
            )
            hint = (
                f"begin a line of titles with #, or write it as column_labels has it: {','.join(self.labels)}"
            )
        else:
            message, code, hint = "the value is missing", "samples-empty-value", ""
        return _finding(
            self.path,
            f"{where}, column {label}: {message}",
            line=line,
            col=col,
            text=shown,
            code=code,
            hint=hint,
        )

    def place(self, row: int, j: int) -> tuple[int, int]:
        """Line and column where value j of a row begins."""
        text = self._raw(row)
        start = quoted_fields(text, self._delimiter)[j][0]
        before = text[:start]
        return self._line(row) + before.count("\n"), start - before.rfind("\n")


@dataclass
class _ColumnFacts:
    """What a look at all values of a column has found: is it numbers, and which values do not fit."""

    is_number: bool = True
    num_numbers: int = 0
    odd: list[tuple[int, str]] = field(default_factory=list)  # (row, value) that is no finite number

    def look(self, rows: Sequence[int], column: Sequence[str], limit: int) -> None:
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

    def suspects(self) -> list[tuple[int, str]]:
        looks_like_numbers = self.num_numbers or all(_numbers([text]) is not None for _, text in self.odd)
        return self.odd if self.is_number and looks_like_numbers else []


def _numbers(column: Sequence[str]) -> list[float] | None:
    """The values as numbers, None if one of them is not a number."""
    try:
        return list(map(float, column))
    except ValueError:
        return None


def _index_lines(
    path: Path, delimiter: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Start, end and first line (from 1) of every row; of files without quotes nothing is decoded."""
    ends: list[NDArray[np.int64]] = []
    size, has_quotes = 0, False
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10) + size)
            size += len(block)
            has_quotes = has_quotes or b'"' in block
    newlines = np.concatenate(ends) if ends else np.empty(0, dtype=np.int64)
    starts = np.concatenate([[0], newlines + 1]).astype(np.int64)
    stops = np.concatenate([newlines, [size]]).astype(np.int64)
    keep = stops > starts
    if size:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8:
                starts[0] = len(codecs.BOM_UTF8)
                keep[0] = stops[0] > starts[0]
            first = np.frombuffer(data, dtype=np.uint8)[np.minimum(starts, size - 1)]
            unclear = np.flatnonzero(keep & np.isin(first, np.frombuffer(b"# \t\r", dtype=np.uint8)))
            for index in unclear:
                line = data[int(starts[index]) : int(stops[index])].strip()
                keep[index] = bool(line) and not line.startswith(b"#")
            if has_quotes:
                join_quoted_lines(data, starts, stops, keep, delimiter)
    return starts[keep], stops[keep], (np.flatnonzero(keep) + 1).astype(np.int64)


# ----------------------------------------------------------------------------------------- Parquet


class _ParquetTable:
    """A Parquet file; columns are found by name, or by position if the names differ."""

    def __init__(self, path: Path, labels: tuple[str, ...]) -> None:
        self.path, self.labels = path, labels
        _, parquet = _import_parquet()
        try:
            self._file = parquet.ParquetFile(path, memory_map=True)
        except (OSError, ValueError) as error:
            raise _error(path, f"not a readable Parquet file ({error})", code="samples-unreadable") from error
        names = tuple(self._file.schema_arrow.names)
        self._names = labels if set(labels) <= set(names) else names
        _check_columns(path, len(self._names), labels)
        self.num = int(self._file.metadata.num_rows)
        if self.num == 0:
            raise _error(path, "the samples file is empty", code="samples-empty")
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + int(self._file.metadata.row_group(group).num_rows))
        self._group: tuple[int, Any] = (-1, None)
        empty = self._read(0, 0)
        self.numeric = all(column.dtype.kind in "fiub" for column in empty)

    def _read(self, lo: int, hi: int) -> list[NDArray[Any]]:
        """The columns of rows [lo, hi); keeps the last row group it has read."""
        parts: list[list[NDArray[Any]]] = []
        first = min(bisect_right(self._starts, lo) - 1, self._file.num_row_groups - 1)
        for group in range(first, self._file.num_row_groups):
            start = self._starts[group]
            if start >= hi and parts:
                break
            if self._group[0] != group:
                self._group = (group, self._file.read_row_group(group, columns=list(self._names)))
            table = self._group[1].slice(max(0, lo - start), max(0, hi - max(lo, start)))
            parts.append([_arrow_column(table.column(name)) for name in self._names])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def rows(self, lo: int, hi: int) -> Columns:
        _check_range(lo, hi, self.num)
        return dict(zip(self.labels, self._read(lo, hi), strict=True))

    def text_rows(self, lo: int, hi: int) -> list[tuple[str, ...]]:
        return list(zip(*(_texts(column) for column in self.rows(lo, hi).values()), strict=True))

    def stored(self, lo: int, hi: int) -> bytes:
        return repr(self.text_rows(lo, hi)).encode("utf-8", "surrogateescape")

    def findings(self, limit: int) -> list[Diagnostic]:
        out: list[Diagnostic] = []
        for lo in range(0, self.num, _BLOCK_ROWS):
            for label, column in self.rows(lo, min(lo + _BLOCK_ROWS, self.num)).items():
                if column.dtype.kind == "f":
                    bad = np.flatnonzero(~np.isfinite(column))[: limit - len(out)]
                    out += [_not_finite(self.path, lo + int(row), label, str(column[row])) for row in bad]
            if len(out) >= limit:
                break
        return out


def _arrow_column(column: Any) -> NDArray[Any]:
    """Numbers keep their dtype (a null is NaN), everything else becomes text."""
    array: NDArray[Any] = column.to_numpy()
    return array if array.dtype.kind in "fiub" else np.array([str(value) for value in array], dtype=np.str_)
