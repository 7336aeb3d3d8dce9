"""How the work went: workers and tasks over time, and the steps in numbers."""

from __future__ import annotations

from html import escape

from merlin.base.page.table import table
from merlin.base.text import duration
from merlin.plan.outcome_counts import OUTCOMES
from merlin.plan.plan import StepKind
from merlin.report.drawings.canvas import spark
from merlin.report.drawings.timeline import draw_timeline
from merlin.report.facts import ReportFacts
from merlin.views.step_lines import StepLine


def timeline(facts: ReportFacts) -> str:
    """Workers and tasks, drawn over the time at work."""
    if facts.activity is None:
        return ""
    pauses = " Pauses are left out." if len(facts.activity.spans) > 1 else ""
    return (
        '<p class="note">Above: worker processes at work, before those that were there. Below: tasks of each step that '
        "ended, to the scale at the right; those that failed are "
        f'<span class="dot failed"></span>red.{pauses}</p>{draw_timeline(facts.activity)}'
    )


def steps(facts: ReportFacts) -> str:
    """Outcomes and durations of every step."""
    has_filters = any(step.filtered for step in facts.page.steps)
    columns = [
        "step",
        *OUTCOMES,
        *(["filtered"] if has_filters else []),
        "median",
        "95 % below",
        "longest",
        "durations",
    ]
    rows = [_row(facts, step, has_filters=has_filters) for step in facts.page.steps]
    rows.append(_row(facts, facts.page.totals, has_filters=has_filters))
    right = [column for column in columns if column not in ("step", "durations")]
    note = _collected(facts)
    if facts.durations.steps:
        low, high = _seconds(facts.durations.low_s), _seconds(facts.durations.high_s)
        filtered = " Filtered are samples of tasks that ended ok." if has_filters else ""
        note += (
            '<p class="note">Durations are those of single tasks that ended; drawn on a logarithmic scale from '
            f"{low} to {high}, the same for all steps.{filtered}</p>"
        )
    return note + table(columns, rows, right=right)


def _collected(facts: ReportFacts) -> str:
    if not any(step.kind == StepKind.AGGREGATE for step in facts.page.steps):
        return ""
    return '<p class="note">Of a step that collects a data set each shard is a task, and its manifest is one more.</p>'


def _row(facts: ReportFacts, step: StepLine, *, has_filters: bool) -> list[str]:
    name = f"<b>{escape(step.step)}</b>" if step.step else "all"
    cells = [name, *(_count(facts, getattr(step, key), key) for key in OUTCOMES)]
    if has_filters:
        cells.append(f"{step.filtered:,}" if step.filtered else "")
    found = facts.durations.steps.get(step.step)
    if found is None:
        return [*cells, "", "", "", ""]
    shape = spark(found.bars, f"durations of the tasks of {step.step}")
    return [*cells, _seconds(found.median_s), _seconds(found.p95_s), _seconds(found.longest_s), shape]


def _count(facts: ReportFacts, num: int, key: str) -> str:
    is_bad = key == "failed" or (key == "missing" and facts.page.state not in ("new", "running"))
    if is_bad and num:
        return f'<span class="bad">{num:,}</span>'
    return f"{num:,}"


def _seconds(seconds: float) -> str:
    """A duration, also of less than a second."""
    if seconds >= 1:
        return duration(seconds)
    for unit, size in (("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "< 1 µs"
