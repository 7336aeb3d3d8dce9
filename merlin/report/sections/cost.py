"""What the study has cost: core-hours by step, and what was of no use by cause."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from merlin.base.page.table import table
from merlin.base.text import core_time, in_core_units, percent
from merlin.report.facts import ReportFacts, moment
from merlin.views.allocation_cost import AllocationCost
from merlin.views.cost import StepCost, StudyCost, wasted_by_cause

_MOST_JOBS = 30
_LOOKS = {
    "ok": "ok",
    "failed": "failed",
    "retried": "retried",
    "interrupted": "missing",
    "run again": "filtered",
    "between tasks": "between",
    "idle": "idle",
}
_MEANINGS = {
    "failed": "tasks that failed and did not run again",
    "retried": "tries after which the task ran again",
    "interrupted": "cut off by the walltime or a stop",
    "run again": "tasks that had ended ok, and were run again or put aside by an update",
    "between tasks": "workers that had tasks: to start them and to collect what they wrote",
    "idle": "workers that waited for work, or were lost with it",
}


def cost(facts: ReportFacts) -> str:
    """A bar of all that was held, its parts, the steps, and the allocations."""
    found = facts.cost
    if not found.held_h:
        return ""
    return "\n".join([_bar(found), _causes(found), _steps(found), _allocations(found.allocations)])


def _bar(found: StudyCost) -> str:
    parts = {"ok": found.total.ok_h, **dict(wasted_by_cause(found))}
    pieces = "".join(
        f'<span class="{_LOOKS[name]}" style="flex-grow:{hours / found.held_h:.5f}"></span>'
        for name, hours in parts.items()
        if hours > 0
    )
    return (
        f'<p class="note">{core_time(found.held_h)} were held, '
        f"{percent(found.total.ok_h, found.held_h)} % of them by tasks that ended ok.</p>"
        f'<div class="bar tall" aria-hidden="true">{pieces}</div>'
    )


def _causes(found: StudyCost) -> str:
    unit, _ = in_core_units(0.0, found.held_h)
    named = [("ok", found.total.ok_h, "tasks that ended ok")]
    named += [(name, hours, _MEANINGS[name]) for name, hours in wasted_by_cause(found)]
    rows = [
        [
            f'<span class="dot {_LOOKS[name]}"></span>{name}',
            f'<span class="why">{meaning}</span>',
            in_core_units(hours, found.held_h)[1],
            f"{percent(hours, found.held_h)} %",
        ]
        for name, hours, meaning in named
        if hours > 0
    ]
    return table(("held by", "", unit, "share"), rows, right=(unit, "share"))


def _steps(found: StudyCost) -> str:
    unit, _ = in_core_units(0.0, found.held_h)
    has_gpus = bool(found.total.gpu_h)
    has_walltimes = found.total.requested_h is not None
    columns = ["step", "cores each", "runs", unit, "ok", "of no use"]
    columns += [unit.replace("core", "GPU")] * has_gpus + ["by walltimes"] * has_walltimes
    rows = []
    for step in (*found.steps, found.total):
        hours: list[float | None] = [step.used_h, step.ok_h, step.wasted_h]
        hours += [step.gpu_h] * has_gpus + [step.requested_h] * has_walltimes
        rows.append([*_named(step), *(_cell(each, found.held_h) if step.runs else "" for each in hours)])
    return table(columns, rows, right=columns[1:])


def _named(step: StepCost) -> list[str]:
    if not step.step:
        return ["all", "", f"{step.runs:,}"]
    return [f"<b>{escape(step.step)}</b>", f"{step.cores}", f"{step.runs:,}"]


def _cell(hours: float | None, most_h: float) -> str:
    return "" if hours is None else in_core_units(hours, most_h)[1]


def _allocations(jobs: Sequence[AllocationCost]) -> str:
    if not jobs:
        return ""
    shown = jobs[-_MOST_JOBS:]
    rows = [
        [
            escape(f"{job.scheduler} {job.job}"),
            f"{job.nodes}",
            moment(job.started),
            *(
                "" if hours is None else f"{hours:.3g}"
                for hours in (job.requested_node_h, job.held_node_h, job.idle_node_h)
            ),
            escape(job.state),
        ]
        for job in shown
    ]
    columns = ("allocation", "nodes", "began", "node-hours asked", "held", "idle", "is")
    note = (
        f'<p class="note">The last {len(shown)} of {len(jobs)} allocations</p>'
        if len(shown) < len(jobs)
        else ""
    )
    return note + table(columns, rows, right=("nodes", "node-hours asked", "held", "idle"))
