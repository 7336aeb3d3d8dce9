"""From a data set to the charts that are worth drawing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

import merlin.shards.plot.coverage as coverage
import merlin.shards.plot.graphs as graphs
import merlin.shards.plot.histograms as histograms
import merlin.shards.plot.images as images
import merlin.shards.plot.series as series
from merlin.base.kinds import CHARTS, KINDS
from merlin.errors import UsageError
from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.choice import Choice, choose, even, sample_ids
from merlin.shards.plot.histograms import SampleValues
from merlin.shards.plot.lost import lost_inputs
from merlin.shards.plot.pictures import make_rows, most_samples, views_of
from merlin.shards.plot.ticks import drawn, drawn_name, number
from merlin.shards.reading.reader import SampleReader

T = TypeVar("T")

MAX_FANS = 12
_MAX_LINES = 10
_MOST_BYTES = 32 << 20  # read for one chart


class Request(Struct, frozen=True):
    """What is to be drawn. `kinds` are some of `CHARTS`; empty `fields` are all."""

    kinds: tuple[str, ...]
    fields: tuple[str, ...]
    num: int
    split: str
    query: str


class ChartSource(Struct, frozen=True, dict=True):
    """What sections are made from."""

    request: Request
    choice: Choice

    @property
    def reader(self) -> SampleReader:
        return self.choice.reader

    @cached_property
    def inputs(self) -> list[SampleValues]:
        """The numeric inputs and parameters that vary, of the rows chosen."""
        return [q for q in _input_quantities(self, self.choice.rows) if _varies(q.values)]

    def wants(self, name: str, graph: str = "") -> bool:
        named = self.request.fields
        return not named or name in named or (bool(graph) and graph in named)

    def fields(self, *charts: str) -> list[FieldInfo]:
        """The fields that are to be drawn and are shown by charts of these kinds."""
        return [
            info
            for info in self.reader.fields.values()
            if self.wants(info.name, info.graph) and info.sample_kind.chart in charts
        ]


def make_sections(
    reader: SampleReader, request: Request, on_section: Callable[[str], None] = lambda kind: None
) -> list[Section]:
    """The charts of a data set, in the order of `CHARTS`; `on_section` is called with the kind of each before its
    data is read.

    Raises UsageError for names that the data set does not have or that cannot be drawn, and if nothing can be drawn.
    """
    _check_names(reader, request.fields)
    source = ChartSource(request, choose(reader, split=request.split, query=request.query))
    made: list[Section] = []
    for kind in CHARTS:
        if kind in request.kinds:
            on_section(kind)
            made += _MAKERS[kind](source)
    if not made:
        is_all = request.kinds == CHARTS
        what = "nothing that can be drawn" if is_all else f"no {' or '.join(request.kinds)} to draw"
        raise UsageError(f"{reader.path} has {what}{' among the fields named' if request.fields else ''}")
    return made


def _check_names(reader: SampleReader, names: Sequence[str]) -> None:
    """Raise UsageError for a name that the data set does not have, and for a field of a kind of a later version.

    Of a ragged field the numbers of items can be drawn whatever its kind.
    """
    known = [*reader.fields, *reader.inputs, *reader.parameters]
    known += sorted({info.graph for info in reader.fields.values() if info.graph})
    for name in names:
        if name not in known:
            raise UsageError(f"no field or input '{name}' in {reader.path}; there are: {', '.join(known)}")
        info = reader.fields.get(name)
        if info is not None and info.kind not in KINDS and not info.ragged:
            raise UsageError(
                f"'{name}' in {reader.path} is of kind '{info.kind}', which this version of Merlin cannot draw; "
                "leave it out of the fields that are named"
            )


def _first(found: Sequence[T], most: int, what: str) -> tuple[tuple[T, ...], str]:
    """The first `most` of what was found, and what the chart's note says of the others."""
    more = f"; the first {most} of {len(found)} {what}" if len(found) > most else ""
    return tuple(found[:most]), more


