"""What a data set holds, as plain data for people and programs; reads the manifest, and sidecars for sizes."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from merlin.base.text import count, size
from merlin.errors import ShardError
from merlin.shards.format.counts import Counts
from merlin.shards.format.manifest_file import (
    ColumnInfo,
    DataSet,
    FieldInfo,
    PartInfo,
    Ranges,
    SourceInfo,
    read_manifest,
)
from merlin.shards.format.shard_info import read_info
from merlin.shards.format.statistics import Statistics

_MAX_EXAMPLES = 5
_MAX_SIDECARS = 32  # that are read for sizes; of more shards, evenly spaced ones


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """A field with its sizes; bytes per sample are means over the samples."""

    info: FieldInfo
    row_bytes: float  # of one sample, uncompressed; NaN for text
    stored_bytes: float  # of one sample, in the file; NaN for text

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def statistics(self) -> Statistics | None:
        return self.info.statistics

    @property
    def ratio(self) -> float:
        """Uncompressed over stored; NaN if unknown."""
        return self.row_bytes / self.stored_bytes if self.stored_bytes else float("nan")

    @property
    def is_compressed(self) -> bool:
        return self.info.compression not in ("", "none")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Samples of one fate and cause that are not in the data set."""

    fate: str  # failed | filtered | skipped | missing
    source: str  # step instance; "" for filters
    cause: str  # of a failure; the expression of a filter
    num: int
    examples: tuple[int, ...]  # a few sample ids


@dataclass(frozen=True, slots=True)
class Description:
    """A data set in brief."""

    path: Path
    study: dict[str, Any]
    aggregate: str
    counts: Counts
    sources: tuple[SourceInfo, ...]
    parts: tuple[PartInfo, ...]  # the extensions, if it grew
    num_rows: int
    num_shards: int
    size_bytes: int
    row_bytes: float  # of one sample, numeric columns, uncompressed
    samples_per_shard: int
    sizes_from: int  # number of shards that sizes of fields were summed over
    fields: tuple[FieldFacts, ...]
    inputs: tuple[ColumnInfo, ...]
    parameters: tuple[ColumnInfo, ...]
    split_fractions: dict[str, float]
    split_counts: dict[str, int]
    split_seed: int
    left_out: tuple[LeftOut, ...]
    content_digest: str

    @property
    def line(self) -> str:
        """One line: where, how many samples, shards, bytes and fields."""
        return (
            f"{self.path}: {self.num_rows:,} samples in {count(self.num_shards, 'shard')}, "
            f"{size(self.size_bytes)}, {count(len(self.fields), 'field')}"
        )

    @property
    def bytes_per_sample(self) -> float:
        """Of all files of shards, over the samples."""
        return self.size_bytes / self.num_rows if self.num_rows else 0.0

    def to_json(self) -> dict[str, Any]:
        """The same as JSON-able data, statistics included; the keys are stable."""
        return {
            "path": str(self.path),
            "study": self.study,
            "aggregate": self.aggregate,
            "counts": asdict(self.counts),
            "sources": [_source_json(source) for source in self.sources],
            "extensions": [
                {"workspace": part.workspace, "study": part.study, "counts": asdict(part.counts)}
                for part in self.parts
            ],
            "num_rows": self.num_rows,
            "num_shards": self.num_shards,
            "samples_per_shard": self.samples_per_shard,
            "size_bytes": self.size_bytes,
            "bytes_per_sample": self.bytes_per_sample,
            "row_bytes": self.row_bytes,
            "sizes_from": self.sizes_from,
            "fields": [_field_json(field) for field in self.fields],
            "inputs": [_column_json(column) for column in self.inputs],
            "parameters": [_column_json(column) for column in self.parameters],
            "splits": {
                name: {"fraction": fraction, "num": self.split_counts.get(name, 0)}
                for name, fraction in self.split_fractions.items()
            },
            "split_seed": self.split_seed,
            "left_out": [{**asdict(group), "examples": list(group.examples)} for group in self.left_out],
            "content_digest": self.content_digest,
        }


def describe(path: str | os.PathLike[str]) -> Description:
    """Describe the data set at `path`. Raises NotADataSetError if there is none."""
    return describe_data_set(read_manifest(Path(path)))


