"""`merlin cancel` ends a study on all workers and kills what runs of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from merlin.base.files import absolute_path
from merlin.base.text import count, short_name
from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, named_workspace_argument, steps_option
from merlin.cli.output import flush, print_json, remark
from merlin.errors import (
    ExecutionError,
    SchedulerRefusedError,
    SchedulerUnreachableError,
    UsageError,
    command_line,
)

if TYPE_CHECKING:
    from merlin.execution.distributed.control import LiveChunk
    from merlin.workspace.directory import Workspace


@click.command(cls=ManyCommand)
@named_workspace_argument
@steps_option("--step", "--steps", help="Kill the tasks of these steps only; they count as failed.")
@json_option
def cancel(workspace: Path, steps: tuple[str, ...], as_json: bool) -> None:
    """End the study in WORKSPACE, and kill what runs of it, batch jobs of its steps included.

    It ends on all workers, or in the command of this machine that runs it. Shows what ran before and what is left;
    exits with 1 if anything survives. The workers stay, and what has ended stays in the ledger: merlin restart goes
    on from there.

    A WORKSPACE that was deleted or moved is named by the path that it had.
    """
    if not workspace.exists():
        _cancel_removed(workspace, steps, as_json)
    from merlin.api.cancelling import cancel_on_workers, end_runs_here
    from merlin.execution.distributed.control import CancelReport
    from merlin.views.live import last_on_workers, published_members
    from merlin.workspace.directory import shown_together

    opened = _open(workspace)
    opened.plan.check_steps(steps, also={instance.id for instance in opened.plan.instances})
    ended = [] if steps else end_runs_here(shown_together(opened))
    # of a study that has ended on workers, chunks may have survived
    studies = published_members(opened) or ([] if ended else last_on_workers(opened))
    reports, troubles = list[CancelReport](), list[ExecutionError]()
    for study in studies:
        try:
            reports.append(cancel_on_workers(study, steps or None, remark))
        except (SchedulerUnreachableError, SchedulerRefusedError) as error:
            troubles.append(error)
    if troubles:  # the others have not waited for these
        raise troubles[0]
    num_jobs = sum(report.num_jobs for report in reports)
    before = [chunk for report in reports for chunk in report.before]
    after = [chunk for report in reports for chunk in report.after]
    if as_json or studies:
        _show(opened.path, before, after, num_jobs, as_json, runs=ended)
    if not as_json:
        _conclude(opened, [*ended, *studies], steps, after)
    sys.exit(1 if after else 0)


def _cancel_removed(path: Path, steps: tuple[str, ...], as_json: bool) -> NoReturn:
    """End what workers have of a workspace that is gone. Raises UsageError if that is nothing."""
    from merlin.config.load import find_config
    from merlin.execution.distributed.control import cancel_removed

    config = find_config()
    if config is None or steps:
        raise UsageError(f"{path} does not exist")
    root = absolute_path(path)
    reports = cancel_removed(root, config)
    after = [chunk for report in reports for chunk in report.after]
    _show(root, [chunk for report in reports for chunk in report.before], after, 0, as_json)
    if not as_json:
        print(
            f"ended the study of {root}, which does not exist any more; batch jobs of its steps, if any, go on"
        )
    sys.exit(1 if after else 0)


def _show(
    path: Path,
    before: Sequence[LiveChunk],
    after: Sequence[LiveChunk],
    num_jobs: int,
    as_json: bool,
    *,
    runs: Sequence[Workspace] = (),
) -> None:
    """Print what ran before and what is left; `runs` are those that commands of this machine had."""
    if as_json:
        facts = {"before": before, "after": after, "survivors": len(after), "batch_jobs": num_jobs}
        ended = [study.path for study in runs]
        print_json({"workspace": path, **facts, "ended_runs": ended, "exit_code": 1 if after else 0})
        return
    if num_jobs:
        print(f"cancelled {count(num_jobs, 'batch job')}")
    print(f"before: {_listed(before)}")
    print(f"after:  {_listed(after)}")
    flush()


def _open(path: Path) -> Workspace:
    """The workspace; a spec will not do, because it may have many."""
    from merlin.cli.find import find_workspace

    found = find_workspace(path)
    if path.is_dir():
        return found
    raise UsageError(
        f"{path} is a spec; name the workspace to cancel, perhaps: {command_line('cancel', found.path)}"
    )


def _conclude(
    opened: Workspace, studies: Sequence[Workspace], steps: tuple[str, ...], after: Sequence[LiveChunk]
) -> None:
    from merlin.status.snapshot import take_snapshot

    what = f"step {', '.join(steps)}" if steps else "the study"
    if not studies:
        print(f"{opened.path} does not run; there is nothing to cancel")
    elif not steps and not any(take_snapshot(study).totals.missing for study in studies):
        print(f"every task of {opened.path} had ended already; there was nothing to cancel")
    elif after:
        remark(f"not all of {what} has ended; look at these hosts, then cancel again")
    else:
        go_on = command_line("restart", opened.path, *(("--failed",) if steps else ()))
        print(f"cancelled {what} in {opened.path}; go on with: {go_on}")


def _listed(running: Sequence[LiveChunk]) -> str:
    """ "2 chunks run\\n  simulate [0, 500) on node1 (sim.node1)"."""
    if not running:
        return "nothing runs"
    verb = "runs" if len(running) == 1 else "run"
    return "\n".join([f"{count(len(running), 'chunk')} {verb}", *map(_line, running)])


def _line(chunk: LiveChunk) -> str:
    """A chunk; if its worker does not answer, with the warning that the chunk may still run."""
    worker = short_name(chunk.worker)
    doubt = ""
    if chunk.silent_s is not None:
        doubt = f": not heard of for {chunk.silent_s:.0f} s, it may still run on {chunk.host}"
    return f"  {chunk.instance} [{chunk.lo}, {chunk.hi})  on {chunk.host} ({worker}){doubt}"