def _inputs(source: ChartSource) -> Iterator[Section]:
    """Where the inputs were sampled, and which samples were lost where."""
    inputs = source.inputs
    if not inputs:
        return
    data = source.reader.manifest
    labels = tuple(q.name for q in inputs if q.name in source.reader.inputs)
    parameters = tuple(q.name for q in inputs if q.name not in labels)
    lost = {} if source.choice.condition else lost_inputs(data, labels, parameters)
    paired, more = _first(inputs, coverage.MAX_INPUTS, "inputs")
    chart = coverage.Coverage(
        labels=tuple(q.name for q in paired),
        units=tuple(q.units for q in paired),
        values=np.column_stack([q.values for q in paired]),
        lost={outcome: values[:, : len(paired)] for outcome, values in lost.items()},
    )
    note = source.choice.note + more
    yield Section("inputs", "Coverage of the inputs", note, chart.height, partial(coverage.draw, chart))


def _input_quantities(source: ChartSource, rows: Array) -> Iterator[SampleValues]:
    """The numeric inputs and parameters."""
    reader, data = source.reader, source.reader.manifest
    for group, columns in ((reader.inputs, data.inputs), (reader.parameters, data.parameters)):
        for column in columns:
            if column.dtype != "text" and source.wants(column.name):
                yield SampleValues(column.name, "", drawn(group[column.name][rows]).astype(float))


def _varies(values: Array) -> bool:
    known = values[np.isfinite(values)]
    return bool(len(known)) and float(known.max()) > float(known.min())


def _scalars(source: ChartSource) -> Iterator[Section]:
    shown, more = _first(_scalar_quantities(source), histograms.MAX_PANELS, "scalars")
    if not shown:
        return
    note = source.choice.note + more
    chart = histograms.Histograms(shown, source.choice.split, source.choice.split_names)
    yield Section("scalars", "Scalars", note, chart.height, partial(histograms.draw, chart))
    if source.inputs:
        table = histograms.drivers(tuple(source.inputs), shown)
        note = f"Spearman’s rank correlation, {source.choice.note}; numbers from 0.1 on"
        title = "Scalars against inputs"
        yield Section("scalars", title, note, table.height, partial(histograms.draw_drivers, table))


def _scalar_quantities(source: ChartSource) -> list[SampleValues]:
    found = []
    for info in source.fields("scalars", "series"):
        if info.ragged or len(info.shape) > 1 or (info.shape and info.role != "targets"):
            continue
        values = drawn(source.reader[info.name][source.choice.rows]).astype(np.float64)
        if not info.shape:
            found.append(SampleValues(drawn_name(info), info.units, values))
        else:
            names = info.channels or tuple(map(str, range(info.shape[0])))
            for n, column in zip(names[:8], values.T, strict=False):
                found.append(SampleValues(f"{drawn_name(info)}[{n}]", info.units, column))
    return found


def _series(source: ChartSource) -> Iterator[Section]:
    fans: list[series.Fan] = []
    most = 0
    infos = [info for info in source.fields("series") if _is_series(info)]
    used_as_x = {_coordinate_name(source, info) for info in infos}
    for info in infos:
        if info.name in used_as_x and not source.request.fields:
            continue
        mean = info.lengths.mean[0] if info.lengths is not None and info.lengths.count[0] else 1.0
        row_bytes = mean * float(np.prod(info.shape)) * np.dtype(info.dtype).itemsize
        rows = source.choice.some(int(np.clip(_MOST_BYTES / max(1.0, row_bytes), 16, series.MAX_SAMPLES)))
        fans += [_ragged_fan(source, info, rows)] if info.ragged else _fans_of(source, info, rows)
        most = max(most, len(rows))
    if not fans:
        return
    shown, more = _first(fans, MAX_FANS, "series")
    chart = series.Fans(shown)
    note = source.choice.note_of(most) + more
    yield Section("series", "Series", note, chart.height, partial(series.draw, chart))


def _is_series(info: FieldInfo) -> bool:
    """True if it is drawn as a series: it has one or two axes.

    A ragged field has to hold numbers, and of kind ragged along an axis with a name: items without one may be in any
    order.
    """
    if info.ragged:
        return not info.graph and not info.shape and bool(info.axes or not info.sample_kind.is_ragged)
    return not info.graph and len(info.shape) in (1, 2)


