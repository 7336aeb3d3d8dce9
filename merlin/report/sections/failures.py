"""Failures in groups, with causes, the inputs that go with them, and the end of a log."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from merlin.base.page.table import table
from merlin.base.text import count, percent, printable, some_of
from merlin.report.facts import ReportFacts, moment
from merlin.shards.plot.ticks import number
from merlin.status.failures import FailureGroup
from merlin.status.input_ranges import InputRange

_MOST_GROUPS = 40
_MOST_DETAILS = 8
_MOST_RANGES = 3
_TAIL_LINES = 12
_TAIL_CHARACTERS = 160
_MOST_INPUTS = 10


def failures(facts: ReportFacts) -> str:
    """A table of the groups, and the largest in detail."""
    groups = facts.failures
    if not groups:
        return ""
    planned = {step.step: step.planned for step in facts.page.steps}
    rows = [_row(group, planned.get(group.step, 0)) for group in groups[:_MOST_GROUPS]]
    if hidden := groups[_MOST_GROUPS:]:
        num = sum(group.count for group in hidden)
        rows.append(["", f"{num:,}", "", "", f"{count(len(hidden), 'more group')}"])
    listed = table(("step", "tasks", "of the step", "end", "cause"), rows, right=("tasks", "of the step"))
    return listed + "".join(_details(group) for group in groups[:_MOST_DETAILS])


def _row(group: FailureGroup, planned: int) -> list[str]:
    where = f" <span class='about'>{escape(group.extension)}</span>" if group.extension else ""
    return [
        f"<b>{escape(group.step)}</b>{where}",
        f"{group.count:,}",
        f"{percent(group.count, planned)} %" if planned else "",
        escape(group.exit_class),
        f'<span class="why">{escape(_headline(group))}</span>',
    ]


def _headline(group: FailureGroup) -> str:
    """The recorded cause; where it says only how the task ended, the last line of the log."""
    lines = [line for line in group.log_tail.splitlines() if line.strip()]
    says_little = group.cause.startswith(("exit code", "signal"))
    return printable(lines[-1].strip() if lines and says_little else group.cause)


def _details(group: FailureGroup) -> str:
    title = f"{escape(group.step)}, {escape(group.exit_class)}: {count(group.count, 'task')}"
    when = moment(group.first)
    if group.count > 1:
        when = f"from {when} to {moment(group.last)}"
    hosts = some_of(group.hosts, more=" …")
    lines = [f'<p class="note">{escape(f"{when}, on {hosts}")}</p>']
    lines += [f"<p>{_range_text(found)}</p>" for found in group.ranges[:_MOST_RANGES]]
    if group.examples and group.examples[0].inputs:
        example = group.examples[0]
        name = f"sample {example.sample_id:,}" if example.sample_id is not None else f"task {example.task:,}"
        lines.append(f"<p>For example {name}: <code>{escape(_inputs(example.inputs))}</code></p>")
    if group.log_tail:
        lines.append(f"<pre>{escape(_tail(group.log_tail))}</pre>")
    return f'<div class="group"><h3>{title}</h3>{"".join(lines)}</div>'


def _range_text(found: InputRange) -> str:
    inside, outside = (percent(rate, 1.0) for rate in (found.rate_inside, found.rate_outside))
    chance = f"p = {number(found.p, 2)}" if found.p else "p < 10⁻³⁰⁰"
    return (
        f"With <b>{escape(found.input)}</b> from {number(found.low, 4)} to {number(found.high, 4)}, {inside} % "
        f"fail so; elsewhere {outside} % <span class='sub'>({chance})</span>."
    )


def _inputs(inputs: Mapping[str, Any]) -> str:
    texts = (
        f"{name} = {number(value, 6) if isinstance(value, float) else value}"
        for name, value in inputs.items()
    )
    return some_of(texts, _MOST_INPUTS, more=" …")


def _tail(text: str) -> str:
    lines = printable(text).splitlines()[-_TAIL_LINES:]
    return "\n".join(
        line if len(line) <= _TAIL_CHARACTERS else f"{line[:_TAIL_CHARACTERS]}…" for line in lines
    )
