"""Read a task's fields from the files in its directory."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from merlin.base.kinds import OUTPUT_SUFFIXES
from merlin.base.stored import read_npy_header, require_unpackable
from merlin.base.text import some_of
from merlin.plan.layout import is_set_aside
from merlin.plan.plan import PlannedField
from merlin.shards.writing.check import BadOutput, convert


class OutputFile(ABC):
    """An opened output file."""

    is_textual: ClassVar[bool] = False  # numbers in it are texts, which have to be parsed

    @abstractmethod
    def __init__(self, path: str) -> None: ...

    @abstractmethod
    def get(self, field: PlannedField) -> Any:
        """The field's value; BadOutput if it is not there."""

    def close(self) -> None:  # noqa: B027 - most are read at once
        """Let go of the file."""


class TaskFiles:
    """Reads fields from one task directory after another; each file is parsed once per task."""

    def __init__(self, fields: tuple[PlannedField, ...]) -> None:
        groups: dict[str, list[PlannedField]] = {}
        for field in fields:
            groups.setdefault(field.file or "", []).append(field)
        self._groups = groups

    def read(self, directory: str) -> dict[str, Any]:
        """Values by field name, as `convert` returns them; BadOutput is the first cause, with its field."""
        values: dict[str, Any] = {}
        for pattern, fields in self._groups.items():
            files: dict[str, OutputFile] = {}
            name = ""
            field = fields[0]
            try:
                found = find_file(directory, pattern)
                path, name = f"{directory}/{found}", f"{found}: "
                for field in fields:
                    values[field.name] = _read_field(path, field, files)
            except BadOutput as e:
                raise BadOutput(f"field '{field.name}': {name}{e}") from None
            finally:
                for file in files.values():
                    file.close()
        return values


def find_file(directory: str, pattern: str) -> str:
    """The path in `directory` of the one file that `pattern` matches."""
    if not pattern:
        raise BadOutput("the field names neither an output nor a file")
    if not glob.has_magic(pattern):
        if not _is_file(f"{directory}/{pattern}"):
            raise BadOutput(f"expected a file '{pattern}', found {_what_is(f'{directory}/{pattern}')}")
        return pattern
    found = sorted(str(path.relative_to(directory)) for path in Path(directory).glob(pattern))
    matches = [name for name in found if not is_set_aside(name) and _is_file(f"{directory}/{name}")]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise BadOutput(f"expected a file '{pattern}', found none")
    raise BadOutput(f"expected one file '{pattern}', found {len(matches)} ({some_of(matches, 3)})")


def _is_file(path: str) -> bool:
    """Return whether this is a regular file, and no pipe that may never end; pathlib costs more than parsing it."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def _what_is(path: str) -> str:
    """What stands where a file was expected."""
    place = Path(path)
    if place.is_dir():
        return "a directory"
    if place.exists():
        return "what is no regular file"
    return "a link that leads nowhere" if place.is_symlink() else "none"


def _read_field(path: str, field: PlannedField, files: dict[str, OutputFile]) -> Any:
    suffix = "regex" if field.regex is not None else os.path.splitext(path)[1].lower()  # noqa: PTH122
    file = files.get(suffix)
    if file is None:
        opener = _OPENERS.get(suffix)
        if opener is None and not field.is_text:
            raise BadOutput(f"files of type '{suffix}' need a regex (known: {' '.join(OUTPUT_SUFFIXES)})")
        try:
            file = files[suffix] = (opener or Text)(path)
        except (OSError, ValueError, EOFError, KeyError, csv.Error) as e:
            raise BadOutput(f"cannot be read: {_one_line(e)}") from e
    try:
        raw = file.get(field)
    except (OSError, ValueError, EOFError) as e:
        raise BadOutput(f"cannot be read: {_one_line(e)}") from e
    if type(raw) is float and not field.ndim and field.dtype == "float64":
        return raw  # by far the most common case, and already right
    return convert(field, raw, textual=file.is_textual)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class Json(OutputFile):
    """A JSON file; `key` is a dotted path, integers index lists, no key means all of it."""

    def __init__(self, path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        if not content.strip():
            raise ValueError("the file is empty")
        try:
            self._root = json.loads(content)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def get(self, field: PlannedField) -> Any:
        key, node = field.key, self._root
        if not key:
            return node
        if isinstance(node, dict) and key in node:  # also keys that hold dots
            return node[key]
        for part in key.split("."):
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif (
                isinstance(node, list) and part.lstrip("-").isdigit() and -len(node) <= int(part) < len(node)
            ):
                node = node[int(part)]
            else:
                raise BadOutput(f"expected key '{key}', found {_contents(node)}")
        return node


def _contents(node: Any) -> str:
    if isinstance(node, dict):
        return f"keys {some_of(node)}" if node else "no keys"
    if isinstance(node, list):
        return f"a list of {len(node)}"
    return f"{type(node).__name__} {str(node)[:40]!r}"


class Npy(OutputFile):
    """A single array; `key` is not used."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            read_npy_header(file, os.fstat(file.fileno()).st_size)
        self._array = np.load(path, allow_pickle=False)

    def get(self, field: PlannedField) -> Any:
        return self._array


