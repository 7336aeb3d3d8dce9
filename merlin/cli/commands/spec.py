"""`merlin validate`, `plan` and `schema`: about a spec, before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from merlin.cli.argv import ManyCommand
from merlin.cli.options import FILE, extend_options, json_option, spec_argument, spec_options, update_options
from merlin.cli.output import dump_file, print_json


@click.command(cls=ManyCommand)
@spec_argument
@spec_options
@json_option
def validate(**given: Any) -> None:
    """Check SPEC and show every problem with its line and column.

    Exits with 0 when the spec can run (warnings allowed) and with 2 when it cannot. Nothing is written.
    """
    from merlin.cli.planning import show_problems

    sys.exit(show_problems(**given))


@click.command(cls=ManyCommand)
@spec_argument
@spec_options
@json_option
@extend_options
@update_options
@click.option(
    "--mermaid", "as_mermaid", is_flag=True, help="Print the graph of steps as a Mermaid flowchart."
)
def plan(**given: Any) -> None:
    """Show what SPEC will run and write: step instances, samples, tasks, directories, files, and the graph.

    Nothing is run or written, so the time does not depend on the number of samples. With --extend, it is what
    merlin run SPEC --extend WORKSPACE would add; with --update, what would run again in that study.
    """
    from merlin.cli.planning import show_plan

    show_plan(**given)


@click.command()
@click.argument("what", type=click.Choice(["spec", "train"]), default="spec")
@click.option("-o", "--output", type=FILE, help="Write it to this file.")
def schema(what: str, output: Path | None) -> None:
    """Print the JSON Schema of specs, or of training configurations, made from the model that checks them.

    For completion in VS Code with its YAML extension, write the schema with -o .merlin-schema.json and begin the
    spec with `# yaml-language-server: $schema=.merlin-schema.json`.
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
