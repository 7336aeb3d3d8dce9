"""`merlin workers stop` ends worker jobs, whose workers give back what they cannot finish."""

from __future__ import annotations

import sys
from typing import Any

import click

from merlin.cli.options import json_option, scheduler_option


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--all", "stop_all", is_flag=True, help="Every worker job.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
    help="For the workers to finish what they run, before the job is cancelled.",
)  # fmt: skip
@scheduler_option
@json_option
def stop(**given: Any) -> None:
    """End worker jobs: those that wait are cancelled, those that run when their workers have finished.

    Workers that need longer than --wait give back what they run, and other workers run it again. Exits with 1 if a
    job is none of yours for workers, or could not be ended.
    """
    from merlin.cli.worker_jobs import stop_jobs

    sys.exit(stop_jobs(**given))
