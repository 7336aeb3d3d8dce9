"""A description of a data set as lines of text that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from merlin.base.text import count, size
from merlin.shards.describe import DataSetDescription, source_name
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

WIDE = 130  # columns from which fields, statistics and descriptions share a table
_MAX_CHANNELS = 8  # of one field
_MAX_GROUPS = 20
_GAP = "  "

Row = tuple[str, ...]


def lines(facts: DataSetDescription, width: int) -> Iterator[str]:
    """Everything that people are shown, at most `width` columns wide where words can be folded."""
    yield from _head(facts, width)
    fields = list(field_rows(facts, _number, _MAX_CHANNELS))
    ratio = ["compression"] if any(field.info.is_compressed for field in facts.fields) else []
    if width >= WIDE:
        columns = ["kind", "dtype", "shape", *NUMBERS, "units", "size", *ratio, "about"]
        yield from _titled("fields", _fields(fields, columns, fold=width))
    else:
        columns = ["kind", "dtype", "shape", "units", "size", *ratio]
        yield from _titled("fields", _fields([f for f in fields if not f.is_channel], columns))
        yield from _titled("statistics", _fields([f for f in fields if f.has_statistics], NUMBERS))
        descriptions = [(field.key, field.about) for field in fields if field.about]
        yield from _titled("descriptions", _pairs(descriptions, width))
    yield from _titled("inputs", _inputs(facts))
    yield from _titled("sources", _sources(facts))
    yield from _titled("left out", _left_out(facts, width))
    yield from _titled("provenance", _pairs(provenance(facts), width))


def _titled(title: str, content: list[str]) -> list[str]:
    return ["", title.upper(), *content] if content else []


def _head(facts: DataSetDescription, width: int) -> list[str]:
    shards = count(len(facts.data.shards), "shard")
    splits = (f"{name} {num:,} ({100 * share:.1f}%)" for name, num, share, _ in split_rows(facts))
    some = f"{facts.sizes_from:,} of {shards}"
    pairs = [
        ("samples", f"{facts.data.num_rows:,} in {shards} of up to {facts.data.samples_per_shard:,}"),
        ("size", f"{size(facts.data.size_bytes)}, {size(facts.bytes_per_sample)} a sample{_ratio(facts)}"),
        ("", f"sizes of fields are from {some}" if 0 < facts.sizes_from < len(facts.data.shards) else ""),
        ("splits", ", ".join(splits)),
    ]
    return [
        str(facts.data.directory),
        str(facts.data.counts),
        "",
        *_pairs([pair for pair in pairs if pair[1]], width),
    ]


def _ratio(facts: DataSetDescription) -> str:
    """How much compression saves, if it does anything."""
    if not any(field.info.is_compressed for field in facts.fields) or not facts.data.size_bytes:
        return ""
    return f", compressed {facts.row_bytes / facts.bytes_per_sample:.1f}×"


def _pairs(pairs: list[tuple[str, str]], width: int) -> list[str]:
    """Names and values; long values are folded, but not a path, which somebody may copy."""
    margin = max((len(name) for name, _ in pairs), default=0) + len(_GAP)
    out = []
    for name, value in pairs:
        room, is_path = max(20, width - margin), value.startswith("/")
        folded = textwrap.wrap(value, room, break_on_hyphens=False, break_long_words=not is_path) or [""]
        out += [(name if i == 0 else "").ljust(margin) + line for i, line in enumerate(folded)]
    return out


def _fields(fields: Sequence[FieldRow], columns: Sequence[str], fold: int = 0) -> list[str]:
    """Some columns of the table of fields; graphs' members and channels are indented."""
    titles = {"dtype": "type", "about": "description"}
    rows = []
    for field in fields:
        cells = dict(zip(NUMBERS, field.numbers, strict=True))
        name = _GAP * (field.is_member + field.is_channel) + field.name
        rows.append((name, *(cells[c] if c in cells else str(getattr(field, c)) for c in columns)))
    header = ["field", *(titles.get(column, column) for column in columns)]
    return _table(header, rows, right=(*NUMBERS, "size"), fold=fold)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _inputs(facts: DataSetDescription) -> list[str]:
    rows = [
        (column.name, what, dtype_text(column.dtype), *numbers(column.statistics, 0, _number))
        for what, column in input_columns(facts)
    ]
    return _table(("name", "", "type", *NUMBERS), rows, right=NUMBERS)


# what is not in the data set


def _sources(facts: DataSetDescription) -> list[str]:
    """The outcomes by step instance, if there are several."""
    if len(facts.data.sources) < 2:
        return []
    rows = []
    for source in facts.data.sources[:_MAX_GROUPS]:
        counts = [f"{getattr(source.counts, name):,}" for name in ("planned", *OUTCOMES)]
        rows.append((source_name(source), *counts))
    hidden = len(facts.data.sources) - len(rows)
    if hidden:
        rows.append((f"and {hidden:,} more", *[""] * (1 + len(OUTCOMES))))
    return _table(("source", "planned", *OUTCOMES), rows, right=("planned", *OUTCOMES))


def _left_out(facts: DataSetDescription, width: int) -> list[str]:
    out = []
    for group in facts.left_out[:_MAX_GROUPS]:
        where = f"{group.source}: " if group.source else ""
        more = ", …" if group.num > len(group.examples) else ""
        samples = "sample" if group.num == 1 else "samples"
        text = f"{where}{group.cause} ({samples} {', '.join(map(str, group.examples))}{more})"
        margin = f"{group.outcome:<10}{group.num:>9,}{_GAP}"
        folded = textwrap.wrap(text, max(20, width - len(margin)), break_on_hyphens=False)
        out += [margin + folded[0], *(" " * len(margin) + line for line in folded[1:])]
    hidden = facts.left_out[_MAX_GROUPS:]
    if hidden:
        num = sum(group.num for group in hidden)
        out.append(f"and {num:,} samples of {len(hidden):,} more causes (--json lists them)")
    return out


def _table(header: Sequence[str], rows: list[Row], *, right: Sequence[str] = (), fold: int = 0) -> list[str]:
    """Aligned columns; the last one is folded so that the table is at most `fold` wide."""
    if not rows:
        return []
    cells = [tuple(header), *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    margin = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    out = []
    for row in cells:
        last = textwrap.wrap(row[-1], max(20, fold - margin)) if fold else []
        shown = (*row[:-1], last[0]) if last else row
        words = zip(header, shown, widths, strict=True)
        line = _GAP.join(word.rjust(w) if name in right else word.ljust(w) for name, word, w in words)
        out += [line.rstrip(), *(" " * margin + more for more in last[1:])]
    return out
