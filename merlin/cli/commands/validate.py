"""`merlin validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, parse_assignments, spec_argument, spec_options
from merlin.cli.output import print_json

if TYPE_CHECKING:
    from merlin.workspace.options import StudyOptions


@click.command(cls=ManyCommand)
@spec_argument
@spec_options
@json_option
def validate(spec: Path, assignments: tuple[str, ...], options: StudyOptions, as_json: bool) -> None:
    """Check SPEC and show every problem with its line and column.

    Exits with 0 when the spec can run (warnings allowed) and with 2 when it cannot. Nothing is written.
    """
    from merlin.execution.try_import import import_findings
    from merlin.views.forecast import UNKNOWN, forecast
    from merlin.workspace.checking import check_study

    plan, diagnostics = check_study(spec, parse_assignments(assignments), options, import_findings)
    num_errors = sum(d.severity == "error" for d in diagnostics)
    num_warnings = len(diagnostics) - num_errors
    summary: dict[str, Any] | None = None
    if plan is not None and not num_errors:
        summary = {
            "name": plan.name,
            "steps": len({i.step for i in plan.instances}),
            "instances": len(plan.instances),
            "tasks": forecast(plan).num_tasks,
        }
    if as_json:
        print_json({"spec": spec, "valid": not num_errors, "diagnostics": diagnostics, "summary": summary})
    else:
        for diagnostic in diagnostics:
            print(diagnostic.render())
        findings = f"{count(num_errors, 'error')}, {count(num_warnings, 'warning')}"
        print(f"{spec}: {'not valid' if num_errors else 'valid'}: {findings}")
        if summary:
            steps, instances = count(summary["steps"], "step"), count(summary["instances"], "step instance")
            tasks = f"tasks {UNKNOWN}" if summary["tasks"] is None else count(summary["tasks"], "task")
            print(f"{summary['name']}: {steps}, {instances}, {tasks}")
    sys.exit(2 if num_errors else 0)
