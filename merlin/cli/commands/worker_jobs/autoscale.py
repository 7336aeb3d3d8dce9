"""`merlin workers autoscale` submits and ends worker jobs as the work that is left demands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import job_options, json_option, number_option


@click.command(cls=ManyCommand)
@job_options
@click.option(
    "--min",
    "min_nodes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Nodes to keep while a study is open, in total.",
)
@click.option(
    "--max",
    "max_nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Nodes at a time, in total, those that wait included.",
)
@number_option("--max-jobs", "N", "Jobs at a time, those that wait included.")
@click.option(
    "--backlog", metavar="TIME", help="No new job for work that the present ones finish in this time."
)
@click.option("--idle", metavar="TIME", help="End a job whose workers had nothing to do for so long.")
@click.option("--stop", "stop_at_end", is_flag=True, help="After Ctrl-C end the jobs, too.")
@json_option
@click.pass_context
def autoscale(
    context: click.Context,
    /,
    spec_or_workspace: Path,
    min_nodes: int | None,
    max_nodes: int | None,
    max_jobs: int | None,
    backlog: str | None,
    idle: str | None,
    stop_at_end: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Submit and end worker jobs as the work that is left on the queues of a spec or workspace demands.

    It stays until no study on these queues is open and its jobs have gone, and prints each decision with its reason
    (with --json, one JSON document per line). After Ctrl-C the jobs go on; start it again at any time, it finds them.
    The spec's block batch.autoscale has the same settings.
    """
    from merlin.cli.autoscaling import scale
    from merlin.execution.distributed.autoscaler_caps import GivenCaps
    from merlin.execution.distributed.wanted_jobs import JobOptions

    options = JobOptions(level=str(context.obj or "INFO"), **given)
    caps = GivenCaps(
        min_nodes=min_nodes, max_nodes=max_nodes, max_jobs=max_jobs, backlog=backlog, idle=idle
    )  # fmt: skip
    sys.exit(scale(spec_or_workspace, options, caps, stop_at_end=stop_at_end, as_json=as_json))
