"""The commands that start workers of a study: here, and in batch jobs where the spec names a scheduler."""

from __future__ import annotations

from pathlib import Path

from merlin.batch.registry import SCHEDULERS
from merlin.errors import command_line
from merlin.plan.plan import Plan


def jobs_command(plan: Plan, target: Path, *, autoscale: bool = False) -> str:
    """The command that brings workers in batch jobs, or "" if the spec names no scheduler."""
    named = (str(instance.resources.get("batch.type", "local")) for instance in plan.instances)
    if not any(name in SCHEDULERS and SCHEDULERS[name].programs for name in named):
        return ""
    return command_line("workers", "autoscale" if autoscale else "submit", target)


def ways_to_more(plan: Plan, target: Path) -> str:
    """What brings more workers, or larger ones, to a study that has some: a machine starts none beside its own."""
    stop = command_line("stop-workers", "--spec", target, "--wait", 600)
    start = command_line("run-workers", target, "--worker-args", "--concurrency N")
    return (
        f"on another machine: {ways_to_start(plan, target)}; or more at once on the same: {stop} && {start}"
    )


def ways_to_start(plan: Plan, target: Path) -> str:
    """The commands that start workers of a study, here and in batch jobs."""
    here, jobs = command_line("run-workers", target), jobs_command(plan, target)
    return f"{here}, or in batch jobs: {jobs}" if jobs else here
