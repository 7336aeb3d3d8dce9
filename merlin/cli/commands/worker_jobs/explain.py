"""`merlin workers explain` says why nothing, or nothing more, runs, and what to do about it."""

from __future__ import annotations

import sys
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    json_option,
    parse_assignments,
    scheduler_option,
    spec_or_workspace_argument,
    vars_option,
)


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@vars_option
@scheduler_option
@json_option
def explain(assignments: tuple[str, ...], **given: Any) -> None:
    """Say why nothing, or nothing more, runs: each condition that is not met, and what to do about it.

    For a spec, your open studies on its queues are looked at. Exits with 0 if something runs, else with 1.
    """
    from merlin.cli.explaining_workers import show_explanation

    sys.exit(show_explanation(variables=parse_assignments(assignments), **given))
