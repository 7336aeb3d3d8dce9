"""What a data set holds, as plain data for people and programs; reads the manifest, and sidecars for sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from math import nan, prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.field import dtype_of
from merlin.base.ranges import Ranges
from merlin.base.records import to_plain
from merlin.base.text import count, size
from merlin.errors import ShardError
from merlin.shards.format.manifest_file import (
    ColumnInfo,
    DataSet,
    FieldInfo,
    PartInfo,
    SourceInfo,
    read_manifest,
)
from merlin.shards.format.shard_info import read_info
from merlin.shards.proving.expected import sample_ids

_MAX_EXAMPLES = 5
_NO_CAUSE = {  # of tasks that did not run
    "skipped": "something it depends on did not end ok",
    "missing": "it did not run, or was interrupted",
}
_SOURCE_KEYS = ("id", "workspace", "params", "first_row", "first_sample", "num_tasks", "counts")
_COLUMN_KEYS = ("name", "dtype", "shape", "statistics")
_FIELD_KEYS = (
    "name", "kind", "dtype", "units", "description", "layout", "ragged", "graph", "role",
    "compression", "shuffle", "keep_bits", "expression",
)  # fmt: skip
_MAX_SIDECARS = 32  # most sidecars that are read for sizes, those of evenly spaced shards


class FieldFacts(Struct, frozen=True):
    """A field with its sizes; bytes per sample are means over the samples."""

    info: FieldInfo
    row_bytes: float  # of one sample, uncompressed; NaN for text
    stored_bytes: float  # of one sample, in the file; NaN for text

    @property
    def ratio(self) -> float:
        """The uncompressed size divided by the stored size; NaN if unknown."""
        return self.row_bytes / self.stored_bytes if self.stored_bytes else nan


class LeftOut(Struct, frozen=True):
    """Samples of one outcome and cause that are not in the data set."""

    outcome: str  # failed | filtered | skipped | missing
    source: str  # step instance; "" for filters
    cause: str  # of a failure; the expression of a filter
    num: int
    examples: tuple[int, ...]  # a few sample ids


class DataSetDescription(Struct, frozen=True):
    """A data set in brief."""

    data: DataSet
    row_bytes: float  # of one sample, numeric columns, uncompressed
    sizes_from: int  # number of shards that sizes of fields were summed over
    fields: tuple[FieldFacts, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def extensions(self) -> tuple[PartInfo, ...]:
        """What was added, if the data set grew."""
        return tuple(part for part in self.data.parts if part.workspace)

    @property
    def line(self) -> str:
        """The data set in one line: its place, and its numbers of samples, shards, bytes and fields."""
        data = self.data
        return (
            f"{data.directory}: {data.num_rows:,} samples in {count(len(data.shards), 'shard')}, "
            f"{size(data.size_bytes)}, {count(len(self.fields), 'field')}"
        )

    @property
    def bytes_per_sample(self) -> float:
        """The size of all shard files, divided by the number of samples."""
        return self.data.size_bytes / self.data.num_rows if self.data.num_rows else 0.0

    def to_json(self) -> dict[str, Any]:
        """The same as JSON-able data, statistics included; the keys are stable."""
        data = self.data
        return {
            "path": str(data.directory),
            "study": data.study,
            "aggregate": data.aggregate,
            "counts": to_plain(data.counts),
            "sources": [_picked(source, *_SOURCE_KEYS) for source in data.sources],
            "extensions": [_picked(part, "workspace", "study", "counts") for part in self.extensions],
            "num_rows": data.num_rows,
            "num_shards": len(data.shards),
            "samples_per_shard": data.samples_per_shard,
            "size_bytes": data.size_bytes,
            "bytes_per_sample": self.bytes_per_sample,
            "row_bytes": self.row_bytes,
            "sizes_from": self.sizes_from,
            "fields": [_field_json(field) for field in self.fields],
            "inputs": [_picked(column, *_COLUMN_KEYS) for column in data.inputs],
            "parameters": [_picked(column, *_COLUMN_KEYS) for column in data.parameters],
            "splits": {
                name: {"fraction": fraction, "num": data.splits.counts.get(name, 0)}
                for name, fraction in data.splits.fractions.items()
            },
            "split_seed": data.splits.seed,
            "left_out": [
                _picked(group, "outcome", "source", "cause", "num", "examples") for group in self.left_out
            ],
            "content_digest": data.content_digest,
        }


def describe(path: str | os.PathLike[str]) -> DataSetDescription:
    """Describe the data set at `path`. Raises NotADataSetError if there is none."""
    return describe_data_set(read_manifest(Path(path)))


def describe_data_set(data: DataSet) -> DataSetDescription:
    """Describe a data set whose manifest was read."""
    raw = {column.path: _raw_bytes(data, column) for column in data.columns}
    stored, num_shards = _stored_bytes(data)
    return DataSetDescription(
        data=data,
        row_bytes=sum(size for size in raw.values() if size == size),
        sizes_from=num_shards,
        fields=tuple(_facts(field, raw, stored) for field in data.fields),
        left_out=tuple(_left_out(data)),
    )


# sizes


def _raw_bytes(data: DataSet, column: ColumnInfo) -> float:
    """Uncompressed bytes of a column per sample; NaN for text."""
    if column.dtype == "text" or column.path.startswith("provenance/"):
        return nan
    size = float(dtype_of(column.dtype).itemsize * prod(column.shape))
    if column.ragged and column.path.endswith("/values"):
        path = column.path.removesuffix("/values") + "/offsets"
        lengths = next((c.statistics for c in data.columns if c.path == path), None)
        size *= lengths.mean[0] if lengths is not None and lengths.count[0] else 0.0
    return size


def _stored_bytes(data: DataSet) -> tuple[dict[str, float], int]:
    """The stored bytes of each column per sample, and the number of shards that these were read from.

    Shards whose sidecar cannot be read are left out.
    """
    shards = [shard for shard in data.shards if shard.num_rows]
    step = -(-len(shards) // _MAX_SIDECARS) or 1
    total: dict[str, float] = {}
    num_rows = num_shards = 0
    for shard in shards[::step]:
        try:
            info = read_info((data.directory / shard.file).with_suffix(".json"))
        except ShardError:
            continue  # `verify` reports it
        num_rows, num_shards = num_rows + info.num_rows, num_shards + 1
        for dataset in info.datasets:
            if dataset.extents:
                total[dataset.name] = total.get(dataset.name, 0) + sum(e.nbytes for e in dataset.extents)
    return {name: size / num_rows for name, size in total.items()}, num_shards


def _facts(field: FieldInfo, raw: dict[str, float], stored: dict[str, float]) -> FieldFacts:
    paths = [f"{field.path}/values", f"{field.path}/offsets"] if field.ragged else [field.path]
    raw_bytes, stored_bytes = (sum(known.get(path, nan) for path in paths) for known in (raw, stored))
    return FieldFacts(field, raw_bytes, stored_bytes)


# what is not in the data set


def source_name(source: SourceInfo) -> str:
    """The id of the step instance, preceded by the workspace of its extension if it ran in one."""
    return f"{source.workspace}/{source.id}" if source.workspace else source.id


def _left_out(data: DataSet) -> Iterator[LeftOut]:
    sources = {(source.workspace, source.id): source for source in data.sources}
    for group in data.failures:
        source = sources[group.workspace, group.source]
        examples = _examples(data, group.tasks, source.first_row)
        yield LeftOut("failed", source_name(source), group.cause, group.num, examples)
    for found in data.filters:
        if found.num:
            yield LeftOut("filtered", "", found.expression, found.num, _examples(data, found.rows))
    for outcome, cause in _NO_CAUSE.items():
        for source in data.sources:
            num = getattr(source.counts, outcome)
            if num:
                examples = _examples(data, getattr(source, outcome), source.first_row)
                yield LeftOut(outcome, source_name(source), cause, num, examples)


def _examples(data: DataSet, ranges: Ranges, first_row: int = 0) -> tuple[int, ...]:
    """The first sample ids of these rows, which are counted from `first_row`."""
    first = islice((row for a, b in ranges for row in range(a, b)), _MAX_EXAMPLES)
    return tuple(sample_ids(data, first_row + np.array([*first], dtype=np.int64)).tolist())


# JSON


def _picked(record: Any, *names: str) -> dict[str, Any]:
    return {name: to_plain(getattr(record, name)) for name in names}


def _field_json(field: FieldFacts) -> dict[str, Any]:
    info = field.info
    return {
        **_picked(info, *_FIELD_KEYS),
        "shape": [None] * info.ragged + list(info.shape),
        **_picked(info, "axes", "channels"),
        "bytes_per_sample": field.row_bytes,
        "stored_bytes_per_sample": field.stored_bytes,
        "compression_ratio": field.ratio,
        **_picked(info, "statistics", "lengths"),
    }
