"""The kinds of files that an import reads. A new kind is a file with a `SourceFile` and a line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from merlin.errors import UsageError
from merlin.shards.importing.arrays import NpyFile, NpzFile
from merlin.shards.importing.hdf5 import GroupsFile, RowsFile
from merlin.shards.importing.parquet import ParquetFile
from merlin.shards.importing.source_file import SourceFile
from merlin.shards.importing.table import TableFile

SUFFIXES: dict[str, Callable[[Path], SourceFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".h5": RowsFile,
    ".hdf5": RowsFile,
    ".csv": TableFile,
    ".tab": TableFile,
    ".tsv": TableFile,
    ".parquet": ParquetFile,
}


def open_source(path: Path, samples: str, success: str | None) -> SourceFile:
    """Open a file of a kind that its suffix names; of HDF5 files `samples` says where samples are: rows or groups.

    Raises:
        UsageError: there is no such file, or it is of another kind.
        ShardError: it cannot be read.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"{path}: files to import end in {', '.join(SUFFIXES)}")
    return GroupsFile(path, success) if kind is RowsFile and samples == "groups" else kind(path)
