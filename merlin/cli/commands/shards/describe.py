"""`merlin shards describe`: what a data set holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.cli.options import json_option
from merlin.cli.output import print_json


@click.command()
@path_argument
@json_option
def describe(path: Path, as_json: bool) -> None:
    """Show what a data set holds: sizes, fields, statistics, splits, samples that are left out and why.

    The tables fit the terminal; what does not fit is in --json.
    """
    from merlin.cli.data_set_text import lines
    from merlin.shards.describe import describe as describe_one

    found = [describe_one(folder) for folder in find_data_sets(path)]
    if as_json:
        print_json([facts.to_json() for facts in found])
        return
    width = shutil.get_terminal_size().columns
    print("\n\n".join("\n".join(lines(facts, width)) for facts in found))