def describe_data_set(data: DataSet) -> Description:
    """Describe a data set whose manifest was read."""
    raw = {column.path: _raw_bytes(data, column) for column in data.columns}
    stored, num_shards = _stored_bytes(data)
    return Description(
        path=data.directory,
        study=data.study,
        aggregate=data.aggregate,
        counts=data.counts,
        sources=data.sources,
        parts=tuple(part for part in data.parts if part.workspace),
        num_rows=data.num_rows,
        num_shards=len(data.shards),
        size_bytes=data.size_bytes,
        row_bytes=sum(size for size in raw.values() if size == size),
        samples_per_shard=data.samples_per_shard,
        sizes_from=num_shards,
        fields=tuple(_facts(field, raw, stored) for field in data.fields),
        inputs=data.inputs,
        parameters=data.parameters,
        split_fractions=data.splits.fractions,
        split_counts=data.splits.counts,
        split_seed=data.splits.seed,
        left_out=(*_failures(data), *_filters(data), *_unfinished(data)),
        content_digest=data.content_digest,
    )


def source_name(source: SourceInfo) -> str:
    """The step instance; of an extension, with where that lies."""
    return f"{source.workspace}/{source.id}" if source.workspace else source.id


def shape_text(info: FieldInfo | ColumnInfo) -> str:
    """ "64×64×4", "*×3" with a first axis of variable length, "" for one number."""
    return "×".join(["*"] * info.ragged + [str(size) for size in info.shape])


def dtype_text(dtype: str) -> str:
    """ "float32" for "<f4"; text stays text."""
    import numpy as np

    return dtype if dtype == "text" else np.dtype(dtype).name


def channel_name(info: FieldInfo, channel: int) -> str:
    """What statistics of a channel are called."""
    if channel < len(info.channels):
        return info.channels[channel]
    return f"channel {channel}" if info.layout else f"[{channel}]"


def statistics_of(info: FieldInfo) -> Statistics | None:
    """The statistics worth showing: numbers of nodes, as edges are, have none."""
    return None if info.role == "edges" else info.statistics


def compression_text(field: FieldFacts) -> str:
    """ "zstd 3.1×"; nothing if it is not compressed."""
    if not field.is_compressed:
        return ""
    return field.info.compression + (f" {field.ratio:.1f}×" if math.isfinite(field.ratio) else "")


def graph_description(facts: Description, graph: str) -> str:
    """What is said of all members of a graph."""
    found = {field.info.description for field in facts.fields if field.info.graph == graph}
    return found.pop() if len(found) == 1 else ""


def about(field: FieldFacts, known: str = "") -> str:
    """The description, the layout, what it is derived from and how many items it has; without what is `known`."""
    info = field.info
    words = [info.description] if info.description not in ("", known) else []
    if info.layout:
        words.append(f"layout {info.layout}")
    elif info.axes:
        words.append("axes " + ", ".join(info.axes))
    if info.keep_bits is not None:
        words.append(f"{info.keep_bits} bits of the mantissa kept")
    if info.expression:
        words.append(f"= {info.expression}")
    if info.lengths is not None and info.lengths.count[0]:
        low, mean, high = info.lengths.min[0], info.lengths.mean[0], info.lengths.max[0]
        items = "items" if not info.graph else "edges" if info.role.startswith("edge") else "nodes"
        words.append(f"{low:,.0f} to {high:,.0f} {items}, {mean:,.4g} on average")
    return "; ".join(words)


def provenance(facts: Description) -> list[tuple[str, str]]:
    """Where the data set comes from, as (what, value)."""
    study = facts.study
    known = [
        ("study", f"{study.get('name', '')} ({study.get('study_id', '')})"),
        ("step", facts.aggregate),
        ("spec digest", study.get("spec_digest")),
        ("code version", study.get("code_version")),
        ("seed", study.get("seed") or None),  # 0 if nobody gave one
        ("planned", study.get("created")),
        ("finished", study.get("finished")),
        *(
            (part.workspace, f"{part.counts}, finished {part.study.get('finished', '')}")
            for part in facts.parts
        ),
        ("content digest", facts.content_digest),
        ("path", facts.path),
    ]
    return [(label, str(value)) for label, value in known if value not in (None, "")]


# sizes


def _raw_bytes(data: DataSet, column: ColumnInfo) -> float:
    """Uncompressed bytes of a column per sample; NaN for text."""
    import numpy as np

    if column.dtype == "text" or column.path.startswith("provenance/"):
        return float("nan")
    size = float(np.dtype(column.dtype).itemsize * int(np.prod(column.shape, dtype=np.int64)))
    if column.ragged and column.path.endswith("/values"):
        size *= _items_per_row(data, column)
    return size


def _items_per_row(data: DataSet, column: ColumnInfo) -> float:
    path = column.path.removesuffix("/values") + "/offsets"
    lengths = next((c.statistics for c in data.columns if c.path == path), None)
    return lengths.mean[0] if lengths is not None and lengths.count[0] else 0.0


