"""`merlin sql`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.options import json_option, workspace_argument


@click.command(short_help="Ask a study anything, in SQL.")
@workspace_argument
@click.argument("query")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
def sql(workspace: Path, query: str, as_json: bool, as_csv: bool) -> None:
    """Answer a DuckDB QUERY over the study in WORKSPACE (or the newest of a spec); "-" reads it from stdin.

    The views tasks (with the columns of the samples), instances, samples, failures, records and events are
    described in docs/status-and-sql.md.

    \b
    merlin sql WORKSPACE "select step, outcome, count(*) from tasks group by all"
    merlin sql WORKSPACE "describe tasks"
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.output import console, print_json, table
    from merlin.status.sql import query as ask

    text = sys.stdin.read() if query == "-" else query
    answer = ask(find_workspace(workspace), text)
    if answer.note:
        print(answer.note, file=sys.stderr)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif as_csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
    else:
        console().print(table(answer.columns, answer.rows))
