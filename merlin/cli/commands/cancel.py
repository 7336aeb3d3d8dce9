"""`merlin cancel`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, workspace_argument
from merlin.errors import UsageError, WorkspaceError, command_line

if TYPE_CHECKING:
    from merlin.execution.distributed.control import Alive
    from merlin.workspace.directory import Workspace


@click.command(cls=ManyCommand)
@workspace_argument
@click.option(
    "--step", "--steps", "steps", cls=ManyOption, leaves_last=True, metavar="STEP …",
    help="Kill the tasks of these steps only; they count as failed.",
)  # fmt: skip
@json_option
def cancel(workspace: Path, steps: tuple[str, ...], as_json: bool) -> None:
    """End the study in WORKSPACE on all workers, and kill what runs of it.

    Shows what ran before and what is left; exits with 1 if anything survives. The workers stay, and what has
    ended stays in the ledger: merlin restart goes on from there.
    """
    from merlin.cli.output import flush, print_json
    from merlin.config.load import require_config
    from merlin.execution.distributed.control import cancel as cancel_study
    from merlin.status.snapshot import take_snapshot
    from merlin.workspace.directory import shown_together

    opened = _open(workspace)
    studies = _published(shown_together(opened))
    for study in studies:
        _refuse_local(study)
    reports = [cancel_study(study, require_config(), steps or None) for study in studies]
    before = [chunk for report in reports for chunk in report.before]
    after = [chunk for report in reports for chunk in report.after]
    code = 1 if after else 0
    if as_json:
        print_json({"workspace": opened.path, **_facts(before, after), "exit_code": code})
    else:
        print(f"before: {_listed(before)}")
        print(f"after:  {_listed(after)}")
        what = f"step {', '.join(steps)}" if steps else "the study"
        flush()
        if not steps and not any(take_snapshot(study).totals.missing for study in studies):
            print(f"every task of {opened.path} had ended already; there was nothing to cancel")
        elif code:
            print(f"not all of {what} has ended; look at these hosts, then cancel again", file=sys.stderr)
        else:
            again = ("--failed",) if steps else ()
            go_on = command_line("restart", opened.path, *again)
            print(f"cancelled {what} in {opened.path}; go on with: {go_on}")
    sys.exit(code)


def _published(studies: Sequence[Workspace]) -> Sequence[Workspace]:
    """Those of a study and its extensions that workers have; the study itself if there are none."""
    from merlin.ledger.replay import replay
    from merlin.status.snapshot import is_published

    found = [study for study in studies if is_published(replay(study.ledger_dir, study.plan))]
    return found or studies[:1]


def _open(path: Path) -> Workspace:
    """The workspace; a spec will not do, because it may have many."""
    from merlin.cli.find import find_workspace
    from merlin.workspace.directory import open_workspace

    if path.is_dir():
        return open_workspace(path)
    newest = find_workspace(path).path
    raise UsageError(
        f"{path} is a spec; name the workspace to cancel, perhaps: {command_line('cancel', newest)}"
    )


def _refuse_local(workspace: Workspace) -> None:
    """Raise WorkspaceError if a command runs the study itself: Ctrl-C there is the way to end it."""
    from merlin.status.live import is_live

    if is_live(workspace):
        owner = (workspace.info / "lock").read_text("utf-8", "replace").strip()
        raise WorkspaceError(
            f"{workspace.path} is run by a command of its own ({owner}), not by workers; press Ctrl-C there, "
            "or send it SIGTERM"
        )


def _facts(before: Sequence[Alive], after: Sequence[Alive]) -> dict[str, object]:
    return {"before": before, "after": after, "survivors": len(after)}


def _listed(running: Sequence[Alive]) -> str:
    """ "2 chunks run\\n  simulate [0, 500) on node1 (sim.node1)"."""
    from merlin.base.text import count

    if not running:
        return "nothing runs"
    lines = [
        f"\n  {r.instance} [{r.lo}, {r.hi})  on {r.host} ({r.worker.removeprefix('celery@')}){_doubt(r)}"
        for r in running
    ]
    verb = "runs" if len(running) == 1 else "run"
    return f"{count(len(running), 'chunk')} {verb}{''.join(lines)}"


def _doubt(chunk: Alive) -> str:
    """What is not known of a worker that does not answer."""
    if chunk.silent_s is None:
        return ""
    return f": not heard of for {chunk.silent_s:.0f} s, it may still run on {chunk.host}"