class Npz(OutputFile):
    """Named arrays; `key` may be left out when there is only one."""

    def __init__(self, path: str) -> None:
        try:
            self._file = np.load(path, allow_pickle=False)
            self._num_bytes = Path(path).stat().st_size
        except Exception as e:
            raise ValueError(_one_line(e)) from e
        if not isinstance(self._file, np.lib.npyio.NpzFile):
            raise ValueError("not an .npz archive")

    def get(self, field: PlannedField) -> Any:
        names = self._file.files
        key = field.key or (names[0] if len(names) == 1 else "")
        if key not in names:
            raise BadOutput(f"expected key '{key}', found {some_of(names) or 'nothing'}")
        try:
            self._require_stored(key)
            return self._file[key]
        except Exception as e:
            raise ValueError(_one_line(e)) from e

    def _require_stored(self, key: str) -> None:
        """Raise ValueError for an array larger than its data; reading it would take that much memory."""
        archive = self._file.zip
        member = next(m for m in archive.infolist() if m.filename.removesuffix(".npy") == key)
        require_unpackable(member, self._num_bytes)
        with archive.open(member) as stream:
            read_npy_header(stream, member.file_size)

    def close(self) -> None:
        self._file.close()


class Table(OutputFile):
    """Delimited text: `key` is a column's header or index; a series is all of a column, a scalar needs one
    row.

    Without `key`: the only column, or for a two-dimensional field all of the table.
    """

    is_textual = True

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            text = file.read()
        delimiter = "\t" if path.lower().endswith((".tab", ".tsv")) else ","
        rows = csv.reader(io.StringIO(text), delimiter=delimiter)
        self._rows = [[cell.strip() for cell in row] for row in rows if not _is_blank(row)]
        if not self._rows:
            raise ValueError("the file is empty")
        self._header: list[str] = []
        if any(cell and not _is_number(cell) for cell in self._rows[0]):
            self._header = self._rows.pop(0)

    def get(self, field: PlannedField) -> Any:
        if not field.key and field.ndim == 2:
            return self._rows
        column = self._column(field)
        try:
            cells = [row[column] for row in self._rows]
        except IndexError:
            raise BadOutput(f"expected {column + 1} columns in every row, found fewer") from None
        if field.ndim:
            return cells
        if len(cells) != 1:
            raise BadOutput(f"expected one row for a scalar, found {len(cells)}")
        return cells[0]

    def _column(self, field: PlannedField) -> int:
        width = len(self._header) or len(self._rows[0])
        key = field.key
        if not key:
            if width == 1:
                return 0
            raise BadOutput(f"expected a key that names one of {width} columns, found none in the field")
        if self._header.count(key) > 1:
            raise BadOutput(f"expected one column '{key}', found {self._header.count(key)} with this title")
        if key in self._header:
            return self._header.index(key)
        if key.isdigit() and int(key) < width:
            return int(key)
        found = some_of(self._header) or f"{width} without header"
        raise BadOutput(f"expected column '{key}', found {found}")


def _is_blank(row: list[str]) -> bool:
    """True for a blank line, which is no row; a row of empty cells is one."""
    return not row or (len(row) == 1 and row[0].isspace())


def _is_number(cell: str) -> bool:
    """True for what `convert` reads as a number of some dtype; a lone j is a title."""
    text = cell.lower()
    if text in ("true", "false"):
        return True
    try:
        complex(text.replace("d", "e") if text[-1:].isdigit() else text)
    except ValueError:
        return False
    return text != "j" and "(" not in text


class Hdf5(OutputFile):
    """Any HDF5 file; `key` is the path of a dataset, or may be left out when the root holds only one."""

    def __init__(self, path: str) -> None:
        from merlin.shards.format.foreign_hdf5 import ForeignFile  # h5py and its filters

        self._file = ForeignFile(path)

    def get(self, field: PlannedField) -> Any:
        try:
            return self._get(field)
        except (RuntimeError, TypeError, KeyError) as e:  # of h5py, for types that NumPy does not know
            raise ValueError(_one_line(e)) from e

    def _get(self, field: PlannedField) -> Any:
        import h5py

        names = self._file.names()
        key = field.key or (names[0] if len(names) == 1 else "")
        node = self._file.dataset(key) if key else None
        if node is None:
            raise BadOutput(f"expected a dataset '{key}', found {some_of(names) or 'nothing'}")
        return node.asstr()[()] if field.is_text and h5py.check_string_dtype(node.dtype) else node[()]

    def close(self) -> None:
        self._file.close()


class Text(OutputFile):
    """Any text file, searched with the field's `regex`: the first match counts; for a series, every match.

    The value is the first group, or all of the match if the expression has no group. A text field without
    `regex` is all of the file.
    """

    is_textual = True

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8", errors="replace") as file:
            self._text = file.read()

    def get(self, field: PlannedField) -> Any:
        if field.regex is None:
            return self._text
        expression = re.compile(field.regex, re.MULTILINE)
        group = 1 if expression.groups else 0
        if field.ndim:
            return [match.group(group) for match in expression.finditer(self._text)]
        match = expression.search(self._text)
        if match is None or match.group(group) is None:
            raise BadOutput(f"expected a match of '{field.regex}', found none")
        return match.group(group)


_OPENERS: dict[str, type[OutputFile]] = {
    "regex": Text,
    ".json": Json,
    ".npy": Npy,
    ".npz": Npz,
    ".csv": Table,
    ".tab": Table,
    ".tsv": Table,
    ".h5": Hdf5,
    ".hdf5": Hdf5,
}
