"""`merlin explain` says why something does not run, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.options import json_option, spec_or_workspace_argument


@click.command()
@spec_or_workspace_argument
@click.argument("what", required=False, default="", metavar="[STEP|SAMPLE|WORKER]")
@json_option
def explain(spec_or_workspace: Path, what: str, as_json: bool) -> None:
    """Say why nothing, or nothing more, of a study runs: each condition that is not met, with what mends it.

    A STEP is told with what it needs and waits for; a SAMPLE (its id) with its story across the steps: outcome, tries,
    who, when, and why it was skipped; a WORKER with what it serves and runs, and why it is idle.

    Exits with 0 if all is well or passes by itself, else with 1.
    """
    from merlin.cli.explaining import show_explanation
    from merlin.cli.find import find_workspace

    sys.exit(show_explanation(find_workspace(spec_or_workspace), what, as_json=as_json))
