"""`merlin cost` shows the core-hours of a study by step, and those that were of no use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.records import to_plain
from merlin.base.text import percent
from merlin.cli.options import json_option, spec_or_workspace_argument
from merlin.cli.output import print_json, print_table
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.views.cost import StepCost, StudyCost


@click.command()
@spec_or_workspace_argument
@click.option("--rate", type=click.FloatRange(min=0), metavar="PRICE", help="Of a core-hour, for prices.")
@json_option
def cost(spec_or_workspace: Path, rate: float | None, as_json: bool) -> None:
    """Show what a study and its extensions have cost: cores of a task times the time that it ran.

    Waste is told by cause: tasks that failed, tries before the last, what was interrupted, what was run again, and
    workers that were there without work. Batch jobs of workers are counted in node-hours.
    """
    if rate is not None and not math.isfinite(rate):
        raise UsageError(f"--rate is the price of a core-hour, a number, not {rate}")
    from merlin.cli.find import find_workspace
    from merlin.views.cost import study_cost

    found = study_cost(find_workspace(spec_or_workspace))
    if as_json:
        print_json(_document(found, rate))
    else:
        _show(found, rate)


def _document(found: StudyCost, rate: float | None) -> dict[str, Any]:
    from merlin.views.cost import wasted_by_cause

    document: dict[str, Any] = {
        **to_plain(found),
        "held_h": found.held_h,
        "wasted_h": dict(wasted_by_cause(found)),
    }
    if rate is not None:
        document |= {"rate": rate, "price": rate * found.held_h, "price_used": rate * found.total.used_h}
    return {**document, "exit_code": 0}


_PARTS = ("ok", "failed", "retried", "interrupted", "run again")
SMALL_H = 0.1  # core-hours: what costs less is shown in seconds


class _Unit:
    """Hours, or seconds for what is small."""

    def __init__(self, total_h: float) -> None:
        self.name, self._scale = ("hours", 1.0) if total_h >= SMALL_H else ("seconds", 3600.0)

    def shown(self, hours: float) -> str:
        """ "1,234", "12.3", "0.012"; "0" for nothing."""
        value = hours * self._scale
        if not value:
            return "0"
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-3 else f"{value:.1e}"


def _show(found: StudyCost, rate: float | None) -> None:
    unit = _Unit(found.held_h)
    columns = ["step", "cores", "runs", f"core-{unit.name}", *_PARTS]
    if any(step.gpu_h for step in found.steps):
        columns.append(f"GPU-{unit.name}")
    if found.total.requested_h is not None:
        columns.append("requested")
    if rate is not None:
        columns.append("price")
    lines = [_line(step, columns, rate, unit) for step in (*found.steps, found.total)]
    print_table(columns, lines, right=columns[1:])
    _show_waste(found, rate, unit)
    _show_allocations(found)


def _line(step: StepCost, columns: list[str], rate: float | None, unit: _Unit) -> list[str]:
    values = {
        "step": step.step or "all",
        "cores": str(step.cores or ""),
        "runs": f"{step.runs:,}",
        f"core-{unit.name}": unit.shown(step.used_h),
        "ok": unit.shown(step.ok_h),
        "failed": unit.shown(step.failed_h),
        "retried": unit.shown(step.retried_h),
        "interrupted": unit.shown(step.interrupted_h),
        "run again": unit.shown(step.rerun_h),
        f"GPU-{unit.name}": unit.shown(step.gpu_h),
        "requested": "" if step.requested_h is None else unit.shown(step.requested_h),
        "price": "" if rate is None else f"{rate * step.used_h:,.2f}",
    }
    return [values[column] for column in columns]


def _show_waste(found: StudyCost, rate: float | None, unit: _Unit) -> None:
    from merlin.views.cost import wasted_by_cause

    price = "" if rate is None else f", which cost {rate * found.held_h:,.2f}"
    print(f"\nworkers were there for {unit.shown(found.held_h)} core-{unit.name}{price}")
    if not found.held_h:
        return
    useful = percent(found.total.ok_h, found.held_h)
    wasted = [
        f"{cause} {percent(h, found.held_h)}%"
        for cause, h in wasted_by_cause(found)
        if h >= 5e-4 * found.held_h
    ]
    print(f"of these {useful}% went into tasks that are ok; the rest: {', '.join(wasted) or 'nothing'}")


def _show_allocations(found: StudyCost) -> None:
    if not found.allocations:
        return
    rows = [
        (
            job.job,
            job.state,
            job.nodes,
            _or_unknown(job.requested_node_h),
            _or_unknown(job.held_node_h),
            _or_unknown(job.idle_node_h),
            _Unit(1.0).shown(job.used_h),
        )
        for job in found.allocations
    ]
    columns = ("job", "state", "nodes", "requested", "held", "without a task", "core-hours of tasks")
    print("\nbatch jobs of workers, in node-hours")
    print_table(columns, rows, right=columns[2:])


def _or_unknown(value: float | None) -> str:
    return "?" if value is None else _Unit(1.0).shown(value)
