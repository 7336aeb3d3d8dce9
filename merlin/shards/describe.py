"""What a data set holds, as plain data for people and programs; reads the manifest only."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from merlin.shards.manifest_file import (
    ColumnInfo,
    Counts,
    DataSet,
    FailureGroup,
    FieldInfo,
    read_manifest,
)
from merlin.shards.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Description:
    """A data set in brief."""

    path: Path
    study: dict[str, Any]
    counts: Counts
    num_rows: int
    num_shards: int
    size_bytes: int
    row_bytes: int  # of one sample, numeric columns, uncompressed
    samples_per_shard: int
    fields: tuple[FieldInfo, ...]
    inputs: tuple[ColumnInfo, ...]
    parameters: tuple[ColumnInfo, ...]
    split_fractions: dict[str, float]
    split_counts: dict[str, int]
    failures: tuple[FailureGroup, ...]
    content_digest: str

    @property
    def line(self) -> str:
        """One line: where, how many samples, shards, bytes and fields."""
        return (
            f"{self.path}: {self.num_rows:,} samples in {_plural(self.num_shards, 'shard')}, "
            f"{size_text(self.size_bytes)}, {_plural(len(self.fields), 'field')}"
        )

    def to_json(self) -> dict[str, Any]:
        """The same as JSON-able data, statistics included."""
        return {
            "path": str(self.path),
            "study": self.study,
            "counts": asdict(self.counts),
            "num_rows": self.num_rows,
            "num_shards": self.num_shards,
            "size_bytes": self.size_bytes,
            "row_bytes": self.row_bytes,
            "samples_per_shard": self.samples_per_shard,
            "fields": [_column_json(field) for field in self.fields],
            "inputs": [_column_json(column) for column in self.inputs],
            "parameters": [_column_json(column) for column in self.parameters],
            "splits": {
                name: {"fraction": fraction, "num": self.split_counts.get(name, 0)}
                for name, fraction in self.split_fractions.items()
            },
            "failures": [asdict(group) for group in self.failures],
            "content_digest": self.content_digest,
        }


def describe(path: str | os.PathLike[str]) -> Description:
    """Describe the data set at `path`. Raises NotADataSetError if there is none."""
    data = read_manifest(Path(path))
    return Description(
        path=data.directory,
        study=data.study,
        counts=data.counts,
        num_rows=data.num_rows,
        num_shards=len(data.shards),
        size_bytes=data.size_bytes,
        row_bytes=_row_bytes(data),
        samples_per_shard=data.samples_per_shard,
        fields=data.fields,
        inputs=data.inputs,
        parameters=data.parameters,
        split_fractions=data.splits.fractions,
        split_counts=data.splits.counts,
        failures=data.failures,
        content_digest=data.content_digest,
    )


def size_text(num_bytes: int) -> str:
    """ "3.2 GB", in powers of ten."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def _plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _row_bytes(data: DataSet) -> int:
    import numpy as np

    numeric = [column for column in data.columns if column.dtype != "text"]
    return sum(np.dtype(c.dtype).itemsize * int(np.prod(c.shape, dtype=np.int64)) for c in numeric)


def _column_json(column: FieldInfo | ColumnInfo) -> dict[str, Any]:
    known = {"name": column.name, "dtype": column.dtype, "shape": list(column.shape)}
    if isinstance(column, FieldInfo):
        known |= {
            "kind": column.kind,
            "units": column.units,
            "description": column.description,
            "axes": list(column.axes),
            "compression": column.compression,
        }
    statistics: Statistics | None = column.statistics
    return {**known, "statistics": statistics.to_json() if statistics is not None else None}
