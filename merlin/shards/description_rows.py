"""The tables that describe a data set, as rows of text; commands and pages lay them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import size
from merlin.shards.describe import DataSetDescription, FieldFacts
from merlin.shards.format.manifest_file import ColumnInfo, FieldInfo, PartInfo
from merlin.shards.format.statistics import Statistics

NUMBERS = ("min", "mean", "max", "std")
MAX_EXTENSIONS = 3  # that lack nothing and have a line each
NO_NUMBERS = ("",) * len(NUMBERS)

Write = Callable[[float], str]  # writes a number for people


class FieldRow(Struct, frozen=True, kw_only=True):
    """A row of the table of fields: a graph, a field or a member of a graph, or a channel of the row before."""

    name: str
    key: str = ""  # name of the graph, or of the field in the data set
    is_member: bool = False
    is_channel: bool = False
    kind: str = ""
    dtype: str = ""
    shape: str = ""
    numbers: tuple[str, ...] = NO_NUMBERS
    units: str = ""
    size: str = ""  # of a sample
    compression: str = ""
    about: str = ""
    has_statistics: bool = True  # itself, or the rows of its channels below it


def field_rows(facts: DataSetDescription, write: Write, max_channels: int) -> Iterator[FieldRow]:
    """A row for every field and each of its channels; a graph has a row before its first member."""
    graph, known = "", ""
    for field in facts.fields:
        info = field.info
        if info.graph and info.graph != graph:
            said = {each.info.description for each in facts.fields if each.info.graph == info.graph}
            known = said.pop() if len(said) == 1 else ""
            yield FieldRow(name=info.graph, key=info.graph, kind="graph", about=known)
        graph = info.graph
        yield from _rows_of(field, known if graph else "", write, max_channels)


def _rows_of(field: FieldFacts, known: str, write: Write, max_channels: int) -> Iterator[FieldRow]:
    info, num_bytes = field.info, field.stored_bytes if math.isfinite(field.stored_bytes) else field.row_bytes
    statistics = None if info.role == "edges" else info.statistics  # numbers of nodes have none worth showing
    num_channels = 0 if statistics is None else statistics.num_channels
    row = FieldRow(
        name=info.role if info.graph else info.name,
        key=info.name,
        is_member=bool(info.graph),
        kind=info.kind,
        dtype=dtype_text(info.dtype),
        shape="×".join(["*"] * info.ragged + [str(size) for size in info.shape]),
        numbers=numbers(statistics, 0, write) if num_channels == 1 else NO_NUMBERS,
        units="" if info.units == "1" else info.units,
        size=size(num_bytes) if math.isfinite(num_bytes) else "",
        compression=_compression(field),
        about=_about(info, known),
        has_statistics=num_channels > 0,
    )
    yield row
    channel_row = FieldRow(name="", is_member=row.is_member, is_channel=True)
    for channel in range(min(num_channels, max_channels) if num_channels > 1 else 0):
        found = numbers(statistics, channel, write)
        yield replace(channel_row, name=channel_name(info, channel), numbers=found)
    if num_channels > max_channels:
        yield replace(channel_row, name=f"and {num_channels - max_channels} more")


def numbers(statistics: Statistics | None, channel: int, write: Write) -> tuple[str, ...]:
    """min, mean, max and std of a channel; empty texts if nothing is known."""
    if statistics is None or not statistics.count[channel]:
        return NO_NUMBERS
    return tuple(write(getattr(statistics, name)[channel]) for name in NUMBERS)


def dtype_text(dtype: str) -> str:
    """ "float32" for "<f4"; text stays text."""
    return dtype if dtype == "text" else np.dtype(dtype).name


def channel_name(info: FieldInfo, channel: int) -> str:
    """What statistics of a channel are called."""
    if channel < len(info.channels):
        return info.channels[channel]
    return f"channel {channel}" if info.layout else f"[{channel}]"


def _compression(field: FieldFacts) -> str:
    """ "zstd 3.1×"; nothing if it is not compressed."""
    if not field.info.is_compressed:
        return ""
    return field.info.compression + (f" {field.ratio:.1f}×" if math.isfinite(field.ratio) else "")


def _about(info: FieldInfo, known: str) -> str:
    """The description, the layout, what it is derived from and how many items it has; without what is `known`."""
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


def input_columns(facts: DataSetDescription) -> list[tuple[str, ColumnInfo]]:
    """The inputs and parameters, each with the word for which of the two it is."""
    return [
        *(("input", column) for column in facts.data.inputs),
        *(("parameter", c) for c in facts.data.parameters),
    ]


def split_rows(facts: DataSetDescription) -> list[tuple[str, int, float, float]]:
    """(name, samples, their share of all, the share that was asked for) of each split."""
    counts, num = facts.data.splits.counts, max(1, facts.data.num_rows)
    return [
        (name, counts.get(name, 0), counts.get(name, 0) / num, fraction)
        for name, fraction in facts.data.splits.fractions.items()
    ]


def provenance(facts: DataSetDescription) -> list[tuple[str, str]]:
    """Where the data set comes from, as (what, value)."""
    study = facts.data.study
    known = [
        ("study", f"{study.get('name', '')} ({study.get('study_id', '')})"),
        ("step", facts.data.aggregate),
        ("spec digest", study.get("spec_digest")),
        ("code version", study.get("code_version")),
        ("seed", study.get("seed") or None),  # 0 if nobody gave one
        ("planned", study.get("created")),
        ("finished", study.get("finished")),
        *_extensions(facts.extensions),
        ("content digest", facts.data.content_digest),
        ("path", facts.data.directory),
    ]
    return [(label, str(value)) for label, value in known if value not in (None, "")]


def _extensions(parts: Sequence[PartInfo]) -> Iterator[tuple[str, str]]:
    """A line for each extension; one for all that lack no sample, if there are many."""
    rest: list[PartInfo] = []
    whole: list[PartInfo] = []
    for part in parts:
        lacks = part.counts.failed or part.counts.skipped or part.counts.missing
        (rest if lacks else whole).append(part)
    if len(whole) <= MAX_EXTENSIONS:
        rest, whole = list(parts), []
    if whole:
        times = sorted(str(part.study.get("finished", "")) for part in whole)
        counts = reduce(add, (part.counts for part in whole))
        yield f"{len(whole)} extensions", f"{counts}, finished {times[0]} to {times[-1]}"
    for part in rest:
        yield part.workspace, f"{part.counts}, finished {part.study.get('finished', '')}"
