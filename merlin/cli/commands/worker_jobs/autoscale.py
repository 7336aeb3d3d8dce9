"""`merlin workers autoscale`."""

from __future__ import annotations

import sys
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.commands.worker_jobs.options import job_options
from merlin.cli.options import json_option, number_option


@click.command(cls=ManyCommand)
@job_options
@click.option("--min", "min_nodes", type=click.IntRange(min=0), metavar="N",
              help="Nodes to keep while a study is open, in total.")
@number_option("--max", "N", "Nodes at a time, in total, those that wait included.")
@number_option("--max-jobs", "N", "Jobs at a time, those that wait included.")
@click.option("--backlog", metavar="TIME", help="No new job for work that the present ones finish in this time.")
@click.option("--idle", metavar="TIME", help="End a job whose workers had nothing to do for so long.")
@click.option("--stop", "stop_at_end", is_flag=True, help="After Ctrl-C end the jobs, too.")
@json_option
@click.pass_context
def autoscale(context: click.Context, /, **given: Any) -> None:
    """Submit and end worker jobs as the work that is left on the queues of a spec or workspace demands.

    It stays until no study on these queues is open and its jobs have gone, and prints each decision with its reason
    (with --json, one JSON document per line). Start it again at any time: it finds its jobs. The spec's block
    batch.autoscale has the same settings.
    """
    from merlin.cli.autoscaling import scale

    sys.exit(scale(level=str(context.obj or "INFO"), **given))
