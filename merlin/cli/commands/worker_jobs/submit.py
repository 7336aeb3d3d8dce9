"""`merlin workers submit` submits batch jobs in which the workers of a spec run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import job_options, json_option


@click.command(cls=ManyCommand)
@job_options
@click.option(
    "--jobs",
    "num_jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many jobs to submit.",
)
@click.option("--dry", is_flag=True, help="Print the job script, submit nothing.")
@json_option
@click.pass_context
def submit(
    context: click.Context,
    /,
    spec_or_workspace: Path,
    num_jobs: int,
    dry: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Submit batch jobs in which the workers of a spec, or of the study in a workspace, run.

    They serve every study of yours on the same queues, until nothing is left that they could do, or their walltime
    ends. The script, its output and a record are kept in the workspace (merlin_info/jobs), or in ./merlin_jobs.
    """
    from merlin.cli.submitting import print_script, submit_jobs
    from merlin.execution.distributed.wanted_jobs import JobOptions

    options = JobOptions(level=str(context.obj or "INFO"), **given)
    if dry:
        sys.exit(print_script(spec_or_workspace, options, as_json))
    sys.exit(submit_jobs(spec_or_workspace, options, num_jobs, as_json))
