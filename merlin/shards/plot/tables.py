"""What `describe` knows, as HTML: for the page, and in short for notebooks. Needs no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from merlin.base.text import size
from merlin.shards.describe import (
    Description,
    FieldFacts,
    LeftOut,
    about,
    channel_name,
    compression_text,
    dtype_text,
    graph_description,
    provenance,
    shape_text,
    statistics_of,
)
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.statistics import Statistics
from merlin.shards.plot.ticks import number

NUMBERS = ("min", "mean", "max", "std")
_MAX_CHANNELS = 16
_MAX_GROUPS = 50


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """A table; cells are HTML already, columns named in `right` are right-aligned numbers."""
    style = [' class="n"' if name in right else "" for name in columns]
    head = "".join(f"<th{s}>{escape(name)}</th>" for s, name in zip(style, columns, strict=True))
    body = []
    for row in rows:
        cells = "".join(f"<td{s}>{cell}</td>" for s, cell in zip(style, row, strict=True))
        body.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def fields_table(facts: Description) -> str:
    """Every field, the members of a graph below its name, every channel with its statistics."""
    is_compressed = any(field.is_compressed for field in facts.fields)
    columns = ["field", "kind", "type", "shape", *NUMBERS, "units", "per sample"]
    columns += ["compression"] * is_compressed
    rows: list[list[str]] = []
    graph = ""
    for field in facts.fields:
        if field.info.graph and field.info.graph != graph:
            said = graph_description(facts, field.info.graph)
            name = f'<b>{escape(field.info.graph)}</b><span class="about">{escape(said)}</span>'
            rows.append([name, "graph"] + [""] * (len(columns) - 2))
        graph = field.info.graph
        rows += _field_rows(field, is_compressed, graph_description(facts, graph) if graph else "")
    return table(columns, rows, right=(*NUMBERS, "per sample"))


def _field_rows(field: FieldFacts, is_compressed: bool, known: str) -> list[list[str]]:
    info, statistics = field.info, statistics_of(field.info)
    name = f'<span class="in">{escape(info.role)}</span>' if info.graph else f"<b>{escape(info.name)}</b>"
    one = statistics is not None and statistics.num_channels == 1
    num_bytes = field.stored_bytes if math.isfinite(field.stored_bytes) else field.row_bytes
    row = [name, escape(info.kind), dtype_text(info.dtype), shape_text(info)]
    row += numbers(statistics, 0) if one and statistics is not None else [""] * 4
    row += [escape("" if info.units == "1" else info.units)]
    row += [size(num_bytes) if math.isfinite(num_bytes) else ""]
    row += [escape(compression_text(field))] * is_compressed
    row[0] += f'<span class="about">{escape(about(field, known))}</span>'
    rows = [row]
    if statistics is not None and not one:
        for channel in range(min(statistics.num_channels, _MAX_CHANNELS)):
            label = channel_name(info, channel)
            cells = [f'<span class="in">{escape(label)}</span>', "", "", "", *numbers(statistics, channel)]
            rows.append(cells + [""] * (len(row) - len(cells)))
        hidden = statistics.num_channels - _MAX_CHANNELS
        if hidden > 0:
            rows.append([f'<span class="in">and {hidden} more</span>'] + [""] * (len(row) - 1))
    return rows


def numbers(statistics: Statistics | None, channel: int) -> list[str]:
    """min, mean, max and std of a channel, for people; empty if nothing is known."""
    if statistics is None or not statistics.count[channel]:
        return [""] * len(NUMBERS)
    return [number(getattr(statistics, name)[channel], 4) for name in NUMBERS]


def inputs_table(facts: Description) -> str:
    """Inputs and parameters; nothing if there are none."""
    rows = [
        [f"<b>{escape(column.name)}</b>", what, dtype_text(column.dtype), *numbers(column.statistics, 0)]
        for what, columns in (("input", facts.inputs), ("parameter", facts.parameters))
        for column in columns
    ]
    return table(("name", "", "type", *NUMBERS), rows, right=NUMBERS) if rows else ""


def left_out_table(facts: Description) -> str:
    """Why samples are not in the data set; nothing if all are."""
    rows = [_left_out_row(group) for group in facts.left_out[:_MAX_GROUPS]]
    hidden = len(facts.left_out) - len(rows)
    if hidden > 0:
        rows.append(
            ["", f"{sum(g.num for g in facts.left_out[_MAX_GROUPS:]):,}", "", f"{hidden:,} more causes", ""]
        )
    return (
        table(("fate", "samples", "step", "cause", "for example"), rows, right=("samples",)) if rows else ""
    )


def _left_out_row(group: LeftOut) -> list[str]:
    cause = f"<code>{escape(group.cause)}</code>" if group.fate == "filtered" else escape(group.cause)
    cause = f'<span class="why">{cause}</span>'
    fate = f'<span class="dot {group.fate}"></span>{group.fate}'
    return [fate, f"{group.num:,}", escape(group.source), cause, examples(group)]


def examples(group: LeftOut) -> str:
    """ "#3, #17, …" """
    more = ", …" if group.num > len(group.examples) else ""
    return ", ".join(f"#{sample}" for sample in group.examples) + more


def splits_table(facts: Description) -> str:
    num = max(1, facts.num_rows)
    rows = [
        [escape(name), f"{facts.split_counts.get(name, 0):,}",
         f"{100 * facts.split_counts.get(name, 0) / num:.1f} %", f"{100 * fraction:.3g} %"]
        for name, fraction in facts.split_fractions.items()
    ]  # fmt: skip
    return table(("split", "samples", "share", "wanted"), rows, right=("samples", "share", "wanted"))


def provenance_table(facts: Description) -> str:
    rows = [[label, f"<code>{escape(value)}</code>"] for label, value in provenance(facts)]
    return table(("", ""), rows).replace("<thead><tr><th></th><th></th></tr></thead>", "")


def fate_bar(facts: Description) -> str:
    """planned = ok + failed + …, as a bar and in words."""
    counts = {fate: getattr(facts.counts, fate) for fate in OUTCOMES}
    parts = "".join(
        f'<span class="{fate}" style="flex-grow:{num}"></span>' for fate, num in counts.items() if num
    )
    words = " + ".join(
        f'<span class="dot {fate}"></span>{fate} <b>{num:,}</b>' for fate, num in counts.items()
    )
    sign = "=" if facts.counts.reconciled else "≠"
    planned = f"planned <b>{facts.counts.planned:,}</b>"
    return f'<div class="bar">{parts}</div>\n<p class="fates">{planned} {sign} {words}</p>'


def summary(facts: Description, num: int) -> str:
    """A few lines for a notebook, about `num` of the samples; it takes the notebook's own colours."""
    columns = ("field", "kind", "type", "shape", "min", "mean", "max", "units")
    rows = []
    for field in facts.fields:
        info, known = field.info, field.info.statistics
        one = numbers(known, 0)[:3] if known is not None and known.num_channels == 1 else _span(known)
        rows.append([f"<b>{escape(info.name)}</b>", escape(info.kind), dtype_text(info.dtype), shape_text(info), *one,
                     escape("" if info.units == "1" else info.units)])  # fmt: skip
    splits = ", ".join(f"{escape(name)} {count:,}" for name, count in facts.split_counts.items())
    chosen = f"{num:,} of " if num != facts.num_rows else ""
    inputs = ", ".join(escape(column.name) for column in (*facts.inputs, *facts.parameters))
    return (
        f"<div><p><b>{escape(str(facts.study.get('name', '')))}</b>: {chosen}{facts.num_rows:,} samples in "
        f"{facts.num_shards:,} shards, {size(facts.size_bytes)}<br>{escape(str(facts.counts))}<br>"
        f"splits: {splits}<br>inputs: {inputs or 'none'}</p>\n"
        f"{table(columns, rows, right=('min', 'mean', 'max'))}</div>"
    )


def _span(known: Statistics | None) -> list[str]:
    """The range over all channels."""
    if known is None or not any(known.count):
        return ["", "", ""]
    finite = [i for i, count in enumerate(known.count) if count]
    low, high = min(known.min[i] for i in finite), max(known.max[i] for i in finite)
    return [number(low, 4), "", number(high, 4)]
