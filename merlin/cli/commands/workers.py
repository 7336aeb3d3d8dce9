"""`merlin run-workers`, `query-workers` and `stop-workers` start workers, list them, and stop them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    json_option,
    number_option,
    parse_assignments,
    scheduler_option,
    spec_or_workspace_argument,
    steps_option,
    vars_option,
    worker_args_option,
    worker_filters,
)

QUIET_LEVEL = "ERROR"


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.option("--echo", is_flag=True, help="Print the command lines, start nothing.")
@worker_args_option
@steps_option("--steps", help="Only workers, and queues, of these steps.")
@vars_option
@click.option("--disable-logs", is_flag=True, help="Log errors only.")
@click.option("--foreground", is_flag=True, help="Stay until the workers have ended, and end with them.")
@click.option(
    "--leave-when-done",
    is_flag=True,
    help="They end when no open study has work for them, as in an allocation.",
)
@number_option("--nodes", "N", "On so many nodes of the allocation, instead of the spec's number.")
@scheduler_option
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
    help="How long to wait until the workers have reported.",
)  # fmt: skip
@json_option
@click.pass_context
def run_workers(
    context: click.Context,
    /,
    spec_or_workspace: Path,
    echo: bool,
    assignments: tuple[str, ...],
    disable_logs: bool,
    foreground: bool,
    leave_when_done: bool,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Start the workers that the spec asks for on this machine, in the background.

    Inside an allocation of the spec's scheduler they start on all of its nodes. They serve every study of yours
    with the same queues. Output goes to ./merlin_logs. Exits with 0 once all have reported, with 1 if one has not.
    """
    from merlin.cli.starting import print_lines, start_and_report
    from merlin.execution.distributed.wanted_workers import WantedWorkers, WorkerRequest
    from merlin.views.workers import load_workers

    document, by_step = load_workers(spec_or_workspace, parse_assignments(assignments))
    level = QUIET_LEVEL if disable_logs else str(context.obj or "INFO")
    wanted = WantedWorkers.of(document, by_step, WorkerRequest(level=level, **given)).here()
    if echo:
        print_lines(wanted, as_json=as_json)
    else:
        sys.exit(start_and_report(wanted, timeout_s, foreground, as_json, leave_when_done=leave_when_done))


@click.command(cls=ManyCommand)
@worker_filters
@json_option
def query_workers(**given: Any) -> None:
    """List your live workers, their queues and what they run. All filters must hold."""
    from merlin.cli.live_workers import list_workers

    list_workers(**given)


@click.command(cls=ManyCommand)
@worker_filters
@click.option(
    "--now", is_flag=True, help="Interrupt running chunks and give them back, instead of finishing them."
)
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS",
    help="Wait until they have ended; exit with 1 if one has not.",
)  # fmt: skip
@json_option
def stop_workers(**given: Any) -> None:
    """Stop your workers, or those that pass all filters, once they have finished what they run.

    What they have not begun stays in the queues, for other workers.
    """
    from merlin.cli.live_workers import stop

    sys.exit(stop(**given))
