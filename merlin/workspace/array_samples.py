"""Samples in files that know their types: NumPy arrays, which are memory-mapped, and Parquet."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from merlin.base.tables.parquet import ParquetTable
from merlin.errors import Diagnostic
from merlin.workspace.samples_table import (
    Columns,
    SamplesTable,
    check_columns,
    finding,
    row_blocks,
    samples_error,
)

NUMBERS = "fiub"  # kinds of dtypes


class NpySamples(SamplesTable):
    """A ``.npy`` file: (n, d), (n,) for one label, or a structured (n,)."""

    def __init__(self, path: Path, labels: tuple[str, ...]) -> None:
        self.path, self.labels = path, labels
        self._array = _load(path)
        shape, dtype = self._array.shape, self._array.dtype
        if self._array.ndim not in (1, 2) or (dtype.names and self._array.ndim != 1):
            raise samples_error(path, "shape", f"has shape {shape}, not (samples, columns)")
        self.num = int(shape[0])
        if self.num == 0:
            raise samples_error(path, "empty", "the samples file is empty")
        names = dtype.names
        check_columns(path, len(names) if names else (1 if len(shape) == 1 else int(shape[1])), labels)
        self._names = None if names is None else (labels if set(labels) == set(names) else names)
        kinds = [dtype[name].kind for name in names] if names else [dtype.kind]
        self._numeric = all(kind in NUMBERS for kind in kinds)
        if any(kind not in NUMBERS + "US" for kind in kinds):
            raise samples_error(path, "dtype", f"has values of type {dtype}, not numbers or text")

    @property
    def numeric(self) -> bool:
        return self._numeric

    def _read(self, lo: int, hi: int) -> Columns:
        return self._columns(self._array[lo:hi])

    def picked(self, rows: NDArray[np.int64]) -> Columns:
        return self._columns(self._array[rows])

    def _columns(self, block: NDArray[Any]) -> Columns:
        if self._names is not None:
            columns = [block[name] for name in self._names]
        else:
            columns = [block] if block.ndim == 1 else [block[:, j] for j in range(block.shape[1])]
        return dict(zip(self.labels, map(_own, columns), strict=True))

    def stored(self, lo: int, hi: int) -> bytes:
        self._check_range(lo, hi)
        return self._array[lo:hi].tobytes()

    def _forget_rows(self, lo: int, hi: int) -> None:
        """Give back the pages that were read, which count as used memory until then."""
        if isinstance(self._array, np.memmap):
            self._array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _load(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        if "Object arrays" in str(error) or "Python objects in dtype" in str(error):
            hint = "save it with a number or text dtype, e.g. array.astype(str)"
            what = "holds Python objects, which are not read"
            raise samples_error(path, "object", what, hint=hint) from error
        reason = "it does not begin as one" if "pickle" in str(error) else error
        raise samples_error(path, "unreadable", f"not a readable .npy file ({reason})") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise samples_error(path, "unreadable", "not a readable .npy file (it is an .npz archive of several)")
    return found


def _own(column: NDArray[Any]) -> NDArray[Any]:
    """A copy; bytes are text."""
    if column.dtype.kind == "S":
        return np.array([value.decode("utf-8", "surrogateescape") for value in column.tolist()], np.str_)
    return np.array(column)


class ParquetSamples(SamplesTable):
    """A Parquet file; columns are found by name, or by position if the names differ."""

    def __init__(self, path: Path, labels: tuple[str, ...]) -> None:
        self.path, self.labels = path, labels
        try:
            self._table = ParquetTable(path, "reading samples from a Parquet file")
        except (OSError, ValueError) as error:
            raise samples_error(path, "unreadable", f"not a readable Parquet file ({error})") from error
        names = tuple(self._table.names)
        self._names = labels if set(labels) <= set(names) else names
        check_columns(path, len(self._names), labels)
        self.num = self._table.num
        if self.num == 0:
            raise samples_error(path, "empty", "the samples file is empty")
        self._numeric = all(column.dtype.kind in NUMBERS for column in self.rows(0, 0).values())

    @property
    def numeric(self) -> bool:
        return self._numeric

    def picked(self, rows: NDArray[np.int64]) -> Columns:
        """Reads block by block: a file of this kind has no single rows."""
        parts: dict[str, list[NDArray[Any]]] = {label: [] for label in self.labels}
        for lo, hi in row_blocks(0, self.num):
            here = rows[(rows >= lo) & (rows < hi)]
            for label, column in self.rows(lo, hi).items() if len(here) else ():
                parts[label].append(column[here - lo])
        return {label: np.concatenate(found) if found else np.zeros(0) for label, found in parts.items()}

    def findings(self, limit: int) -> list[Diagnostic]:
        """As of other samples, and values that are missing among text."""
        out = super().findings(limit)
        for lo, hi in self.blocks():
            for label, name in zip(self.labels, self._names, strict=True):
                column = self._column(name, lo, hi)
                if column.null_count and self.rows(lo, hi)[label].dtype.kind not in NUMBERS:
                    row = lo + column.is_null().to_pylist().index(True)
                    message = f"row {row}, column {label}: the value is missing"
                    out.append(finding(self.path, "empty-value", message))
            if len(out) >= limit:
                break
        return out[:limit]

    def _column(self, name: str, lo: int, hi: int) -> Any:
        try:
            return self._table.column(name, lo, hi)
        except (OSError, ValueError) as error:
            what = f"column {name} cannot be read ({error})"
            raise samples_error(self.path, "unreadable", what) from error

    def _read(self, lo: int, hi: int) -> Columns:
        """Numbers keep their dtype (a null is NaN), everything else becomes text."""
        found: Columns = {}
        for label, name in zip(self.labels, self._names, strict=True):
            array = self._column(name, lo, hi).to_numpy(zero_copy_only=False)
            is_number = array.dtype.kind in NUMBERS
            found[label] = array if is_number else np.array([str(value) for value in array], np.str_)
        return found
