"""Runs a prepared workspace with a display, then prints how it ended; `run` and `restart` share it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.api.left_to_run import has_work
from merlin.base.text import count, duration, printable
from merlin.cli.advice import next_commands, on_failed_input, reconciled
from merlin.cli.output import flush, print_table, remark
from merlin.errors import ExecutionError, command_line
from merlin.execution.events import RunSummary
from merlin.plan.outcome_counts import OUTCOMES
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.execution.conductor import RunOptions

MAX_GROUPS = 3  # of failures shown at the end
MAX_TAIL_LINES = 3  # of their logs
EXIT_INTERRUPTED = 130


def run_to_end(workspace: Workspace, options: RunOptions) -> dict[str, Any]:
    """Run what is missing in `workspace`, with a display; returns the report.

    Its exit code is 0 when every task ended ok, 1 when one failed, was skipped or is missing, 130 after Ctrl-C.
    """
    from merlin.cli.progress import choose_display
    from merlin.execution.embedded import run_embedded

    try:
        with choose_display() as display:
            summary = run_embedded(workspace, options, display)
        workspace.require_there()
    except ExecutionError:
        remark(f"resume with: {command_line('restart', workspace.path)}")
        raise
    return make_report(workspace, summary)


def run_the_rest(workspace: Workspace, options: RunOptions) -> dict[str, Any]:
    """`run_to_end`, unless nothing is left to run; then the report has a note that says so."""
    if has_work(workspace, options.again):
        return run_to_end(workspace, options)
    totals = take_snapshot(workspace).totals
    numbers = {key: getattr(totals, key) for key in OUTCOMES}
    summary = RunSummary(**numbers, stop_reason="", seconds=0.0, per_step={})
    return {**make_report(workspace, summary), "note": "nothing is left to run"}


def make_report(workspace: Workspace, summary: RunSummary) -> dict[str, Any]:
    """Everything that is reported at the end, read back from the ledger and the data sets."""
    from merlin.status.failures import group_failures

    snapshot = take_snapshot(workspace)
    keys = ("step", *OUTCOMES, "on_failed_input")
    return {
        "workspace": str(workspace.path),
        "name": workspace.plan.name,
        "exit_code": _exit_code(summary),
        "seconds": summary.seconds,
        "stop_reason": summary.stop_reason,
        **{key: getattr(summary, key) for key in OUTCOMES},
        "on_failed_input": snapshot.totals.on_failed_input,
        "steps": [{key: getattr(step, key) for key in keys} for step in snapshot.steps],
        "failures": group_failures(workspace, with_ranges=False)[:MAX_GROUPS] if summary.failed else [],
        "data_sets": [_data_set(Path(found.path)) for found in snapshot.data_sets],
    }


def _exit_code(summary: RunSummary) -> int:
    from merlin.execution.embedded import INTERRUPTED

    if summary.is_success:
        return 0
    return EXIT_INTERRUPTED if summary.stop_reason == INTERRUPTED else 1


def _data_set(folder: Path) -> dict[str, Any]:
    """Facts about a finished data set."""
    from merlin.shards.describe import describe

    facts = describe(folder)
    return {
        "path": str(folder),
        "line": facts.line,
        "rows": facts.data.num_rows,
        "samples": facts.data.counts,
        "shards": len(facts.data.shards),
        "size_bytes": facts.data.size_bytes,
        "fields": [field.info.name for field in facts.fields],
        "digest": facts.data.content_digest,
    }


def show_report(report: dict[str, Any], *, names_workspace: bool = True) -> None:
    """Print a report for people, on stdout."""
    if report.get("note"):
        _show_note(report)
        return
    print(f"\nworkspace {report['workspace']}\n" if names_workspace else "")
    rows = [[step["step"], *(f"{step[key]:,}" for key in OUTCOMES)] for step in report["steps"]]
    print_table(("step", *OUTCOMES), rows, right=OUTCOMES)
    print(f"\ntasks: {reconciled(report)}   ({duration(report['seconds'])})")
    if line := on_failed_input((step["step"], step["on_failed_input"]) for step in report["steps"]):
        print(line)
    for group in report["failures"]:
        print(f"\n{group.step}: {count(group.count, 'task')} failed: {printable(group.cause)}")
        for line in printable(group.log_tail).splitlines()[-MAX_TAIL_LINES:]:
            print(f"    {line}")
    if report["failures"]:
        print(f"\nall failures, with logs: {command_line('failures', report['workspace'])}")
    for data_set in report["data_sets"]:
        print(f"\ndata set {data_set['line']}")
        print(f"    samples: {data_set['samples']}")
        if not data_set["rows"] and data_set["samples"].filtered:
            again = command_line("run", "SPEC", "--update", report["workspace"])
            print(f"    its filter (valid) let no sample pass; when it is mended: {again}")
        elif not data_set["rows"]:
            again = command_line("restart", report["workspace"], "--failed")
            update = command_line("run", "SPEC", "--update", report["workspace"])
            print("    it is empty, because no sample ended ok. When a program is mended:")
            print(f"    {again}; when the spec is: {update}")
    flush()
    if report["stop_reason"] and report["exit_code"] != EXIT_INTERRUPTED:
        remark(f"stopped early: {report['stop_reason']}")
    if report["missing"]:
        has_failed = report["failed"] > 0
        for line in next_commands(report["workspace"], report["stop_reason"], has_failed=has_failed):
            remark(line)


def _show_note(report: dict[str, Any]) -> None:
    """Nothing was run: say so, and what could be."""
    print(f"workspace {report['workspace']}\n{report['note']}; tasks: {reconciled(report)}")
    if report["failed"]:
        again = command_line("restart", report["workspace"], "--failed")
        print(f"run those that failed again with: {again}")
    flush()
