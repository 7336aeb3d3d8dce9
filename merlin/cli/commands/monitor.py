"""`merlin monitor` watches a study that workers run, to its end."""

from __future__ import annotations

import sys
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    json_option,
    parse_assignments,
    spec_or_workspace_argument,
    steps_option,
    task_server_option,
    vars_option,
)


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@steps_option("--steps", "--step", help="Only these; ends when they have ended.")
@vars_option
@click.option(
    "--sleep", "sleep_s", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Between two looks."
)
@task_server_option
@json_option
def monitor(assignments: tuple[str, ...], **given: Any) -> None:
    """Show a study while it runs, and end with it; exit codes as for merlin run.

    Says when no worker is there for what is ready, waits through trouble with the servers, and publishes the
    study again when Redis has lost it. Ctrl-C ends only the display. For a spec, the newest workspace is shown; of a
    study with extensions, the last one that is not finished; and then, one after another, all your other studies that
    are not finished and use its queues, such as those that its steps have started. The worst exit code is given.
    """
    from merlin.cli.monitoring import follow_all

    sys.exit(follow_all(variables=parse_assignments(assignments), **given))
