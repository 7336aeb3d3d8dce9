"""`merlin rerun` runs tasks again that the user chooses, and all that depends on them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import json_option, rerun_options, spec_or_workspace_argument, steps_option
from merlin.errors import UsageError


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.option("--where", default="", metavar="SQL", help="A condition over the view tasks of merlin sql.")
@click.option("--failed", is_flag=True, help="Tasks that have failed.")
@steps_option("--step", help="Tasks of these steps.")
@click.option("--samples", default="", metavar="IDS", help="Tasks of these samples, e.g. 3,7-9.")
@rerun_options
@json_option
def rerun(
    spec_or_workspace: Path, where: str, failed: bool, steps: tuple[str, ...], samples: str, **how: Any
) -> None:
    """Run tasks of a study again for which all that is given holds, and what depends on them.

    It shows how many tasks of which steps these are, and asks. Then it goes on as merlin restart does: on workers if
    a broker is configured, else here. Exit codes are those of merlin run.

    \b
    merlin rerun WORKSPACE --failed --step simulate
    merlin rerun WORKSPACE --where "step = 'simulate' and seconds > 600 and X0 < 0.1"
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.rerunning import RerunManner, parse_samples, run_again
    from merlin.views.rerunning import Choice

    opened = find_workspace(spec_or_workspace)
    opened.plan.check_steps(steps)
    ids = parse_samples(samples) if samples else ()
    choice = Choice(where=where, failed=failed, steps=steps, samples=ids)
    if choice.is_empty:
        raise UsageError("say which tasks: --where SQL, --failed, --step NAME or --samples IDS")
    sys.exit(run_again(opened, choice, RerunManner(**how)))
