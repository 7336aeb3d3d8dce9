"""The head of a report: what the study was, how it ended, and its numbers in short."""

from __future__ import annotations

from html import escape

from merlin.base.page.document import cards, counts_bar
from merlin.base.text import core_time, count, duration, in_core_units, percent
from merlin.report.facts import ReportFacts, between, moment

_STATES = {
    "new": "has not begun",
    "running": "is running",
    "stalled": "waits, and nothing works on it",
    "unknown": "may be running; who could tell does not answer",
    "finished": "has finished: every task ended ok",
    "failed": "has ended, and not every task ended ok",
    "stopped": "was stopped before its end",
    "unreadable": "cannot be read",
}
_OUTCOMES = ("ok", "failed", "skipped", "missing")


def header(facts: ReportFacts) -> str:
    """Name, description, state, cards, and planned = ok + failed + skipped + missing."""
    page = facts.page
    about = f'<p class="about-study">{escape(page.description)}</p>' if page.description else ""
    counts = {outcome: getattr(page.totals, outcome) for outcome in _OUTCOMES}
    return f"""<h1>{escape(page.name)}</h1>
{about}
<p><span class="state {page.state}">{page.state}</span> <span class="sub">{_state(facts)}</span></p>
{cards(_cards(facts))}
<h2 class="quiet">Tasks</h2>
{counts_bar(counts, page.totals.planned)}
{_remarks(facts)}
<p class="lead">{_lead(facts)}</p>"""


def _state(facts: ReportFacts) -> str:
    page = facts.page
    reason = f" ({escape(page.state_reason)})" if page.state_reason else ""
    return f"The study {_STATES[page.state]}{reason}{_to_go(facts)}. As of {moment(page.now)}."


def _to_go(facts: ReportFacts) -> str:
    """ ", about 5 min 00 s to go, between 4 min and 8 min"."""
    eta = facts.page.eta
    if facts.page.state != "running" or eta is None or not eta.mid_s:
        return ""
    return f", about {duration(eta.mid_s)} to go, between {duration(eta.low_s)} and {duration(eta.high_s)}"


def _cards(facts: ReportFacts) -> list[tuple[str, str]]:
    totals, found = facts.page.totals, []
    found.append((f"{percent(totals.ok, totals.planned)} %", f"of {count(totals.planned, 'task')} ok"))
    if facts.samples is not None:
        found.append((f"{facts.samples.num:,}", "samples"))
    if facts.activity is not None:
        found.append((duration(facts.activity.length_s), "at work"))
        unit, used = in_core_units(facts.cost.total.used_h, facts.cost.total.used_h)
        found.append((used, f"{unit} in tasks"))
    if facts.page.data_sets:
        rows = sum(found.samples.ok for found in facts.page.data_sets)
        found.append((f"{rows:,}", f"rows in {count(len(facts.page.data_sets), 'data set')}"))
    return found


def _remarks(facts: ReportFacts) -> str:
    """What keeps the study from going on, and what could not be read."""
    page = facts.page
    lines = [
        f"{escape(found.what)}" + (f"<br><code>{escape(found.remedy)}</code>" if found.remedy else "")
        for found in (page.obstacles if page.totals.missing else ())
    ]
    lines += [escape(note) for note in page.notes]
    lines += [f"A part of the ledger cannot be read: {escape(damage)}" for damage in page.damage]
    return "".join(f'<p class="remark">{line}</p>' for line in lines)


def _lead(facts: ReportFacts) -> str:
    """The study in a few sentences."""
    totals, found = facts.page.totals, facts.activity
    num_steps = count(len(facts.page.steps), "step")
    if found is None:
        return f"The study has {count(totals.planned, 'task')} in {num_steps}. None has run so far."
    when = between(found.spans[0].start, found.spans[-1].end)
    num, pauses = totals.ok + totals.failed, len(found.spans) - 1
    paused = f" and {count(pauses, 'pause')}" if pauses else ""
    makers = dict.fromkeys(run.where for run in facts.runs)
    by = f", by {escape(next(iter(makers)))}" if len(makers) == 1 else ""
    which = (
        f"all {totals.planned:,} tasks"
        if num == totals.planned
        else f"{num:,} of {count(totals.planned, 'task')}"
    )
    used = facts.cost.total
    return (
        f"{when}, {which} in {num_steps} ran in {duration(found.length_s)} of work{paused}{by}. They took "
        f"{core_time(used.used_h)}, {percent(used.ok_h, used.used_h)} % of them in tasks that ended ok."
    )
