"""The report's page: its sections in order.

write_report(open_workspace("icf_20260101-120000"), Path("report.html"))
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from merlin.base.files import write_text
from merlin.base.page.document import Part, document
from merlin.report.facts import ReportFacts, gather
from merlin.report.room import Room, size_bytes
from merlin.report.sections import cost, data_sets, failures, reproduce, summary, training, what_ran, work
from merlin.report.style import STYLE
from merlin.workspace.directory import Workspace


def write_report(
    workspace: Workspace,
    out: Path,
    *,
    pictures: bool = True,
    on_step: Callable[[str], None] = lambda what: None,
) -> Path:
    """Write the report of a study and its extensions; returns its path.

    `on_step` is called with the name of the next part. Raises LedgerError if the ledger cannot be read.
    """
    write_text(out, report_html(workspace, pictures=pictures, on_step=on_step))
    return out


def report_html(
    workspace: Workspace, *, pictures: bool = True, on_step: Callable[[str], None] = lambda what: None
) -> str:
    """The report as HTML. Raises as `write_report`."""
    on_step("ledger")
    facts = gather(workspace)
    first = _study_parts(facts)
    last: list[Part] = [
        ("reproduce", "How to reproduce it", reproduce.reproduce(facts)),
        ("spec", f"The spec: {facts.spec_name}", reproduce.spec(facts)),
    ]
    head = summary.header(facts)
    room = Room()
    room.left -= size_bytes(head) + sum(size_bytes(html) for _, _, html in (*first, *last))
    results = data_sets.data_sets(facts, room, on_step, pictures=pictures)
    results += training.training_runs(facts, room, on_step, pictures=pictures)
    parts = [part for part in (*first, *results, *last) if part[2]]
    html = document(escape(facts.page.name), head, parts, "merlin report", STYLE)
    return html.encode("utf-8", "replace").decode()


def _study_parts(facts: ReportFacts) -> list[Part]:
    """What is said of every study."""
    return [
        ("steps", "What was run", what_ran.steps_graph(facts)),
        ("samples", "Samples and parameters", what_ran.samples(facts)),
        ("timeline", "Over time", work.timeline(facts)),
        ("numbers", "Steps in numbers", work.steps(facts)),
        ("failures", "Failures", failures.failures(facts)),
        ("cost", "Cost", cost.cost(facts)),
        ("provenance", "Where it comes from", what_ran.provenance(facts)),
    ]