def _fans_of(source: ChartSource, info: FieldInfo, rows: Array) -> Iterator[series.Fan]:
    along, channel = _axes_of(info)
    at = series.thin(info.shape[along])
    x, x_name, x_units = _coordinates(source, info, along, at)
    values = drawn(_thinned(source.reader[info.name], rows, along, at)).astype(np.float64)
    shown = _lines(source, len(rows))
    if channel is None:
        yield series.Fan(drawn_name(info), info.units, x_name, x_units, x, values, shown)
        return
    values = np.moveaxis(values, channel + 1, 0)
    for i, part in enumerate(values):
        name = info.channels[i] if info.channels else str(i)
        name = f"{drawn_name(info)}[{name}]"
        yield series.Fan(name, info.units, x_name, x_units, x, part, shown)


def _thinned(column: Any, rows: Array, axis: int, at: Array) -> Array:
    """Rows of a column at positions `at` of an axis of theirs; of large rows, one at a time is in memory."""
    row_bytes = column.dtype.itemsize * float(np.prod(column.shape[1:]))
    if row_bytes * len(rows) <= _MOST_BYTES:
        return np.asarray(column[rows].take(at, axis + 1))
    return np.stack([column[int(row)].take(at, axis) for row in rows])


def _ragged_fan(source: ChartSource, info: FieldInfo, rows: Array) -> series.Fan:
    """The fan of a ragged field, up to the length that 95 % of the samples do not exceed.

    Shorter samples end where they end.
    """
    items = source.reader.column_at(info.path)[rows]
    length = max(1, int(np.quantile(items.lengths, 0.95)))
    at = series.thin(length)
    values = np.full((len(rows), len(at)), np.nan)
    for line, sample in zip(values, items, strict=True):
        inside = at < len(sample)
        line[inside] = drawn(sample[at[inside]])
    x_name, x_units = _index_name(info.axes[0] if info.axes else "")
    x, shown = at.astype(np.float64), _lines(source, len(rows))
    return series.Fan(drawn_name(info), info.units, x_name, x_units, x, values, shown)


def _lines(source: ChartSource, num: int) -> Array:
    """The samples of a fan that are drawn as lines."""
    return even(num, min(source.request.num, _MAX_LINES))


def _axes_of(info: FieldInfo) -> tuple[int, int | None]:
    """The axis that a series runs along, and the one that separates its channels, if it has two."""
    if len(info.shape) == 1:
        return 0, None
    channel = info.channel_axis
    return (0, 1) if channel is None else (1 - channel, channel)


def _coordinates(source: ChartSource, info: FieldInfo, along: int, at: Array) -> tuple[Array, str, str]:
    """Where along its axis the values of a series at positions `at` lie, and the name and the units of that."""
    name = info.axes[along] if along < len(info.axes) else ""
    known = _coordinate_name(source, info)
    if known:
        x = source.reader[known][int(source.choice.rows[0])][at].astype(np.float64)
        return x, known, source.reader.fields[known].units
    return at.astype(np.float64), *_index_name(name)


def _index_name(axis: str) -> tuple[str, str]:
    """The name and the units of the positions along an axis."""
    return (axis, "index") if axis else ("index", "")


def _coordinate_name(source: ChartSource, info: FieldInfo) -> str:
    """The series field that the axis is named after, if it ascends and is the same for all samples; else ""."""
    if info.ragged:
        return ""
    along, _ = _axes_of(info)
    name = info.axes[along] if along < len(info.axes) else ""
    known = source.reader.fields.get(name)
    if known is None or known.shape != (info.shape[along],) or known.ragged or known.name == info.name:
        return ""
    if np.dtype(known.dtype).kind == "c":
        return ""
    column, (first, *others) = source.reader[name], source.choice.some(20).tolist()
    x = column[first]
    ascends = bool((x[1:] > x[:-1]).all())
    return name if ascends and all(np.array_equal(column[row], x) for row in others) else ""


