"""`merlin monitor`."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import (
    json_option,
    parse_assignments,
    spec_or_workspace_argument,
    task_server_option,
    vars_option,
)
from merlin.errors import UsageError, command_line

if TYPE_CHECKING:
    from merlin.cli.watch import Source, Watch
    from merlin.workspace.directory import Workspace

LIVE_S, LINES_S = 0.5, 2.0  # between two looks, for bars and for lines
NOTICE_S = 5.0  # beyond a beat of the workers: by then they have seen that Redis lost the study


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.option(
    "--steps", "--step", "steps", cls=ManyOption, leaves_last=True, metavar="STEP …",
    help="Only these; ends when they have ended.",
)  # fmt: skip
@vars_option
@click.option(
    "--sleep", "sleep_s", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Between two looks."
)
@task_server_option
@json_option
def monitor(
    spec_or_workspace: Path,
    steps: tuple[str, ...],
    assignments: tuple[str, ...],
    sleep_s: float | None,
    task_server: str,
    as_json: bool,
) -> None:
    """Show a study while it runs, and end with it; exit codes as for merlin run.

    Says when no worker is there for what is ready, waits through trouble with the servers, and publishes the
    study again when Redis has lost it. Ctrl-C ends only the display. For a spec, the newest workspace is shown; of a
    study with extensions, the last one that is not finished; and then, one after another, all your other studies that
    are not finished and use its queues, such as those that its steps have started. The worst exit code is given.
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.output import print_json
    from merlin.cli.sources import next_on_queues
    from merlin.config.load import find_config

    workspace = newest(find_workspace(spec_or_workspace, variables=parse_assignments(assignments)))
    chosen = chosen_steps(workspace, steps)
    queues = {i.queue for i in workspace.plan.instances if not chosen or i.step in chosen}
    reports = [watch_to_end(workspace, choose_source(workspace), chosen, sleep_s, as_json=as_json)]
    config = find_config() if spec_or_workspace.is_file() and is_for_workers(workspace) else None
    if config is not None:
        seen = {workspace.plan.study_id}
        while (found := next_on_queues(config, queues, seen)) is not None:
            print(f"watching {found.workspace.path}, which uses the same queues", file=sys.stderr)
            reports.append(watch_to_end(found.workspace, found.source, found.steps, sleep_s, as_json=as_json))
    code = max(report["exit_code"] for report in reports)
    if as_json:
        print_json({**reports[0], "exit_code": code, "followed_by": reports[1:]})
    sys.exit(code)


def chosen_steps(workspace: Workspace, steps: Collection[str]) -> Collection[str]:
    """The steps to watch, none for all. Raises UsageError for one that the study does not have."""
    known = list(dict.fromkeys(i.step for i in workspace.plan.instances))
    for step in steps:
        if step not in (*known, "all"):
            raise UsageError(f"the study has no step {step!r}; it has: {', '.join(known)}")
    return () if "all" in steps else steps


def watch_to_end(
    workspace: Workspace, source: Source, steps: Collection[str], sleep_s: float | None, *, as_json: bool
) -> dict[str, Any]:
    """Show one study until it (or its `steps`) has ended; returns the report, and prints it for people."""
    import time

    from merlin.cli.execute import show_report
    from merlin.cli.progress import choose_display
    from merlin.cli.watch import Watch, follow
    from merlin.execution.distributed.leaving import lease_s

    start = command_line("run-workers", workspace.path)
    watch = Watch(steps, gone_s=lease_s() / 4 + NOTICE_S, workers_command=start)
    is_live = sys.stderr is not None and sys.stderr.isatty()
    try:
        with choose_display() as display:
            follow(
                source,
                watch,
                display,
                workspace.plan,
                interval_s=sleep_s or (LIVE_S if is_live else LINES_S),
                clock=time.monotonic,
                sleep=time.sleep,
            )
    except KeyboardInterrupt:
        print(f"the study goes on; to end it: {command_line('cancel', workspace.path)}", file=sys.stderr)
        sys.exit(130)
    told = report(workspace, watch)
    if not as_json:
        show_report(told)
    return told


def newest(workspace: Workspace) -> Workspace:
    """The last extension with anything to do, else the study itself."""
    from merlin.status.snapshot import take_snapshot
    from merlin.workspace.directory import shown_together

    _, *extensions = shown_together(workspace)
    for extension in reversed(extensions):
        if take_snapshot(extension).totals.missing:
            print(f"watching {extension.path}", file=sys.stderr)
            return extension
    return workspace


def is_for_workers(workspace: Workspace) -> bool:
    """Whether the study was published; then its steps may have published others."""
    from merlin.ledger.replay import replay
    from merlin.status.snapshot import was_published

    return was_published(replay(workspace.ledger_dir, workspace.plan))


def choose_source(workspace: Workspace) -> Source:
    """Redis if the study was published, else the ledger.

    Raises:
        ExecutionError: the study was published, and Redis does not answer now.
        WorkspaceError: nobody runs the study, and nobody was asked to.
    """
    from merlin.cli.sources import LedgerSource, RedisSource
    from merlin.config.load import require_config
    from merlin.execution.distributed.connect import redis_client
    from merlin.ledger.replay import replay
    from merlin.status.snapshot import is_published

    if not is_published(replay(workspace.ledger_dir, workspace.plan)):
        return LedgerSource(workspace)
    config = require_config()
    redis_client(config).close()  # a server that is not there at all is better said at once
    return RedisSource(workspace, config)


def report(workspace: Workspace, watch: Watch) -> dict[str, Any]:
    """How the study ended, from the ledger, as merlin run says it."""
    from merlin.cli.execute import exit_code, make_report
    from merlin.execution.events import RunSummary

    names = ("planned", "ok", "failed", "skipped", "missing")
    totals = {name: sum(getattr(c, name) for c in watch.per_step.values()) for name in names}
    summary = RunSummary(
        **totals, stop_reason=watch.reason, seconds=run_seconds(workspace), per_step=watch.per_step
    )
    return make_report(workspace, summary, exit_code(summary))


def run_seconds(workspace: Workspace) -> float:
    """How long the last run took, from its start to its last record."""
    from merlin.ledger.replay import replay
    from merlin.status.snapshot import snapshot_of

    state = replay(workspace.ledger_dir, workspace.plan)
    starts = [event.time for event in state.events() if event.kind == "run_started" and event.time]
    ended = snapshot_of(workspace, state, False, 0.0).ended
    return max(0.0, ended - starts[-1]) if starts and ended else 0.0
