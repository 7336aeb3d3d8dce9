"""`merlin sql` answers questions about a study in SQL."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.options import csv_option, json_option, spec_or_workspace_argument
from merlin.cli.output import print_answer, remark


@click.command()
@spec_or_workspace_argument
@click.argument("query")
@json_option
@csv_option
def sql(spec_or_workspace: Path, query: str, as_json: bool, as_csv: bool) -> None:
    """Answer a DuckDB QUERY over a study; "-" reads it from stdin.

    The views tasks (with the columns of the samples), instances, samples, failures, records and events are
    described in docs/status-and-sql.md.

    \b
    merlin sql WORKSPACE "select step, outcome, count(*) from tasks group by all"
    merlin sql WORKSPACE "describe tasks"
    """
    from merlin.cli.find import find_workspace
    from merlin.status.sql import query as ask

    answer = ask(find_workspace(spec_or_workspace), sys.stdin.read() if query == "-" else query)
    if answer.note:
        remark(answer.note)
    print_answer(answer.columns, answer.rows, as_json=as_json, as_csv=as_csv)
