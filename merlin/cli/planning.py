"""Shows what is wrong with a spec, and what it will run and write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.text import core_time, count, size
from merlin.cli.extending import preview
from merlin.cli.options import check_update, parse_assignments
from merlin.cli.output import print_json, print_table, warn
from merlin.cli.reading_samples import reading_shown
from merlin.config.study_places import remembered
from merlin.errors import Diagnostic, UsageError, command_line
from merlin.execution.shell_syntax import syntax_findings
from merlin.execution.try_import import import_findings
from merlin.plan.plan import Plan
from merlin.views.earlier_run import TimeForecast, time_forecast
from merlin.views.forecast import UNKNOWN, Forecast, forecast
from merlin.views.graph import Node, graph_of, listing, mermaid
from merlin.workspace.checking import check_study, load_checked
from merlin.workspace.directory import workspace_paths
from merlin.workspace.launchers import launch_warnings
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only

if TYPE_CHECKING:
    from merlin.api.updating import UpdateOptions
    from merlin.spec.load import Spec

MAX_ROWS = 40  # of the table of step instances


def show_problems(spec: Path, assignments: tuple[str, ...], options: StudyOptions, as_json: bool) -> int:
    """Print every problem of a spec; returns 2 if it cannot run, else 0."""
    with reading_shown():
        plan, diagnostics = check_study(spec, parse_assignments(assignments), options, _findings_before_start)
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
    code = 2 if num_errors else 0
    if as_json:
        print_json({"spec": spec, "valid": not num_errors, "diagnostics": diagnostics, "summary": summary})
        return code
    for diagnostic in diagnostics:
        print(diagnostic.render())
    findings = f"{count(num_errors, 'error')}, {count(num_warnings, 'warning')}"
    print(f"{spec}: {'not valid' if num_errors else 'valid'}: {findings}")
    if summary:
        steps, instances = count(summary["steps"], "step"), count(summary["instances"], "step instance")
        tasks = f"tasks {UNKNOWN}" if summary["tasks"] is None else count(summary["tasks"], "task")
        print(f"{summary['name']}: {steps}, {instances}, {tasks}")
    return code


def _findings_before_start(spec: Spec) -> list[Diagnostic]:
    """What would be found only when tasks or workers start."""
    found = [*import_findings(spec), *syntax_findings(spec)]
    if any(worker.args for worker in spec.document.merlin.resources.workers.values()):
        from merlin.execution.distributed.worker_args import worker_args_findings

        found += worker_args_findings(spec)
    return found


def show_plan(
    spec: Path,
    assignments: tuple[str, ...],
    options: StudyOptions,
    as_json: bool,
    study: Path | None,
    only_new: bool,
    updated: Path | None,
    keep: tuple[str, ...],
    changed_code: bool,
    as_mermaid: bool,
) -> None:
    """Print what a spec, or the next extension of `study` by it, will run and write."""
    if as_json and as_mermaid:
        raise UsageError("--json and --mermaid exclude each other; choose one")
    check_update(updated, study, only_new=only_new, keep=keep, changed_code=changed_code)
    loaded = load_checked(spec, parse_assignments(assignments), options)
    if updated is not None:
        from merlin.api.updating import UpdateOptions
        from merlin.cli.updating import preview_update

        how = UpdateOptions(keep=keep, rerun_code=changed_code)
        command = _command_of_update(spec, assignments, options, updated, how)
        preview_update(loaded, options, updated, how, as_json=as_json, next_command=command)
        return
    if study is None:
        made = plan_only(loaded, options)
    else:
        made = preview(loaded, options, study, only_new=only_new, as_json=as_json)
    warn([*loaded.warnings, *launch_warnings(loaded, made)])
    facts, nodes = forecast(made), graph_of(made)
    if as_mermaid:
        print(mermaid(nodes))
        return
    earlier = workspace_paths(loaded, remembered(spec, os.environ)) if study is None else [study]
    hours = time_forecast(made, earlier)
    if as_json:
        print_json({"spec": spec, "forecast": facts, "time": hours, "graph": nodes})
    else:
        _show(made, facts, nodes)
        print(f"\n{_time(hours)}")


def _command_of_update(
    spec: Path, assignments: tuple[str, ...], options: StudyOptions, study: Path, how: UpdateOptions
) -> str:
    """The command that does what was shown."""
    words: list[object] = ["run", spec, "--update", study]
    words += ["--keep", *how.keep] if how.keep else []
    words += ["--changed-code"] if how.rerun_code else []
    words += ["--vars", *assignments] if assignments else []
    words += ["--samplesfile", options.samples_file] if options.samples_file is not None else []
    words += ["--pgen", options.pgen] if options.pgen else []
    words += [word for text in options.pargs for word in ("--pargs", text)]
    return command_line(*words)


def _show(made: Plan, facts: Forecast, nodes: list[Node]) -> None:
    print(f"{facts.name}\n")
    if made.extension and made.samples is not None:
        last = f" to {made.samples.first + made.samples.num - 1:,}" if made.samples.num else " on"
        print(f"samples {made.samples.first:,}{last} of the study, in {made.workspace}\n")
    print("\n".join(listing(nodes)), end="\n\n")
    rows = []
    for i in facts.instances[:MAX_ROWS]:
        numbers = (i.num_tasks, i.num_directories, i.num_files)
        shown = ("unknown" if n is None else f"{n:,}" for n in numbers)
        rows.append((i.id, i.kind, *shown, ", ".join(i.waits_for)))
    columns = ("step instance", "kind", "tasks", "directories", "files", "waits for")
    print_table(columns, rows, right=("tasks", "directories", "files"))
    if hidden := len(facts.instances) - len(rows):
        print(f"… and {count(hidden, 'more step instance')} (--json shows all)")
    if facts.num_samples is not None:
        print(f"\n{count(facts.num_samples, 'sample')} of {', '.join(facts.columns) or 'unnamed columns'}")
    elif facts.columns:
        print(f"\nsamples of {', '.join(facts.columns)}: {UNKNOWN}")
    print(f"\n{_totals(facts)}\n(files that the commands of the steps write are not counted)")
    for line in _amounts(facts, made):
        print(line)


def _time(hours: TimeForecast | None) -> str:
    if hours is None:
        return "core-hours: unknown before a study of this spec has run here"
    parts = [f"{step} {core_time(spent)}" for step, spent in hours.steps.items() if spent]
    unknown = [step for step, spent in hours.steps.items() if spent is None]
    lacking = f"; not known of {', '.join(unknown)}" if unknown else ""
    return f"about {core_time(hours.core_hours)}, as in {hours.workspace}: {', '.join(parts)}{lacking}"


def _amounts(facts: Forecast, made: Plan) -> Iterator[str]:
    """What the data sets take on the disk, and the batch jobs that steps submit."""
    if facts.num_bytes:
        fields = [f for i in made.instances if i.aggregate is not None for f in i.aggregate.fields]
        uncounted = any(each.ragged or each.is_text for each in fields)
        least = "at least " if uncounted else ""
        yield f"data sets: {least}{size(facts.num_bytes)} before compression"
    if facts.num_jobs:
        asked = f", which ask for {facts.node_hours:,.4g} node-hours" if facts.node_hours else ""
        yield f"{count(facts.num_jobs, 'batch job')}{asked}"


def _totals(facts: Forecast) -> str:
    numbers = {
        ("step instance", "step instances"): len(facts.instances),
        ("task", "tasks"): facts.num_tasks,
        ("directory", "directories"): facts.num_directories,
        ("file", "files"): facts.num_files,
        ("shard", "shards"): facts.num_shards,
    }
    known = ", ".join(count(n, *words) for words, n in numbers.items() if n is not None)
    open_ones = ", ".join(plural for (_, plural), n in numbers.items() if n is None)
    return f"{known}\n{open_ones}: {UNKNOWN}" if open_ones else known
