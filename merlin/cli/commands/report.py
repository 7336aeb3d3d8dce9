"""`merlin report` writes a study as one HTML page, to read, to print and to send."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.base.text import size
from merlin.cli.options import FILE, json_option, out_option, spec_or_workspace_argument
from merlin.cli.output import print_json


@click.command()
@spec_or_workspace_argument
@out_option(FILE, "File to write.", default=Path("report.html"), show_default=True)
@click.option("--no-pictures", is_flag=True, help="Leave out the pictures of data sets and trained models.")
@json_option
def report(spec_or_workspace: Path, out: Path, no_pictures: bool, as_json: bool) -> None:
    """Write a study and its extensions as one HTML page, to read offline, to print and to send to somebody.

    It says what was run, what became of every task, how the work went, why tasks failed, what it cost, what is in the
    data sets, how good the trained models are, and how to run it again. The study may still run.
    """
    from merlin.cli.display import spinner
    from merlin.cli.find import find_workspace
    from merlin.report.page import write_report

    workspace = find_workspace(spec_or_workspace)
    with spinner("ledger") as on_step:
        written = write_report(workspace, out, pictures=not no_pictures, on_step=on_step)
    num_bytes = written.stat().st_size
    if as_json:
        print_json({"path": written, "bytes": num_bytes})
    else:
        print(f"{written}  {size(num_bytes)}")
