"""One HTML file with the figures and the tables of a data set, to open anywhere and to attach to a mail.

It refers to nothing outside itself and has no scripts. Figures are drawings inside the page, so they stay sharp, their
words can be searched, and their colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from html import escape

import merlin.shards.plot.tables as tables
from merlin.base.text import count, size
from merlin.shards.describe import DataSetDescription
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.figure import drawing
from merlin.shards.plot.page_style import CSS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


Part = tuple[str, str, str]  # of a page: its id, its title, and HTML


def make_page(facts: DataSetDescription, sections: list[Section]) -> str:
    """The page's HTML."""
    name = escape(str(facts.study.get("name", "")) or facts.path.name)
    parts = [
        ("left-out", "Samples that are left out", tables.left_out_table(facts)),
        *((f"figure-{i}", section.title, figure(section)) for i, section in enumerate(sections)),
        ("fields", "Fields", tables.fields_table(facts)),
        ("inputs", "Inputs", tables.inputs_table(facts)),
        ("splits", "Splits", tables.splits_table(facts) if facts.split_fractions else ""),
        ("provenance", "Provenance", tables.provenance_table(facts)),
    ]
    header = f"""<h1>{name}</h1>
<p class="sub">{_subtitle(facts)}</p>
{cards(_cards(facts))}
{tables.outcome_bar(facts)}"""
    return document(name, header, [part for part in parts if part[2]], "merlin shards plot")


def document(title: str, header: str, parts: list[Part], maker: str, more_style: str = "") -> str:
    """A page that stands alone; title and header are HTML already. `maker` is the command that wrote it."""
    links = "".join(f'<a href="#{id}">{escape(title)}</a> ' for id, title, _ in parts)
    body = "\n".join(
        f'<section id="{id}"><h2>{escape(title)}</h2>\n{html}</section>' for id, title, html in parts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{title}</title>
<style>{CSS}{more_style}</style>
</head>
<body>
<header>{header}
<nav>{links}</nav>
</header>
<main>
{body}
</main>
<footer>Made by <code>{maker}</code>. Everything is inside this file.</footer>
</body>
</html>
"""


def figure(section: Section) -> str:
    return f'<p class="note">{escape(section.note)}</p>\n<figure>{drawing(section)}</figure>'


def cards(facts: list[tuple[str, str]]) -> str:
    """Numbers that stand out; what each of them is may be HTML."""
    words = "".join(f"<div><b>{big}</b><span>{what}</span></div>" for big, what in facts)
    return f'<div class="cards">{words}</div>'


def _subtitle(facts: DataSetDescription) -> str:
    finished = str(facts.study.get("finished", ""))[:16].replace("T", " ")
    return f"data set <code>{escape(facts.aggregate)}</code>" + (
        f", finished {escape(finished)} UTC" if finished else ""
    )


def _cards(facts: DataSetDescription) -> list[tuple[str, str]]:
    num_fields = len({field.info.graph or field.info.name for field in facts.fields})
    return [
        (f"{facts.num_rows:,}", "samples"),
        (size(facts.size_bytes), f"in {count(facts.num_shards, 'shard')}"),
        (size(facts.bytes_per_sample), "a sample"),
        (f"{num_fields:,}", "field" if num_fields == 1 else "fields"),
        (f"{len(facts.inputs) + len(facts.parameters):,}", "inputs"),
    ]
