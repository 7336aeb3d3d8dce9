"""Parquet: scalars as plain columns, arrays as Arrow's fixed-shape tensors, ragged fields as lists.

A row group is one block of the view. Where a list's items have a shape, each item is a fixed-size list of its
values, and the metadata of the column has the shape. The schema's metadata says what the columns are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.tables.parquet import load_pyarrow
from merlin.shards.export.base import Exporter
from merlin.shards.export.view import Block, ExportColumn
from merlin.shards.format.segments import Ragged, Values

PURPOSE = "writing Parquet"


class ParquetExporter(Exporter):
    format = "parquet"
    samples_per_file = 10_000
    compressions = ("zstd", "none", "snappy", "gzip")

    def check(self) -> None:
        load_pyarrow(PURPOSE)
        super().check()

    def refusal(self, column: ExportColumn) -> str:
        return "Parquet has no complex numbers" if column.dtype.kind == "c" else ""

    def file_name(self, number: int) -> str:
        return f"data/samples_{number:05d}.parquet"  # alone, for readers that take a directory

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        schema = self._schema()
        scalars = [column.key for column in self.view.columns if column.is_scalar]
        options = {
            "compression": self.compression,
            "use_dictionary": [column.key for column in self.view.columns if column.is_text],
            "write_statistics": scalars,
        }
        with load_pyarrow(PURPOSE).parquet.ParquetWriter(path, schema, **options) as writer:
            for _, block in self.view.blocks(lo, hi):
                writer.write_table(self._table(block, schema))
        return {}

    def _schema(self) -> Any:
        pa = load_pyarrow(PURPOSE)
        data = self.view.ens.manifest
        about = {
            "study": data.study,
            "content_digest": data.content_digest,
            "columns": [column.to_json() for column in self.view.columns],
        }
        fields = [pa.field(c.key, _type(c), nullable=False, metadata=_metadata(c)) for c in self.view.columns]
        return pa.schema(fields, metadata={"merlin": json.dumps(about)})

    def _table(self, block: Block, schema: Any) -> Any:
        arrays = [_array(column, block[column.key]) for column in self.view.columns]
        return load_pyarrow(PURPOSE).Table.from_arrays(arrays, schema=schema)

    def count(self, path: Path) -> int:
        with load_pyarrow(PURPOSE).parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)


def _metadata(column: ExportColumn) -> dict[str, str]:
    known = column.to_json()
    names = ("role", "kind", "units", "description")
    return {**{name: known[name] for name in names if known.get(name)}, "shape": json.dumps(known["shape"])}


def _type(column: ExportColumn) -> Any:
    pa = load_pyarrow(PURPOSE)
    if column.is_text:
        return pa.string()
    item = pa.from_numpy_dtype(column.dtype)
    if column.ragged:
        return pa.list_(pa.list_(item, int(np.prod(column.shape))) if column.shape else item)
    return tensor_type(column.dtype, column.shape)


def tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Arrow's type of a column (n, *shape): numbers, or tensors of a fixed shape."""
    pa = load_pyarrow(PURPOSE)
    item = pa.from_numpy_dtype(dtype)
    return pa.fixed_shape_tensor(item, shape) if shape else item


def tensor_array(kind: Any, values: np.ndarray[Any, Any]) -> Any:
    """Values (n, *shape) as an array of `tensor_type`."""
    pa = load_pyarrow(PURPOSE)
    if values.ndim == 1:
        return pa.array(values, type=kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    storage = pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def _array(column: ExportColumn, values: Values) -> Any:
    pa = load_pyarrow(PURPOSE)
    kind = _type(column)
    if isinstance(values, Ragged):
        items = pa.array(np.ascontiguousarray(values.values).reshape(-1))
        if column.shape:
            items = pa.FixedSizeListArray.from_arrays(items, type=kind.value_type)
        return pa.ListArray.from_arrays(pa.array(values.offsets.astype(np.int32)), items, type=kind)
    return tensor_array(kind, np.asarray(values))
