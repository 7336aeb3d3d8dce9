"""Samples files: one row per sample, opened without reading them as a whole.

``.npy`` files are memory-mapped, text files keep an index of line offsets, so opening costs the same memory
for ten samples and for a hundred million. A name with wildcards stands for all ``.npy`` files it matches, in
sorted order.

How a value is put into a command follows what users of text and NumPy files expect: a value of a text file
goes in as it is written there, a value of a NumPy file as ``str`` of it ("0.1", "1e-05", "3").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from glob import has_magic
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from merlin.base.files import replacing
from merlin.base.tables.parquet import load_pyarrow
from merlin.base.tables.quotes import Dialect
from merlin.errors import SamplesError
from merlin.spec.defaults import SAMPLES_SUFFIXES
from merlin.workspace.array_samples import NpySamples, ParquetSamples
from merlin.workspace.same_samples import sample_files
from merlin.workspace.samples_table import JoinedRows, SamplesTable, row_blocks, samples_error
from merlin.workspace.text_samples import DIALECTS, TextSamples

MAX_DIAGNOSTICS = 20
_OPENERS: dict[str, Callable[[Path, tuple[str, ...]], SamplesTable]] = {
    ".npy": NpySamples,
    ".csv": TextSamples,
    ".tab": TextSamples,
    ".parquet": ParquetSamples,
}


def open_samples(path: str | os.PathLike[str], labels: Sequence[str]) -> SamplesTable:
    """Open a samples file whose columns are `labels`; checks its existence, emptiness and number of columns.

    Raises:
        SamplesError: the file cannot serve; see also `check_samples`, which looks at every row.
        MissingExtraError: a Parquet file without pyarrow.
    """
    path, labels = Path(path), tuple(labels)
    if not path.exists() and has_magic(str(path)):
        return _open_glob(path, labels)
    _require_format(path)
    if not path.is_file():
        raise samples_error(path, "missing", "samples file does not exist")
    return _OPENERS[path.suffix.lower()](path, labels)


def _require_format(path: Path) -> None:
    if path.suffix.lower() not in SAMPLES_SUFFIXES:
        hint = f"allowed: {', '.join(SAMPLES_SUFFIXES)}"
        raise samples_error(path, "format", "unknown kind of samples file", hint=hint)


def _open_glob(path: Path, labels: tuple[str, ...]) -> SamplesTable:
    names = sample_files(path)
    if not names:
        raise samples_error(path, "missing", "no file matches this pattern")
    wrong = [name for name in names if not name.lower().endswith(".npy")]
    if wrong:
        message, hint = "matched by the samples pattern, but not .npy", "a pattern may match .npy files only"
        raise samples_error(Path(wrong[0]), "format", message, hint=hint)
    tables = [NpySamples(Path(name), labels) for name in names]
    return JoinedRows([(table, 0, table.num) for table in tables])


def check_samples(table: SamplesTable) -> None:
    """Look at every row; SamplesError lists what is wrong, at most `MAX_DIAGNOSTICS` findings."""
    findings = table.findings(MAX_DIAGNOSTICS)
    if findings:
        raise SamplesError(findings)


def save_samples(path: str | os.PathLike[str], array: NDArray[Any], labels: Sequence[str]) -> None:
    """Write an (n, d) array atomically in the format that the suffix of `path` names.

    Text files carry the labels in a leading ``#`` comment, which every reader of such files skips.
    """
    path = Path(path)
    if array.ndim != 2 or array.shape[1] != len(labels):
        raise ValueError(f"an array of shape {array.shape} does not have {len(labels)} columns")
    _require_format(path)
    suffix = path.suffix.lower()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        if suffix == ".npy":
            np.save(file, array, allow_pickle=False)
        elif suffix == ".parquet":
            pa = load_pyarrow("writing samples to a Parquet file")
            columns = [pa.array(array[:, j]) for j in range(array.shape[1])]
            pa.parquet.write_table(pa.Table.from_arrays(columns, names=list(labels)), file)
        else:
            blocks = (array[lo:hi].tolist() for lo, hi in row_blocks(0, len(array)))
            write_text_rows(file, labels, blocks, DIALECTS[suffix])


def write_text_rows(
    file: IO[bytes], labels: Sequence[str], blocks: Iterable[Iterable[Sequence[object]]], dialect: Dialect
) -> None:
    """A comment with the labels, then rows whose values are numbers or text."""
    delimiter = dialect.delimiter or "\t"
    file.write(f"# {delimiter.join(labels)}\n".encode())
    for rows in blocks:
        lines = (
            delimiter.join(dialect.written(v) if isinstance(v, str) else str(v) for v in row) for row in rows
        )
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
