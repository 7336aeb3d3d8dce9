"""`merlin list` lists the user's studies with their state, the newest first."""

from __future__ import annotations

import os
from pathlib import Path

import click

from merlin.cli.options import EXISTING_FOLDER, FILE, json_option, number_option
from merlin.cli.output import check_dump


@click.command("list")
@click.option(
    "--root",
    "roots",
    type=EXISTING_FOLDER,
    multiple=True,
    metavar="DIR",
    help="Only the studies directly in DIR; may repeat.",
)
@number_option("--newest", "N", "Only the N newest.")
@click.option("--size", "with_size", is_flag=True, help="How much disk each takes; looks at every file.")
@click.option("--dump", type=FILE, metavar="FILE", help="Write a .csv or .json file.")
@json_option
def list_all(
    roots: tuple[Path, ...], newest: int | None, with_size: bool, dump: Path | None, as_json: bool
) -> None:
    """List all your studies, the newest first, with their state and size.

    They are looked for in the current directory, and in every other in which you have run some.
    """
    from merlin.cli.listing import list_studies
    from merlin.views.studies import known_folders

    check_dump(dump)
    folders = list(roots) or known_folders(os.environ)
    list_studies(folders, as_json=as_json, dump=dump, newest=newest, with_size=with_size)
