"""What a data set holds as HTML: tables for the page, and in short for notebooks. Needs no matplotlib."""

from __future__ import annotations

from html import escape

from merlin.base.page.document import counts_bar
from merlin.base.page.table import facts_table, table
from merlin.base.text import count, size
from merlin.shards.describe import DataSetDescription, LeftOut
from merlin.shards.description_rows import (
    NUMBERS,
    FieldRow,
    dtype_text,
    field_rows,
    input_columns,
    numbers,
    provenance,
    split_rows,
)
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.statistics import Statistics
from merlin.shards.plot.ticks import number

_MAX_CHANNELS = 16
_MAX_GROUPS = 50


def _number(value: float) -> str:
    return number(value, 4)


def fields_table(facts: DataSetDescription) -> str:
    """Every field, the members of a graph below its name, every channel with its statistics."""
    ratio = ["compression"] if any(field.info.is_compressed for field in facts.fields) else []
    columns = ["field", "kind", "type", "shape", *NUMBERS, "units", "per sample", *ratio]
    rows = []
    for row in field_rows(facts, _number, _MAX_CHANNELS):
        cells = [row.kind, row.dtype, row.shape, *row.numbers, row.units, row.size]
        cells += [row.compression] * len(ratio)
        rows.append([_field_name(row), *map(escape, cells)])
    return table(columns, rows, right=(*NUMBERS, "per sample"))


def _field_name(row: FieldRow) -> str:
    name = escape(row.name)
    if row.is_channel:
        return f'<span class="in">{name}</span>'
    name = f'<span class="in">{name}</span>' if row.is_member else f"<b>{name}</b>"
    return f'{name}<span class="about">{escape(row.about)}</span>'


def inputs_table(facts: DataSetDescription) -> str:
    """Inputs and parameters; nothing if there are none."""
    rows = [
        [
            f"<b>{escape(column.name)}</b>",
            what,
            dtype_text(column.dtype),
            *numbers(column.statistics, 0, _number),
        ]
        for what, column in input_columns(facts)
    ]
    return table(("name", "", "type", *NUMBERS), rows, right=NUMBERS) if rows else ""


def left_out_table(facts: DataSetDescription) -> str:
    """Why samples are not in the data set; nothing if all are."""
    rows = [_left_out_row(group) for group in facts.left_out[:_MAX_GROUPS]]
    hidden = facts.left_out[_MAX_GROUPS:]
    if hidden:
        rows.append(["", f"{sum(g.num for g in hidden):,}", "", f"{len(hidden):,} more causes", ""])
    columns = ("outcome", "samples", "step", "cause", "for example")
    return table(columns, rows, right=("samples",)) if rows else ""


def _left_out_row(group: LeftOut) -> list[str]:
    cause = f"<code>{escape(group.cause)}</code>" if group.outcome == "filtered" else escape(group.cause)
    more = ", …" if group.num > len(group.examples) else ""
    return [
        f'<span class="dot {group.outcome}"></span>{group.outcome}',
        f"{group.num:,}",
        escape(group.source),
        f'<span class="why">{cause}</span>',
        ", ".join(f"#{sample}" for sample in group.examples) + more,
    ]


def splits_table(facts: DataSetDescription) -> str:
    rows = [
        [escape(name), f"{num:,}", f"{100 * share:.1f} %", f"{100 * wanted:.3g} %"]
        for name, num, share, wanted in split_rows(facts)
    ]
    return table(("split", "samples", "share", "wanted"), rows, right=("samples", "share", "wanted"))


def provenance_table(facts: DataSetDescription) -> str:
    return facts_table(provenance(facts))


def outcome_bar(facts: DataSetDescription) -> str:
    """planned = ok + failed + …, as a bar and in words."""
    counts = {outcome: getattr(facts.data.counts, outcome) for outcome in OUTCOMES}
    return counts_bar(counts, facts.data.counts.planned)


def summary(facts: DataSetDescription, num: int) -> str:
    """A few lines for a notebook, about `num` of the samples; it takes the notebook's own colours."""
    data, columns = facts.data, ("field", "kind", "type", "shape", "min", "mean", "max", "units")
    found = (row for row in field_rows(facts, _number, 0) if not row.is_channel and row.kind != "graph")
    rows = []
    for row, field in zip(found, facts.fields, strict=True):
        cells = [row.kind, row.dtype, row.shape, *_span(field.info.statistics), row.units]
        rows.append([f"<b>{escape(row.key)}</b>", *map(escape, cells)])
    splits = ", ".join(f"{escape(name)} {num:,}" for name, num in data.splits.counts.items())
    chosen = f"{num:,} of " if num != data.num_rows else ""
    inputs = ", ".join(escape(column.name) for _, column in input_columns(facts))
    return (
        f"<div><p><b>{escape(str(data.study.get('name', '')))}</b>: {chosen}{data.num_rows:,} samples in "
        f"{count(len(data.shards), 'shard')}, {size(data.size_bytes)}<br>{escape(str(data.counts))}<br>"
        f"splits: {splits}<br>inputs: {inputs or 'none'}</p>\n"
        f"{table(columns, rows, right=('min', 'mean', 'max'))}</div>"
    )


def _span(known: Statistics | None) -> tuple[str, ...]:
    """min, mean and max; of several channels the range over all of them."""
    if known is None or not any(known.count):
        return ("", "", "")
    if known.num_channels == 1:
        return numbers(known, 0, _number)[:3]
    channels = [i for i, num in enumerate(known.count) if num]
    low, high = min(known.min[i] for i in channels), max(known.max[i] for i in channels)
    return (_number(low), "", _number(high))
