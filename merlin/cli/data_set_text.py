"""A description of a data set as lines of text that fit a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from merlin.base.text import size
from merlin.shards.describe import (
    Description,
    FieldFacts,
    about,
    channel_name,
    compression_text,
    dtype_text,
    graph_description,
    provenance,
    shape_text,
    source_name,
    statistics_of,
)
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.statistics import Statistics

WIDE = 130  # columns from which fields, statistics and descriptions share a table
_MAX_CHANNELS = 8  # of one field
_MAX_GROUPS = 20
_NUMBERS = ("min", "mean", "max", "std")
_GAP = "  "

Row = tuple[str, ...]


def lines(facts: Description, width: int) -> Iterator[str]:
    """Everything that people are shown, at most `width` columns wide where words can be folded."""
    yield from _head(facts, width)
    if width >= WIDE:
        yield from _titled("fields", _wide_fields(facts, width))
    else:
        yield from _titled("fields", _narrow_fields(facts))
        yield from _titled("statistics", _field_statistics(facts))
        descriptions = [pair for pair in _descriptions(facts) if pair[1]]
        yield from _titled("descriptions", _pairs(descriptions, width))
    yield from _titled("inputs", _inputs(facts))
    yield from _titled("sources", _sources(facts))
    yield from _titled("left out", _left_out(facts, width))
    yield from _titled("provenance", _pairs(provenance(facts), width))


def _titled(title: str, content: list[str]) -> list[str]:
    return ["", title.upper(), *content] if content else []


def _head(facts: Description, width: int) -> list[str]:
    shards = f"{facts.num_shards:,} shard" + ("" if facts.num_shards == 1 else "s")
    num = max(1, facts.num_rows)
    splits = (
        f"{name} {facts.split_counts.get(name, 0):,} ({100 * facts.split_counts.get(name, 0) / num:.1f}%)"
        for name in facts.split_fractions
    )
    some = f"{facts.sizes_from:,} of {shards}"
    pairs = [
        ("samples", f"{facts.num_rows:,} in {shards} of up to {facts.samples_per_shard:,}"),
        (
            "size",
            f"{size(facts.size_bytes)}, {size(facts.bytes_per_sample)} a sample{_whole_ratio(facts)}",
        ),
        ("", f"sizes of fields are from {some}" if 0 < facts.sizes_from < facts.num_shards else ""),
        ("splits", ", ".join(splits)),
    ]
    return [str(facts.path), str(facts.counts), "", *_pairs([pair for pair in pairs if pair[1]], width)]


def _whole_ratio(facts: Description) -> str:
    """How much compression saves, if it does anything."""
    if not any(field.is_compressed for field in facts.fields) or not facts.size_bytes:
        return ""
    return f", compressed {facts.row_bytes / facts.bytes_per_sample:.1f}×"


def _pairs(pairs: list[tuple[str, str]], width: int) -> list[str]:
    """Names and values; long values are folded."""
    margin = max((len(name) for name, _ in pairs), default=0) + len(_GAP)
    out = []
    for name, value in pairs:
        folded = textwrap.wrap(value, max(20, width - margin), break_on_hyphens=False) or [""]
        out += [(name if i == 0 else "").ljust(margin) + line for i, line in enumerate(folded)]
    return out


# fields


def _narrow_fields(facts: Description) -> list[str]:
    """What each field is, without its statistics."""
    ratio = any(field.is_compressed for field in facts.fields)
    header = ["field", "kind", "type", "shape", "units", "size", *["compression"] * ratio]
    rows: list[Row] = []
    for field, name in _named(facts):
        if field is None:
            rows.append((name, "graph", *[""] * (len(header) - 2)))
            continue
        ratio_cell = [compression_text(field)] * ratio
        rows.append((name, *_what(field), _units(field), _size(field), *ratio_cell))
    return _table(header, rows, right=("size",))


def _wide_fields(facts: Description, width: int) -> list[str]:
    """All about each field, in one table."""
    ratio = any(field.is_compressed for field in facts.fields)
    about = dict(_descriptions(facts))
    header = [
        "field",
        "kind",
        "type",
        "shape",
        *_NUMBERS,
        "units",
        "size",
        *["compression"] * ratio,
        "description",
    ]
    rows: list[Row] = []
    for field, name in _named(facts):
        if field is None:
            rows.append((name, "graph", *[""] * (len(header) - 3), about[name]))
            continue
        known = statistics_of(field.info)
        one = _numbers(known, 0) if known is not None and known.num_channels == 1 else ("",) * 4
        rest = (_units(field), _size(field), *[compression_text(field)] * ratio, about[field.info.name])
        rows.append((name, *_what(field), *one, *rest))
        if known is not None and known.num_channels > 1:
            rows += [(label, "", "", "", *n, *[""] * len(rest)) for label, n in _channels(field, known)]
    return _table(header, rows, right=(*_NUMBERS, "size"), fold=width)


def _named(facts: Description) -> Iterator[tuple[FieldFacts | None, str]]:
    """Fields with what they are called in a table; before the first member of a graph, the graph (None)."""
    graph = ""
    for field in facts.fields:
        if field.info.graph and field.info.graph != graph:
            yield None, field.info.graph
        graph = field.info.graph
        yield field, f"  {field.info.role}" if graph else field.info.name


def _descriptions(facts: Description) -> Iterator[tuple[str, str]]:
    """What there is to say of each field, and of each graph as a whole."""
    for field, name in _named(facts):
        if field is None:
            yield name, graph_description(facts, name)
        else:
            graph = field.info.graph
            yield field.info.name, about(field, graph_description(facts, graph) if graph else "")


def _what(field: FieldFacts) -> Row:
    return field.info.kind, dtype_text(field.info.dtype), shape_text(field.info)


def _units(field: FieldFacts) -> str:
    return "" if field.info.units == "1" else field.info.units


def _size(field: FieldFacts) -> str:
    num_bytes = field.stored_bytes if math.isfinite(field.stored_bytes) else field.row_bytes
    return size(num_bytes) if math.isfinite(num_bytes) else ""


def _field_statistics(facts: Description) -> list[str]:
    rows: list[Row] = []
    for field, name in _named(facts):
        if field is None:
            rows.append((name, "", "", "", ""))
            continue
        known = statistics_of(field.info)
        if known is not None and known.num_channels == 1:
            rows.append((name, *_numbers(known, 0)))
        elif known is not None:
            rows.append((name, "", "", "", ""))
            rows += [(label, *numbers) for label, numbers in _channels(field, known)]
    return _table(("field", *_NUMBERS), rows, right=_NUMBERS)


def _channels(field: FieldFacts, known: Statistics) -> Iterator[tuple[str, Row]]:
    indent = "    " if field.info.graph else "  "
    for channel in range(min(known.num_channels, _MAX_CHANNELS)):
        yield indent + channel_name(field.info, channel), _numbers(known, channel)
    hidden = known.num_channels - _MAX_CHANNELS
    if hidden > 0:
        yield f"{indent}and {hidden} more", ("", "", "", "")


def _numbers(known: Statistics | None, channel: int) -> Row:
    if known is None or not known.count[channel]:
        return ("",) * len(_NUMBERS)
    return tuple(f"{getattr(known, name)[channel]:.4g}" for name in _NUMBERS)


def _inputs(facts: Description) -> list[str]:
    rows = [
        (column.name, what, dtype_text(column.dtype), *_numbers(column.statistics, 0))
        for what, columns in (("input", facts.inputs), ("parameter", facts.parameters))
        for column in columns
    ]
    return _table(("name", "", "type", *_NUMBERS), rows, right=_NUMBERS)


# what is not in the data set


def _sources(facts: Description) -> list[str]:
    """The fates by step instance, if there are several."""
    if len(facts.sources) < 2:
        return []
    rows = []
    for source in facts.sources[:_MAX_GROUPS]:
        counts = [f"{getattr(source.counts, name):,}" for name in ("planned", *OUTCOMES)]
        rows.append((source_name(source), *counts))
    hidden = len(facts.sources) - len(rows)
    if hidden:
        rows.append((f"and {hidden:,} more", *[""] * (1 + len(OUTCOMES))))
    return _table(("source", "planned", *OUTCOMES), rows, right=("planned", *OUTCOMES))


def _left_out(facts: Description, width: int) -> list[str]:
    out = []
    for group in facts.left_out[:_MAX_GROUPS]:
        where = f"{group.source}: " if group.source else ""
        more = ", …" if group.num > len(group.examples) else ""
        samples = "sample" if group.num == 1 else "samples"
        text = f"{where}{group.cause} ({samples} {', '.join(map(str, group.examples))}{more})"
        margin = f"{group.fate:<10}{group.num:>9,}{_GAP}"
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
