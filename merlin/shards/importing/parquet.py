"""Parquet files, read row group by row group: one group of the columns in use is in memory at a time."""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import MissingExtraError, ShardError
from merlin.shards.export.view import Array, Values
from merlin.shards.format.segments import Ragged
from merlin.shards.importing.sources import Facts, SourceFile, as_text, list_some


class ParquetFile(SourceFile):
    """Lists are ragged, fixed-size lists and tensors have a shape. A null is NaN or, if it cannot be, a bad value."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError("pyarrow", "parquet", "importing Parquet") from error
        try:
            self._file = parquet.ParquetFile(path)
        except (OSError, ValueError, pyarrow.ArrowException) as e:
            raise ShardError(f"{path}: not a readable Parquet file: {e}") from e
        self._schema = self._file.schema_arrow
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + int(self._file.metadata.row_group(group).num_rows))
        self._group = -1
        self._columns: dict[str, Any] = {}  # of the row group

    def names(self) -> list[str]:
        return list(self._schema.names)

    def has(self, key: str) -> bool:
        return key in self._schema.names

    def facts(self, key: str, offsets: str | None = None) -> Facts:
        import pyarrow as pa

        if not self.has(key):
            raise ShardError(f"{self.path} has no column '{key}'; there are: {list_some(self.names())}")
        field = self._schema.field(key)
        kind, ragged, shape = field.type, False, []
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        if isinstance(kind, pa.FixedShapeTensorType):
            kind, shape = kind.value_type, list(kind.shape)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind, ragged = kind.value_type, True
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        shape = self._shape(field, ragged) or shape
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return Facts(self._starts[-1], np.dtype(object), tuple(shape), ragged)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise ShardError(f"{self.path}: '{key}' holds {kind}, neither numbers nor text")
        return Facts(self._starts[-1], np.dtype(kind.to_pandas_dtype()), tuple(shape), ragged)

    @staticmethod
    def _shape(field: Any, ragged: bool) -> list[int]:
        """What the column's metadata says; more than fixed-size lists can tell."""
        found = (field.metadata or {}).get(b"shape")
        sizes = [size for size in json.loads(found) if size != "*"] if found else []
        return sizes if ragged or sizes else []

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        column = self._slice(key, lo, hi)
        if facts.is_text:
            return as_text("" if text is None else text for text in column.to_pylist())
        lengths = _lengths(column) if facts.ragged else None
        if facts.ragged:
            column = column.flatten()
        values: Array = _numbers(column, facts)
        if lengths is None:
            return values
        return Ragged(values, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))

    def lengths(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Array:
        return _lengths(self._slice(key, lo, hi))

    def _slice(self, key: str, lo: int, hi: int) -> Any:
        """Rows [lo, hi) as one array, of the storage type of tensors."""
        import pyarrow as pa

        parts = []
        while lo < hi:
            group = bisect_right(self._starts, lo) - 1
            start, end = self._starts[group], min(hi, self._starts[group + 1])
            parts.append(self._column(group, key).slice(lo - start, end - lo))
            lo = end
        kind = self._schema.field(key).type
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        return pa.concat_arrays(parts) if parts else pa.array([], storage)

    def _column(self, group: int, key: str) -> Any:
        import pyarrow as pa

        if group != self._group:
            self._columns, self._group = {}, group
        if key not in self._columns:
            column = self._file.read_row_group(group, columns=[key]).column(0).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            column = column.storage if isinstance(column, pa.ExtensionArray) else column
            self._columns[key] = (
                column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
            )
        return self._columns[key]

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        column = self._slice(key, lo, hi)
        if not column.null_count or (facts.dtype.kind == "f" and not facts.shape and not facts.ragged):
            return {}
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        return {lo + int(row): "the value is missing" for row in np.flatnonzero(nulls)}

    def about(self, key: str) -> dict[str, Any]:
        """What an export wrote down, or the metadata of the column."""
        told = (self._schema.metadata or {}).get(b"merlin")
        if told:
            columns = {column["name"]: column for column in json.loads(told)["columns"]}
            if key in columns:
                return dict(columns[key])
        found = {k.decode(): v.decode() for k, v in (self._schema.field(key).metadata or {}).items()}
        return {name: found[name] for name in ("kind", "units", "description") if found.get(name)}

    def close(self) -> None:
        self._file.close()


def _lengths(column: Any) -> Array:
    """Of lists; that of a null is 0."""
    return np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _numbers(column: Any, facts: Facts) -> Any:
    """Flat lists and nulls to an array (…, *shape); nulls are NaN, or zero where there is none."""
    import pyarrow as pa

    num = len(column)
    while pa.types.is_fixed_size_list(column.type):
        if column.null_count:
            zeros = pa.array(np.zeros(column.type.list_size * num, np.uint8)).cast(column.type.value_type)
            column = pa.concat_arrays(
                [row.values if row.is_valid else zeros.slice(0, column.type.list_size) for row in column]
            )
        else:
            column = column.flatten()
    if column.null_count and not pa.types.is_floating(column.type):
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(values, facts.dtype).reshape(num, *facts.shape)
