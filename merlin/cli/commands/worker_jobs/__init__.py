"""`merlin workers`: batch jobs that workers live in, one module for each subcommand."""

from __future__ import annotations

import click

from merlin.cli.lazy import LazyGroup

# name -> (module of this package, attribute, help line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "submit": ("submit", "submit", "Submit batch jobs in which the workers of a spec run."),
    "autoscale": ("autoscale", "autoscale", "Submit and end worker jobs as the work that is left demands."),
    "list": ("list_", "list_jobs", "List the worker jobs, their time left and what runs in them."),
    "stop": ("stop", "stop", "End worker jobs; their workers give back what they cannot finish."),
    "logs": ("logs", "logs", "Show the log of a worker or the output of a job."),
    "explain": ("explain", "explain", "Say why nothing, or nothing more, runs, and what to do."),
}


@click.group(cls=LazyGroup, package=__name__, lazy_commands=COMMANDS)
def workers() -> None:
    """Let workers come by themselves, in batch jobs of Slurm, Flux, LSF or PBS.

    Workers on this machine, or in an allocation that you have, are started by merlin run-workers.
    """
