"""Columns of one length, written block by block into one file: NumPy archive, CSV, Parquet or HDF5.

The file appears under its name when it is complete.
"""

from __future__ import annotations

import csv
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from merlin.base.files import replacing
from merlin.errors import UsageError
from merlin.shards.export.npz import write_member
from merlin.shards.export.parquet import load_pyarrow, tensor_array, tensor_type
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.segments import Array

SUFFIXES = (".npz", ".csv", ".parquet", ".h5", ".hdf5")
_PART_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column (n, *shape)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    units: str = ""
    description: str = ""


class ColumnsFile(ABC):
    """Takes blocks of all columns in their order; `facts` are told where the format has a place for them."""

    def __init__(self, path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]) -> None:
        self.path, self.columns, self.num, self.facts = path, tuple(columns), num, dict(facts)

    @abstractmethod
    def write(self, lo: int, block: Mapping[str, Array]) -> None:
        """Rows from `lo` on, one array per column; blocks follow each other."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file."""

    def abandon(self) -> None:
        """Give up what is open."""
        return


def holds_arrays(path: Path) -> bool:
    """Whether the format that a file's suffix names has columns of arrays. Raises UsageError for an unknown one."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: columns are written as {', '.join(SUFFIXES)}, as the file's name ends")
    return path.suffix.lower() != ".csv"


@contextmanager
def writing_columns(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str] | None = None
) -> Iterator[ColumnsFile]:
    """A file of `num` rows that is there when the block ends without an error.

    Raises UsageError for a suffix or a shape that cannot be written, MissingExtraError without pyarrow.
    """
    arrays = [column.name for column in columns if column.shape]
    if not holds_arrays(path) and arrays:
        raise UsageError(f"{path}: a CSV file has no place for {', '.join(arrays)}")
    with replacing(path) as temporary:
        file = _KINDS[path.suffix.lower()](temporary, columns, num, facts or {})
        try:
            yield file
            file.finish()
        except BaseException:
            file.abandon()
            raise


class _Npz(ColumnsFile):
    """Members come one after the other, blocks side by side: columns wait in files of their own."""

    def __init__(self, path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]) -> None:
        super().__init__(path, columns, num, facts)
        self._parts = [path.with_name(f"{path.name}.{i}") for i in range(len(self.columns))]
        self._files = [part.open("w+b") for part in self._parts]

    def write(self, lo: int, block: Mapping[str, Array]) -> None:
        for column, file in zip(self.columns, self._files, strict=True):
            values = np.ascontiguousarray(block[column.name], column.dtype)
            file.write(values.reshape(-1).view(np.uint8).data)

    def finish(self) -> None:
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED) as archive:
            for column, file in zip(self.columns, self._files, strict=True):
                write_member(
                    archive, column.name, column.dtype, (self.num, *column.shape), _parts(file, column.dtype)
                )
        self.abandon()

    def abandon(self) -> None:
        for part, file in zip(self._parts, self._files, strict=True):
            file.close()
            part.unlink(missing_ok=True)


def _parts(file: BinaryIO, dtype: np.dtype[Any]) -> Iterator[Array]:
    """What a file holds from its beginning on."""
    file.seek(0)
    while part := file.read(_PART_BYTES):
        yield np.frombuffer(part, dtype)


class _Csv(ColumnsFile):
    """A line of titles, then numbers with as many digits as bring them back."""

    def __init__(self, path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]) -> None:
        super().__init__(path, columns, num, facts)
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow([column.name for column in self.columns])

    def write(self, lo: int, block: Mapping[str, Array]) -> None:
        self._writer.writerows(zip(*(block[c.name].tolist() for c in self.columns), strict=True))

    def finish(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class _Parquet(ColumnsFile):
    """A row group for each block; arrays are Arrow's fixed-shape tensors."""

    def __init__(self, path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]) -> None:
        super().__init__(path, columns, num, facts)
        self._pa = pa = load_pyarrow()
        from pyarrow import parquet

        self._types = {c.name: tensor_type(c.dtype, c.shape) for c in self.columns}
        fields = [
            pa.field(c.name, self._types[c.name], nullable=False, metadata=_known(c)) for c in self.columns
        ]
        self._schema = pa.schema(fields, metadata=dict(facts))
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)

    def write(self, lo: int, block: Mapping[str, Array]) -> None:
        arrays = [tensor_array(self._types[c.name], np.asarray(block[c.name], c.dtype)) for c in self.columns]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()


class _Hdf5(ColumnsFile):
    """A data set for each column, with its units and description as attributes."""

    def __init__(self, path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]) -> None:
        super().__init__(path, columns, num, facts)
        self._new = NewFile(path, libver=("v108", "v110"))
        self._new.file.attrs.update(self.facts)
        for column in self.columns:
            made = self._new.file.create_dataset(column.name, (num, *column.shape), column.dtype)
            made.attrs.update(_known(column))

    def write(self, lo: int, block: Mapping[str, Array]) -> None:
        for column in self.columns:
            values = block[column.name]
            self._new.file[column.name][lo : lo + len(values)] = values
        self._new.check()

    def finish(self) -> None:
        self._new.close()

    def abandon(self) -> None:
        with suppress(OSError):  # the error that is on its way says more
            self._new.close()


def _known(column: OutColumn) -> dict[str, str]:
    return {
        name: text for name, text in (("units", column.units), ("description", column.description)) if text
    }


_KINDS: dict[str, Callable[[Path, Sequence[OutColumn], int, Mapping[str, str]], ColumnsFile]] = {
    ".npz": _Npz,
    ".csv": _Csv,
    ".parquet": _Parquet,
    ".h5": _Hdf5,
    ".hdf5": _Hdf5,
}
