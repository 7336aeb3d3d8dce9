"""`merlin shards describe`: what a data set holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.cli.options import json_option

if TYPE_CHECKING:
    from merlin.shards.describe import Description


@click.command()
@path_argument
@json_option
def describe(path: Path, as_json: bool) -> None:
    """Show what a data set holds: sizes, fields, statistics, splits, samples that are left out and why.

    The tables fit the terminal; what does not fit is in --json.
    """
    from merlin.cli.output import print_json
    from merlin.shards.describe import describe as describe_one

    found = [describe_one(folder) for folder in find_data_sets(path)]
    if as_json:
        print_json([facts.to_json() for facts in found])
        return
    for i, facts in enumerate(found):
        if i:
            print()
        show(facts, shutil.get_terminal_size().columns)


def show(facts: Description, width: int) -> None:
    """Print a description in `width` columns."""
    from merlin.cli.data_set_text import lines

    print("\n".join(lines(facts, width)))
