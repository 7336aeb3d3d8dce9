"""Parquet files, read row group by row group: one group of the columns in use is in memory at a time."""

from __future__ import annotations

import json
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from merlin.errors import MissingExtraError, ShardError
from merlin.shards.export.view import Array, Values
from merlin.shards.format.segments import Ragged
from merlin.shards.format.stored import MOST, require_stored
from merlin.shards.importing.sources import Facts, SourceFile, as_text, list_some, plain_about


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
            texts = [field.name for field in self._file.schema_arrow if _is_text(field.type)]
            if texts:  # as a dictionary, however often a text is repeated, it is no larger than the file
                self._file.close()
                self._file = parquet.ParquetFile(path, read_dictionary=texts)
            sizes = [int(self._file.metadata.row_group(g).num_rows) for g in range(self._file.num_row_groups)]
            for size in [*sizes, sum(sizes)]:
                require_stored([size], 1, path.stat().st_size, MOST)
            self._schema = self._file.schema_arrow
        except (OSError, ValueError, pyarrow.ArrowException) as e:
            raise ShardError(f"{path}: not a readable Parquet file: {e}") from e
        self._starts = [0, *accumulate(sizes)]
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
        shape = self._shape(field) or shape
        try:
            require_stored([1 if ragged else self._starts[-1], *shape], 1, self.path.stat().st_size, MOST)
        except ValueError as e:
            raise ShardError(f"{self.path}: '{key}': {e}") from e
        if _is_text(kind):
            return Facts(self._starts[-1], np.dtype(object), tuple(shape), ragged)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise ShardError(f"{self.path}: '{key}' holds {kind}, neither numbers nor text")
        return Facts(self._starts[-1], np.dtype(kind.to_pandas_dtype()), tuple(shape), ragged)

    @staticmethod
    def _shape(field: Any) -> list[int]:
        """What the column's metadata says; more than fixed-size lists can tell."""
        found = (field.metadata or {}).get(b"shape")
        try:
            sizes = [size for size in json.loads(found) if size != "*"] if found else []
        except (ValueError, TypeError, RecursionError):
            return []
        return sizes if all(type(size) is int for size in sizes) else []

    def read(self, key: str, lo: int, hi: int, facts: Facts, offsets: str | None = None) -> Values:
        column = self._slice(key, lo, hi)
        if facts.is_text:
            return as_text("" if text is None else text for text in column.to_pylist())
        lengths = _lengths(column) if facts.ragged else None
        if facts.ragged:
            column = column.flatten()
        try:
            values: Array = _numbers(column, facts)
        except ValueError as e:
            raise ShardError(
                f"{self.path}: '{key}' is not of the shape {facts.shape} that the file says: {e}"
            ) from e
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
            column = self._read_group(group, key)
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            column = column.storage if isinstance(column, pa.ExtensionArray) else column
            self._columns[key] = (
                self._decoded(key, column) if isinstance(column, pa.DictionaryArray) else column
            )
        return self._columns[key]

    def _decoded(self, key: str, column: Any) -> Any:
        """What the places in a dictionary stand for; ShardError if so much text cannot be in the file."""
        import pyarrow as pa
        from pyarrow import compute

        try:
            if _is_text(column.dictionary.type):
                lengths = compute.binary_length(column.dictionary).take(column.indices)
                num_bytes = compute.sum(lengths).as_py() or 0
                require_stored([1, num_bytes], 1, self.path.stat().st_size, MOST)
            return column.dictionary_decode()
        except (ValueError, pa.ArrowException) as e:
            raise ShardError(f"{self.path}: '{key}': {e}") from e

    def _read_group(self, group: int, key: str) -> Any:
        """A column of a row group, with as many values as the file says."""
        import pyarrow as pa

        try:
            column = self._file.read_row_group(group, columns=[key]).column(0).combine_chunks()
        except (OSError, ValueError, pa.ArrowException) as e:
            raise ShardError(f"{self.path}: '{key}' cannot be read: {e}") from e
        num = self._starts[group + 1] - self._starts[group]
        if len(column) != num:
            raise ShardError(f"{self.path}: '{key}' has {len(column):,} values in a row group of {num:,}")
        return column

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
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # somebody else's
                columns = {column["name"]: column for column in json.loads(told)["columns"]}
                if key in columns:
                    return plain_about(columns[key])
        metadata = self._schema.field(key).metadata or {}
        found = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in metadata.items()}
        return {name: found[name] for name in ("kind", "units", "description") if found.get(name)}

    def close(self) -> None:
        self._file.close()


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
