"""Columns of Parquet files, read row group by row group: one group of each column in use is in memory."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from merlin.base.stored import MOST, require_stored
from merlin.errors import MissingExtraError


def load_pyarrow(purpose: str) -> Any:
    """pyarrow, with its Parquet part; raises MissingExtraError without it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", purpose) from error
    return pyarrow


def is_text(kind: Any) -> bool:
    """True for an Arrow type of text."""
    pa = load_pyarrow("reading Parquet")
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class ParquetTable:
    """A Parquet file. The sizes that it claims are checked against what a file of its size can hold.

    Raises:
        MissingExtraError: pyarrow is not installed; `purpose` says what needs it.
        OSError, ValueError, pyarrow.ArrowException: the file is damaged; so do all methods.
    """

    def __init__(self, path: Path, purpose: str) -> None:
        self._pa = load_pyarrow(purpose)
        self._file_bytes = path.stat().st_size
        self._file = self._pa.parquet.ParquetFile(path)
        texts = [field.name for field in self._file.schema_arrow if is_text(field.type)]
        if texts:  # as a dictionary, however often a text is repeated, it is no larger than the file
            self._file.close()
            self._file = self._pa.parquet.ParquetFile(path, read_dictionary=texts)
        metadata = self._file.metadata
        sizes = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
        for size in [*sizes, sum(sizes)]:
            self.require_stored([size])
        self.schema = self._file.schema_arrow
        self.num = sum(sizes)
        self._starts = [0, *accumulate(sizes)]
        self._kept: dict[str, tuple[int, Any]] = {}  # the last row group of each column

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def require_stored(self, shape: list[int]) -> None:
        """Raise ValueError if the file cannot hold that many bytes, however well they are compressed."""
        require_stored(shape, 1, self._file_bytes, MOST)

    def column(self, name: str, lo: int, hi: int) -> Any:
        """Rows [lo, hi) as one Arrow array; of a tensor its storage, of a dictionary its values."""
        parts = []
        while lo < hi:
            group = bisect_right(self._starts, lo) - 1
            start, end = self._starts[group], min(hi, self._starts[group + 1])
            parts.append(self._of_group(group, name).slice(lo - start, end - lo))
            lo = end
        if parts:
            return self._pa.concat_arrays(parts)
        kind = self.schema.field(name).type
        if isinstance(kind, self._pa.DictionaryType):
            kind = kind.value_type
        return self._pa.array([], kind.storage_type if isinstance(kind, self._pa.BaseExtensionType) else kind)

    def _of_group(self, group: int, name: str) -> Any:
        if self._kept.get(name, (-1, None))[0] != group:
            self._kept.pop(name, None)  # before the next one takes memory
            self._kept[name] = (group, self._read_group(group, name))
        return self._kept[name][1]

    def _read_group(self, group: int, name: str) -> Any:
        """A column of a row group, with as many values as the file says."""
        pa = self._pa
        column = self._file.read_row_group(group, columns=[name]).column(0).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        num = self._starts[group + 1] - self._starts[group]
        if len(column) != num:
            raise ValueError(f"it has {len(column):,} values in a row group of {num:,}")
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        return self._decoded(column) if isinstance(column, pa.DictionaryArray) else column

    def _decoded(self, column: Any) -> Any:
        """The values of a dictionary-encoded column. Raises ValueError if the file cannot hold so much text."""
        from pyarrow import compute

        if is_text(column.dictionary.type):
            lengths = compute.binary_length(column.dictionary).take(column.indices)
            self.require_stored([1, compute.sum(lengths).as_py() or 0])
        return column.dictionary_decode()

    def close(self) -> None:
        self._file.close()