def _stored_bytes(data: DataSet) -> tuple[dict[str, float], int]:
    """Bytes of each column per sample as stored, and the number of shards that say so; none that is unreadable."""
    shards = [shard for shard in data.shards if shard.num_rows]
    step = -(-len(shards) // _MAX_SIDECARS) or 1
    total: dict[str, float] = {}
    num_rows = num_shards = 0
    for shard in shards[::step]:
        try:
            info = read_info((data.directory / shard.file).with_suffix(".json"))
        except ShardError:
            continue  # `verify` is there to complain
        num_rows, num_shards = num_rows + info.num_rows, num_shards + 1
        for dataset in info.datasets:
            if dataset.extents:
                total[dataset.name] = total.get(dataset.name, 0) + sum(e.nbytes for e in dataset.extents)
    return {name: size / num_rows for name, size in total.items()}, num_shards


def _facts(field: FieldInfo, raw: dict[str, float], stored: dict[str, float]) -> FieldFacts:
    unknown = float("nan")
    paths = [f"{field.path}/values", f"{field.path}/offsets"] if field.ragged else [field.path]
    return FieldFacts(
        field,
        sum(raw.get(path, unknown) for path in paths),
        sum(stored.get(path, unknown) for path in paths),
    )


# what is not in the data set


def _failures(data: DataSet) -> list[LeftOut]:
    sources = {(source.workspace, source.id): source for source in data.sources}
    found = []
    for group in data.failures:
        source = sources[group.workspace, group.source]
        examples = _examples(data, source, group.tasks)
        found.append(LeftOut("failed", source_name(source), group.cause, group.num, examples))
    return found


def _filters(data: DataSet) -> list[LeftOut]:
    return [
        LeftOut("filtered", "", found.expression, found.num, _examples_of_rows(data, found.rows))
        for found in data.filters
        if found.num
    ]


def _unfinished(data: DataSet) -> list[LeftOut]:
    """Skipped and missing tasks, which have no cause of their own."""
    causes = {
        "skipped": "something it depends on did not end ok",
        "missing": "it did not run, or was interrupted",
    }
    return [
        LeftOut(
            fate,
            source_name(source),
            cause,
            getattr(source.counts, fate),
            _examples(data, source, getattr(source, fate)),
        )
        for fate, cause in causes.items()
        for source in data.sources
        if getattr(source.counts, fate)
    ]


def _first(ranges: Ranges) -> list[int]:
    return [number for a, b in ranges[:_MAX_EXAMPLES] for number in range(a, min(b, a + _MAX_EXAMPLES))][
        :_MAX_EXAMPLES
    ]


def _examples(data: DataSet, source: SourceInfo, tasks: Ranges) -> tuple[int, ...]:
    """The first sample ids of these tasks."""
    first = source.first_sample if data.per_sample else source.first_row
    return tuple(first + task for task in _first(tasks))


def _examples_of_rows(data: DataSet, rows: Ranges) -> tuple[int, ...]:
    found = []
    for row in _first(rows):
        source = next(s for s in data.sources if s.first_row <= row < s.first_row + s.num_tasks)
        found.append(source.first_sample + row - source.first_row if data.per_sample else row)
    return tuple(found)


# JSON


def _source_json(source: SourceInfo) -> dict[str, Any]:
    return {
        "id": source.id,
        "workspace": source.workspace,
        "params": source.params,
        "first_row": source.first_row,
        "first_sample": source.first_sample,
        "num_tasks": source.num_tasks,
        "counts": asdict(source.counts),
    }


def _field_json(field: FieldFacts) -> dict[str, Any]:
    info = field.info
    known = {
        name: getattr(info, name)
        for name in (
            "name", "kind", "dtype", "units", "description", "layout", "ragged", "graph", "role",
            "compression", "shuffle", "keep_bits", "expression",
        )
    }  # fmt: skip
    return {
        **known,
        "shape": [None] * info.ragged + list(info.shape),
        "axes": list(info.axes),
        "channels": list(info.channels),
        "bytes_per_sample": field.row_bytes,
        "stored_bytes_per_sample": field.stored_bytes,
        "compression_ratio": field.ratio,
        "statistics": _statistics_json(info.statistics),
        "lengths": _statistics_json(info.lengths),
    }


def _column_json(column: ColumnInfo) -> dict[str, Any]:
    return {
        "name": column.name,
        "dtype": column.dtype,
        "shape": list(column.shape),
        "statistics": _statistics_json(column.statistics),
    }


def _statistics_json(statistics: Statistics | None) -> dict[str, Any] | None:
    return statistics.to_json() if statistics is not None else None
