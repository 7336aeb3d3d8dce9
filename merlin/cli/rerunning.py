"""Shows which tasks would run again, asks, and runs them; `rerun` and `failures --rerun` share it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from merlin.api.left_to_run import refuse_published
from merlin.base.text import count
from merlin.cli import execute, publishing
from merlin.cli.output import print_json, print_table, remark
from merlin.errors import UsageError, WorkspaceError, command_line
from merlin.plan.pieces import Range, merged
from merlin.status.live import holder_of
from merlin.views.rerunning import Choice, Rerun, reruns
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.conductor import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunManner:
    """How tasks are run again, and whether somebody is asked first."""

    yes: bool
    dry: bool
    local: bool
    num_workers: int | None
    as_json: bool


def run_again(workspace: Workspace, choice: Choice, how: RerunManner) -> int:
    """Show, ask, and run; returns the exit code. Raises UsageError if nobody can be asked."""
    found = reruns(workspace, choice)
    if not found:
        return _nothing(workspace, how)
    if how.dry:
        _show_dry(found, how)
        return 0
    config = _broker(workspace, how)
    for rerun in found:
        if holder := holder_of(rerun.workspace):
            raise WorkspaceError(
                f"{rerun.workspace.path} is in use by a live run ({holder}); wait for it, or stop it"
            )
    if not how.as_json:
        _show(found)
    if not how.yes:
        _ask(found)
    options = [_options(rerun, how) for rerun in found]
    return _run(found, options, config, how)


def _broker(workspace: Workspace, how: RerunManner) -> Config | None:
    from merlin.plan.job_policy import needs_no_workers

    local = how.local or needs_no_workers(workspace.plan.instances)
    return publishing.broker_for(workspace.path, local=local, num_workers=how.num_workers)


def _options(rerun: Rerun, how: RerunManner) -> RunOptions:
    from merlin.execution.conductor import RunOptions

    if rerun.workspace.samples_may_change:
        rerun.workspace.samples()  # refuses now what the first chunk would refuse later
    return RunOptions(workers=how.num_workers, again=rerun.again)


def _run(
    found: Sequence[Rerun], options: Sequence[RunOptions], config: Config | None, how: RerunManner
) -> int:
    """Study by study, as `merlin restart` does it."""
    from merlin.views.ways_to_start import jobs_command

    reports: list[dict[str, Any]] = []
    for rerun, option in zip(found, options, strict=True):
        study = rerun.workspace
        if config is None:
            refuse_published(study, remark)
            report = execute.run_to_end(study, option)
        else:
            workers = command_line("run-workers", study.path)
            jobs = jobs_command(study.plan, study.path)
            report = publishing.hand_over(study, config, option, workers_command=workers, jobs_command=jobs)
        reports.append({**report, "rerun": _facts(rerun)})
        if not how.as_json:
            (execute.show_report if config is None else publishing.show_report)(report)
        if report["exit_code"] == execute.EXIT_INTERRUPTED:
            break
    code = max(int(report["exit_code"]) for report in reports)
    if how.as_json:
        first, *others = reports
        print_json({**first, "extensions": others, "exit_code": code} if others else first)
    return code


def _facts(rerun: Rerun) -> dict[str, Any]:
    return {
        "workspace": rerun.workspace.path,
        "tasks": rerun.num_tasks,
        "steps": [asdict(step) for step in rerun.steps],
        "missing": rerun.missing,
        "ranges": rerun.again,
    }


def _nothing(workspace: Workspace, how: RerunManner) -> int:
    if how.as_json:
        print_json({"workspace": workspace.path, "rerun": [], "exit_code": 0})
    else:
        restart = command_line("restart", workspace.path)
        print(f"no task that has ended matches; {restart} runs those that have not")
    return 0


def _show_dry(found: Sequence[Rerun], how: RerunManner) -> None:
    if how.as_json:
        print_json({"rerun": [_facts(rerun) for rerun in found], "exit_code": 0})
    else:
        _show(found)


def _show(found: Sequence[Rerun]) -> None:
    for rerun in found:
        where = f" of {rerun.workspace.member}" if rerun.workspace.member else ""
        print(f"{count(rerun.num_tasks, 'task')}{where} would run again:")
        rows = [(step.step, f"{step.chosen:,}", f"{step.others:,}") for step in rerun.steps]
        print_table(("step", "chosen", "because of them"), rows, right=("chosen", "because of them"))
        if rerun.missing:
            have = "has" if rerun.missing == 1 else "have"
            print(f"beside them {count(rerun.missing, 'task')} will run that {have} no outcome yet")


def _ask(found: Sequence[Rerun]) -> None:
    if not (sys.stdin and sys.stdin.isatty()):
        raise UsageError("rerun asks before it forgets outcomes, and nobody can answer here; add --yes")
    num = sum(rerun.num_tasks for rerun in found)
    click.confirm(f"Forget how {count(num, 'task')} ended, and run them again?", abort=True, err=True)


def parse_samples(text: str) -> tuple[Range, ...]:
    """The sample ids in "3,7-9" as half-open ranges. Raises UsageError."""
    ranges = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise UsageError(f"--samples takes ids and ranges of ids, as in 3,7-9; {word!r} is neither")
        ranges.append((int(first), int(last) + 1))
    return tuple(merged(ranges))
