"""One HTML file with the figures and the tables of a data set, to open anywhere and to attach to a mail.

It refers to nothing outside itself and has no scripts. Figures are drawings inside the page, so they stay sharp, their
words can be searched, and their colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from html import escape

import merlin.shards.plot.tables as tables
from merlin.base.page.document import cards, document
from merlin.base.text import count, size
from merlin.shards.describe import DataSetDescription
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.figure import drawing


def make_page(facts: DataSetDescription, sections: list[Section]) -> str:
    """The page's HTML."""
    name = escape(str(facts.data.study.get("name", "")) or facts.data.directory.name)
    parts = [
        ("left-out", "Samples that are left out", tables.left_out_table(facts)),
        *((f"figure-{i}", section.title, figure(section)) for i, section in enumerate(sections)),
        ("fields", "Fields", tables.fields_table(facts)),
        ("inputs", "Inputs", tables.inputs_table(facts)),
        ("splits", "Splits", tables.splits_table(facts) if facts.data.splits.fractions else ""),
        ("provenance", "Provenance", tables.provenance_table(facts)),
    ]
    header = f"<h1>{name}</h1>\n{summary_of(facts)}"
    return document(name, header, [part for part in parts if part[2]], "merlin shards plot")


def summary_of(facts: DataSetDescription) -> str:
    """The data set in short: which it is, its numbers, and what became of every sample."""
    return f"""<p class="sub">{_subtitle(facts)}</p>
{cards(_cards(facts))}
{tables.outcome_bar(facts)}"""


def figure(section: Section) -> str:
    return f'<p class="note">{escape(section.note)}</p>\n<figure>{drawing(section)}</figure>'


def _subtitle(facts: DataSetDescription) -> str:
    finished = str(facts.data.study.get("finished", ""))[:16].replace("T", " ")
    return f"data set <code>{escape(facts.data.aggregate)}</code>" + (
        f", finished {escape(finished)} UTC" if finished else ""
    )


def _cards(facts: DataSetDescription) -> list[tuple[str, str]]:
    num_fields = len({field.info.graph or field.info.name for field in facts.fields})
    return [
        (f"{facts.data.num_rows:,}", "samples"),
        (size(facts.data.size_bytes), f"in {count(len(facts.data.shards), 'shard')}"),
        (size(facts.bytes_per_sample), "a sample"),
        (f"{num_fields:,}", "field" if num_fields == 1 else "fields"),
        (f"{len(facts.data.inputs) + len(facts.data.parameters):,}", "inputs"),
    ]
