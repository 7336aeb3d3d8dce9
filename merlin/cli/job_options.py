"""Options of the commands that submit worker jobs."""

from __future__ import annotations

import click

from merlin.cli.options import (
    number_option,
    spec_or_workspace_argument,
    steps_option,
    vars_option,
    with_options,
)

scheduler_option = click.option(
    "--scheduler", default="", metavar="NAME", help="Instead of the spec's batch.type, e.g. slurm."
)
job_options = with_options(
    spec_or_workspace_argument,
    number_option("--nodes", "N", "Nodes of one job, instead of the batch block's."),
    click.option(
        "--walltime", default="", metavar="HH:MM:SS", help="Of one job, instead of the batch block's."
    ),
    click.option(
        "--queue", default="", metavar="NAME", help="Partition or queue, instead of the batch block's."
    ),
    click.option(
        "--bank", default="", metavar="NAME", help="Account to charge, instead of the batch block's."
    ),
    scheduler_option,
    steps_option("--steps", help="Only workers, and queues, of these steps."),
    click.option(
        "--worker-args", default="", metavar='"ARGS"', help='For the Celery workers, e.g. "--concurrency 4".'
    ),
    vars_option,
)
