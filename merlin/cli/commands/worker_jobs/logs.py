"""`merlin workers logs` shows the log of a worker or the output of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from merlin.cli.options import EXISTING, json_option


@click.command()
@click.argument("place", type=EXISTING, required=False, metavar="[SPEC|WORKSPACE]")
@click.option("--worker", default="", metavar="NAME", help="The log of this worker, e.g. simw.1234.node7.")
@click.option("--job", default="", metavar="ID", help="The output of this job.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is added, until Ctrl-C.")
@json_option
def logs(place: Path | None, **given: Any) -> None:
    """Show the log of a worker or the output of a job; without either, list those that there are.

    They are looked for in ./merlin_logs, in ./merlin_jobs and, for a workspace, in its merlin_info/jobs.
    """
    from merlin.cli.worker_logs import show_log

    show_log(place, **given)
