"""`merlin schema`."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import FILE
from merlin.cli.output import dump_file, print_json


@click.command()
@click.argument("what", type=click.Choice(["spec", "train"]), default="spec")
@click.option("-o", "--output", type=FILE, help="Write it to this file.")
def schema(what: str, output: Path | None) -> None:
    """Print the JSON Schema of specs, or of training configurations, made from the model that checks them.

    In VS Code with the YAML extension: merlin schema -o .merlin-schema.json, and as the first line of a spec:
    # yaml-language-server: $schema=.merlin-schema.json
    """
    if what == "train":
        from merlin.train.config import json_schema
    else:
        from merlin.spec.schema import json_schema
    if output is None:
        print_json(json_schema())
    else:
        target = output.with_suffix(".json")
        dump_file(target, [], json_schema())
        print(target)
