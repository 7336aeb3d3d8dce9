"""Shows which tasks would run again, asks, and runs them; `rerun` and `failures --rerun` share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec import Struct

from merlin.api.left_to_run import refuse_changed_samples, refuse_running
from merlin.base.ranges import Range, merged
from merlin.base.records import to_plain
from merlin.base.text import count
from merlin.cli.output import can_ask, print_json, print_table
from merlin.cli.publishing import broker_for
from merlin.cli.running import Work, run_works, told
from merlin.errors import UsageError, command_line
from merlin.ledger.replay import replay
from merlin.plan.job_policy import needs_no_workers
from merlin.plan.reopen import Again
from merlin.status.live import holder_of
from merlin.status.run_events import is_published
from merlin.views.rerunning import Choice, Rerun, reruns
from merlin.workspace.directory import Workspace, shown_together


class RerunManner(Struct, frozen=True, kw_only=True):
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
    local = how.local or needs_no_workers(workspace.plan.instances)
    config = broker_for(workspace.path, local=local, num_workers=how.num_workers)
    refuse_running(rerun.workspace for rerun in found)
    if not how.as_json:
        _show(found)
    if not how.yes:
        _ask(found)
    refuse_changed_samples(rerun.workspace for rerun in found)
    works = [_work(rerun, how) for rerun in found]
    return told(run_works(works, config, as_json=how.as_json), as_json=how.as_json)


def _work(rerun: Rerun, how: RerunManner) -> Work:
    from merlin.execution.conductor import RunOptions

    options = RunOptions(workers=how.num_workers, again=Again(tasks=rerun.again))
    return Work(study=rerun.workspace, options=options, facts={"rerun": _facts(rerun)})


def _facts(rerun: Rerun) -> dict[str, Any]:
    return {
        "workspace": rerun.workspace.path,
        "tasks": rerun.num_tasks,
        "steps": [to_plain(step) for step in rerun.steps],
        "missing": rerun.missing,
        "ranges": rerun.again,
    }


def _nothing(workspace: Workspace, how: RerunManner) -> int:
    if how.as_json:
        print_json({"workspace": workspace.path, "rerun": [], "exit_code": 0})
    elif any(_runs(study) for study in shown_together(workspace)):
        print(f"no task that has ended matches; {workspace.path} runs, and goes on with those that have not")
    else:
        restart = command_line("restart", workspace.path)
        print(f"no task that has ended matches; {restart} runs those that have not")
    return 0


def _runs(study: Workspace) -> bool:
    """True if a command or workers have the study, by what this machine and its ledger know."""
    state = replay(study.ledger_dir, study.plan)
    return holder_of(study, state) is not None or is_published(state)


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
    if not can_ask():
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
