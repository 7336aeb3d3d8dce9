"""`merlin workers list` lists the worker jobs, their time left and what runs in them."""

from __future__ import annotations

import click

from merlin.cli.options import json_option, scheduler_option


@click.command("list")
@scheduler_option
@json_option
def list_jobs(scheduler: str, as_json: bool) -> None:
    """List your jobs that wait or run for workers: state, nodes, time left, who is alive there and runs what."""
    from merlin.cli.worker_jobs import show_jobs

    show_jobs(scheduler, as_json=as_json)
