"""`merlin example`."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import json_option
from merlin.cli.output import print_json, print_table
from merlin.errors import command_line


@click.command()
@click.argument("name", metavar="list|NAME")
@click.option(
    "-p", "--path", "to", type=click.Path(path_type=Path), metavar="DIR",
    help="Where to copy it [default: here].",
)  # fmt: skip
@json_option
def example(name: str, to: Path | None, as_json: bool) -> None:
    """List the studies that come with Merlin, or copy one of them, with all its files.

    NAME alone is copied as NAME.yaml; one that needs more files, as a directory.
    """
    from merlin.cli.examples import all_examples, copy_example

    if name == "list":
        found = all_examples()
        if as_json:
            print_json([{"name": e.name, "description": e.description} for e in found])
            return
        print_table(("name", "description"), [(e.name, e.description) for e in found])
        return
    spec = copy_example(name, to)
    shown = spec.relative_to(Path.cwd()) if spec.is_relative_to(Path.cwd()) else spec
    if as_json:
        print_json({"name": name, "spec": spec})
        return
    print(f"{shown} is written; run it with: {command_line('run', shown)}")
