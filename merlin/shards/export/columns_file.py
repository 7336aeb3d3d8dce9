"""Columns of one length, written block by block into one file: NumPy archive, CSV, Parquet or HDF5.

The file appears under its name when it is complete.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct

from merlin.base.files import replacing
from merlin.base.tables.parquet import load_pyarrow
from merlin.errors import UsageError
from merlin.shards.export.npz import write_member
from merlin.shards.export.parquet import PURPOSE, tensor_array, tensor_type
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.segments import Array

_PART_BYTES = 16 << 20


class OutColumn(Struct, frozen=True):
    """A column (n, *shape)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    units: str = ""
    description: str = ""

    @property
    def known(self) -> dict[str, str]:
        """Units and description, as far as they are known."""
        about = {"units": self.units, "description": self.description}
        return {name: text for name, text in about.items() if text}


# takes rows from `lo` on, one array per column; blocks follow each other
WriteBlock = Callable[[int, Mapping[str, Array]], None]


def holds_arrays(path: Path) -> bool:
    """True if the format that a file's suffix names has columns of arrays. Raises UsageError for an unknown one."""
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"{path}: columns are written as {', '.join(_WRITERS)}, as the file's name ends")
    return path.suffix.lower() != ".csv"


@contextmanager
def writing_columns(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str] | None = None
) -> Iterator[WriteBlock]:
    """Write a file of `num` rows, which appears when the `with` block ends without an error.

    The `facts` are stored in it if its format has a place for them.

    Raises UsageError for a suffix or a shape that cannot be written, MissingExtraError without pyarrow.
    """
    arrays = [column.name for column in columns if column.shape]
    if not holds_arrays(path) and arrays:
        raise UsageError(f"{path}: a CSV file has no place for {', '.join(arrays)}")
    with (
        replacing(path) as temporary,
        _WRITERS[path.suffix.lower()](temporary, columns, num, facts or {}) as write,
    ):
        yield write


@contextmanager
def _npz(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]
) -> Iterator[WriteBlock]:
    """Write a NumPy archive: each column is kept in a temporary file until all blocks are there.

    The archive has one column after the other, but each block has rows of all columns.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=path.parent)) for _ in columns]

        def write(lo: int, block: Mapping[str, Array]) -> None:
            for column, file in zip(columns, files, strict=True):
                values = np.ascontiguousarray(block[column.name], column.dtype)
                file.write(values.reshape(-1).view(np.uint8).data)

        yield write
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for column, file in zip(columns, files, strict=True):
                shape = (num, *column.shape)
                write_member(archive, column.name, column.dtype, shape, _parts(file, column.dtype))


def _parts(file: BinaryIO, dtype: np.dtype[Any]) -> Iterator[Array]:
    """The content of a file, from its beginning, in parts."""
    file.seek(0)
    while part := file.read(_PART_BYTES):
        yield np.frombuffer(part, dtype)


@contextmanager
def _csv(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]
) -> Iterator[WriteBlock]:
    """A line of titles, then numbers with enough digits to read back the same values."""
    names = [column.name for column in columns]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        yield lambda lo, block: writer.writerows(zip(*(block[n].tolist() for n in names), strict=True))


@contextmanager
def _parquet(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]
) -> Iterator[WriteBlock]:
    """A row group for each block; arrays are Arrow's fixed-shape tensors."""
    pa = load_pyarrow(PURPOSE)
    types = [tensor_type(column.dtype, column.shape) for column in columns]
    fields = [
        pa.field(column.name, kind, nullable=False, metadata=column.known)
        for column, kind in zip(columns, types, strict=True)
    ]
    schema = pa.schema(fields, metadata=dict(facts))
    options = {"compression": "zstd", "use_dictionary": False}
    with pa.parquet.ParquetWriter(path, schema, **options) as writer:

        def write(lo: int, block: Mapping[str, Array]) -> None:
            arrays = [
                tensor_array(kind, np.asarray(block[column.name], column.dtype))
                for column, kind in zip(columns, types, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield write


@contextmanager
def _hdf5(
    path: Path, columns: Sequence[OutColumn], num: int, facts: Mapping[str, str]
) -> Iterator[WriteBlock]:
    """A data set for each column, with its units and description as attributes."""
    with NewFile(path, libver=("v108", "v110")) as new:
        new.file.attrs.update(facts)
        for column in columns:
            made = new.file.create_dataset(column.name, (num, *column.shape), column.dtype)
            made.attrs.update(column.known)

        def write(lo: int, block: Mapping[str, Array]) -> None:
            for column in columns:
                values = block[column.name]
                new.file[column.name][lo : lo + len(values)] = values
            new.check()

        yield write


_WRITERS: dict[
    str,
    Callable[[Path, Sequence[OutColumn], int, Mapping[str, str]], AbstractContextManager[WriteBlock]],
] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet, ".h5": _hdf5, ".hdf5": _hdf5}
