"""Parquet files, read row group by row group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.records import parsed
from merlin.base.tables.parquet import ParquetTable, is_text, load_pyarrow
from merlin.errors import ShardError
from merlin.shards.format.segments import Array, Ragged, Values, offsets_of
from merlin.shards.importing.source_file import (
    Facts,
    SourceFile,
    as_text,
    list_some,
    plain_about,
    require_one,
)

_PURPOSE = "importing Parquet"


class ParquetFile(SourceFile):
    """Lists are ragged, fixed-size lists and tensors have a shape. A null is NaN or, if it cannot be, a bad value."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with _explaining(f"{path}: not a readable Parquet file"):
            self._table = ParquetTable(path, _PURPOSE)

    def names(self) -> list[str]:
        return self._table.names

    def has(self, key: str) -> bool:
        return key in self._table.names

    def _facts(self, key: str) -> Facts:
        pa = load_pyarrow(_PURPOSE)
        if not self.has(key):
            raise ShardError(f"{self.path} has no column '{key}'; there are: {list_some(self.names())}")
        require_one(self.path, self._table.names, key)
        field = self._table.schema.field(key)
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
        shape = _written_shape(field) or shape
        num = self._table.num
        with _explaining(f"{self.path}: '{key}'"):
            self._table.require_stored([1 if ragged else num, *shape])
        if is_text(kind):
            return Facts(num, np.dtype(object), tuple(shape), ragged)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise ShardError(f"{self.path}: '{key}' holds {kind}, neither numbers nor text")
        return Facts(num, np.dtype(kind.to_pandas_dtype()), tuple(shape), ragged)

    def _read(self, key: str, lo: int, hi: int, facts: Facts) -> Values:
        column = self._column(key, lo, hi)
        if facts.is_text:
            return as_text("" if text is None else text for text in column.to_pylist())
        lengths = _lengths(column) if facts.ragged else None
        if facts.ragged:
            column = column.flatten()
        with _explaining(f"{self.path}: '{key}' is not of the shape {facts.shape} that the file says"):
            values: Array = _numbers(column, facts)
        if lengths is None:
            return values
        return Ragged(values, offsets_of(lengths))

    def _lengths(self, key: str, lo: int, hi: int, facts: Facts) -> Array:
        return _lengths(self._column(key, lo, hi))

    def _column(self, key: str, lo: int, hi: int) -> Any:
        with _explaining(f"{self.path}: '{key}'"):
            return self._table.column(key, lo, hi)

    def problems(self, key: str, lo: int, hi: int, facts: Facts) -> dict[int, str]:
        found: dict[int, str] = {}
        for depth, rows in enumerate(_missing(self._column(key, lo, hi), facts)):
            why = "one of its values is missing" if depth else "the value is missing"
            found = {lo + row: why for row in rows.tolist()} | found
        return found

    def about(self, key: str) -> dict[str, Any]:
        """What an export wrote down, or the metadata of the column."""
        exported = (self._table.schema.metadata or {}).get(b"merlin")
        if exported:
            with suppress(ValueError, KeyError, TypeError):  # somebody else's
                columns = {column["name"]: column for column in parsed(exported)["columns"]}
                if key in columns:
                    return plain_about(columns[key])
        metadata = self._table.schema.field(key).metadata or {}
        found = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in metadata.items()}
        return {name: found[name] for name in ("kind", "units", "description") if found.get(name)}

    def close(self) -> None:
        self._table.close()


@contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a ShardError that begins with `what`."""
    pa = load_pyarrow(_PURPOSE)
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as e:
        raise ShardError(f"{what}: {e}") from e


def _written_shape(field: Any) -> list[int]:
    """The shape in the column's metadata, of which fixed-size lists may hold a part."""
    found = (field.metadata or {}).get(b"shape")
    try:
        sizes = [size for size in parsed(found) if size != "*"] if found else []
    except (ValueError, TypeError):
        return []
    return sizes if all(type(size) is int for size in sizes) else []


def _missing(column: Any, facts: Facts) -> Iterator[Array]:
    """The rows with a null that cannot be NaN: those that are null, then those with one in their lists, by depth."""
    pa = load_pyarrow(_PURPOSE)
    outer: list[Any] = []  # the lists around the column
    while True:
        is_list = isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray)
        rows: Array = np.zeros(0, np.int64)
        if column.null_count and (is_list or facts.dtype.kind != "f"):
            rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        for lists in reversed(outer):
            rows = np.searchsorted(np.cumsum(_lengths(lists)), rows, side="right") if len(rows) else rows
        yield rows
        if not is_list:
            return
        outer.append(column)
        column = column.flatten()


def _lengths(column: Any) -> Array:
    """The lengths of lists; that of a null is 0."""
    return np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _numbers(column: Any, facts: Facts) -> Any:
    """Flat lists and nulls to an array (…, *shape); nulls are NaN, or zero where there is none."""
    pa = load_pyarrow(_PURPOSE)
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
