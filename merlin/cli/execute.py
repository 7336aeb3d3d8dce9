"""Runs a prepared workspace with a display, then prints how it ended; `run` and `restart` share it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from merlin.api.left_to_run import has_work, why_nothing
from merlin.base.text import count, duration, printable
from merlin.cli.advice import on_failed_input, reconciled
from merlin.cli.output import flush, print_table, remark
from merlin.errors import ExecutionError, NotHereError, command_line
from merlin.plan.outcome_counts import OUTCOMES, summed
from merlin.views.after_stop import next_commands
from merlin.views.run_report import EXIT_INTERRUPTED, RunReport, report_of, report_of_nothing
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.execution.conductor import RunOptions

MAX_TAIL_LINES = 3  # of the logs of failures


def run_the_rest(workspace: Workspace, options: RunOptions) -> RunReport:
    """Run what is missing in `workspace`, with a display; returns the report, with a note if nothing was left to run.

    Its exit code is 0 when every task ended ok, 1 when one failed, was skipped or is missing, 130 after Ctrl-C.
    """
    if not has_work(workspace, options.again):
        return report_of_nothing(workspace, why_nothing(workspace, options.again))
    from merlin.cli.progress import choose_display
    from merlin.execution.embedded import run_embedded

    try:
        with choose_display() as display:
            summary = run_embedded(workspace, options, display)
        workspace.require_there()
    except NotHereError:
        raise
    except ExecutionError:
        remark(f"resume with: {command_line('restart', workspace.path)}")
        raise
    return report_of(workspace, summary)


@contextmanager
def resumable(workspace: Path) -> Iterator[None]:
    """Say how to go on if a signal ends this process before the run takes over the signals."""
    hint = f"resume with: {command_line('restart', workspace)}"

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # the terminal is closed
            os.write(2, f"{hint}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ours = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for n in ours:
        signal.signal(n, end)
    try:
        yield
    except KeyboardInterrupt:
        remark(hint)
        raise
    finally:
        for n in ours:
            signal.signal(n, signal.SIG_DFL)


def show_report(report: RunReport, *, names_workspace: bool = True) -> None:
    """Print a report for people, on stdout."""
    if report.note:
        _show_note(report, report.note)
        return
    print(f"\nworkspace {report.workspace}\n" if names_workspace else "")
    rows = [[step.step, *(f"{getattr(step, key):,}" for key in OUTCOMES)] for step in report.steps]
    print_table(("step", *OUTCOMES), rows, right=OUTCOMES)
    print(f"\ntasks: {reconciled(summed([report]))}   ({duration(report.seconds)})")
    if line := on_failed_input((step.step, step.on_failed_input) for step in report.steps):
        print(line)
    for group in report.failures:
        print(f"\n{group.step}: {count(group.count, 'task')} failed: {printable(group.cause)}")
        for line in printable(group.log_tail).splitlines()[-MAX_TAIL_LINES:]:
            print(f"    {line}")
    if report.failures:
        others = sum(step.failed for step in report.steps) - sum(group.count for group in report.failures)
        if others > 0:
            print(f"\nand {count(others, 'other failed task')}")
        print(f"\nall failures, with logs: {command_line('failures', report.workspace)}")
    for data_set in report.data_sets:
        print(f"\ndata set {data_set.line}")
        print(f"    samples: {data_set.samples}")
        if not data_set.rows and data_set.samples.filtered:
            again = command_line("run", "SPEC", "--update", report.workspace)
            print(f"    its filter (valid) let no sample pass; when it is mended: {again}")
        elif not data_set.rows:
            again = command_line("restart", report.workspace, "--failed")
            update = command_line("run", "SPEC", "--update", report.workspace)
            print("    it is empty, because no sample ended ok. When a program is mended:")
            print(f"    {again}; when the spec is: {update}")
    flush()
    if report.stop_reason and report.exit_code != EXIT_INTERRUPTED:
        remark(f"stopped early: {report.stop_reason}")
    if report.missing:
        has_failed = report.failed > 0
        for line in next_commands(report.workspace, report.stop_reason, has_failed=has_failed):
            remark(line)


def _show_note(report: RunReport, note: str) -> None:
    """Nothing was run: say so, and what could be."""
    print(f"workspace {report.workspace}\n{note}\ntasks: {reconciled(summed([report]))}")
    if report.failed:
        again = command_line("restart", report.workspace, "--failed")
        print(f"run those that failed again with: {again}")
    flush()