def _sheet(source: ChartSource, chart: str, title: str) -> Iterator[Section]:
    infos = [info for info in source.fields(chart) if views_of(info)]
    if not infos:
        return
    leading = _leading(source.reader)
    num = min(source.request.num, len(source.choice), most_samples(infos))
    samples, values = _ordered(source, leading, num)
    rows, left_out = make_rows(source.reader, infos, samples)
    titles = tuple(f"#{number}" for number in sample_ids(source.reader, samples))
    sheet = images.Sheet(titles, "" if leading is None else leading.name, values, rows)
    note = source.choice.note_of(num).removeprefix("a fixed subset of ")
    if leading is not None:
        note += f" at even quantiles of {leading.name}"
    yield Section(chart, title, note + left_out, sheet.height, partial(images.draw, sheet))


def _leading(reader: SampleReader) -> FieldInfo | None:
    """The scalar with the largest spread relative to its mean; it distinguishes samples best."""

    def spread(info: FieldInfo) -> float:
        known = info.statistics
        return known.std[0] / abs(known.mean[0]) if known and known.count[0] and known.mean[0] else 0.0

    scalars = [f for f in reader.fields.values() if f.sample_kind.is_number and not f.ragged and f.statistics]
    return max(scalars, key=spread, default=None)


def _ordered(source: ChartSource, leading: FieldInfo | None, num: int) -> tuple[Array, tuple[str, ...]]:
    """`num` samples at even quantiles of the leading scalar, and their values of it."""
    if leading is None:
        return source.choice.some(num), ("",) * num
    values = np.asarray(source.reader[leading.name][source.choice.rows], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    picked = order[((np.arange(num) + 0.5) * len(order) / num).astype(np.int64)]
    units = "" if leading.units in ("", "1") else f" {leading.units}"
    return source.choice.rows[picked], tuple(number(value, 2) + units for value in values[picked])


def _graphs(source: ChartSource) -> Iterator[Section]:
    """A few samples of each graph field."""
    for name, members in source.reader.graphs.items():
        if not any(source.wants(info.name, name) for info in members.values()) or "edges" not in members:
            continue
        rows = source.choice.some(min(graphs.MAX_GRAPHS, source.request.num))
        column = source.reader[name]
        found = [column[int(row)] for row in rows]
        how, coloured_by = "", ""
        drawings = []
        for sample, graph in zip(sample_ids(source.reader, rows), found, strict=True):
            drawing, how, coloured_by = graphs.lay_out(f"#{sample}", graph)
            drawings.append(drawing)
        chart = graphs.GraphChart(name, coloured_by, tuple(drawings))
        note = source.choice.note_of(len(rows)).removeprefix("a fixed subset of ") + f", {how}"
        yield Section("graphs", f"Graphs: {name}", note, chart.height, partial(graphs.draw, chart))


def _ragged(source: ChartSource) -> Iterator[Section]:
    """How long the ragged fields are; of a graph, how many nodes and edges."""
    counts: dict[str, Array] = {}
    chosen = source.reader.take(source.choice.rows)
    for info in source.reader.fields.values():
        name = info.name
        if not info.ragged or not source.wants(name, info.graph):
            continue
        if info.graph:
            name = f"{info.graph}: {'edges' if info.role in ('edges', 'edge_features') else 'nodes'}"
        if name not in counts:
            counts[name] = chosen.column_at(info.path).lengths
    if not counts:
        return
    quantities = [SampleValues(name, "", values.astype(np.float64)) for name, values in counts.items()]
    shown, more = _first(quantities, histograms.MAX_PANELS, "fields")
    chart = histograms.Histograms(shown, np.zeros(len(source.choice), np.int64), ())
    note = source.choice.note + more
    yield Section("ragged", "Items per sample", note, chart.height, partial(histograms.draw, chart))


_MAKERS: dict[str, Callable[[ChartSource], Iterator[Section]]] = {
    "inputs": _inputs,
    "scalars": _scalars,
    "series": _series,
    "images": partial(_sheet, chart="images", title="Images"),
    "volumes": partial(_sheet, chart="volumes", title="Volumes, middle planes"),
    "graphs": _graphs,
    "ragged": _ragged,
}
