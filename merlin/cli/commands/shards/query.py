"""`merlin shards query`: the samples for which something is true, or any question in SQL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.commands.shards.find import find_data_set, path_argument
from merlin.cli.options import FILE, csv_option, json_option, out_option
from merlin.cli.output import print_answer, remark
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.shards.ensemble import Ensemble
    from merlin.shards.reading.table import ResultTable

_SHOWN = 20


@click.command()
@path_argument
@click.argument("expression")
@click.option("--sql", "is_sql", is_flag=True, help="EXPRESSION is a whole query: select … from rows …")
@json_option
@csv_option
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most N samples [default: {_SHOWN} on the screen, else all].",
)
@out_option(FILE, "Write the answer to a .csv or .parquet file, or its sample ids to a .txt file.")
def query(
    path: Path,
    expression: str,
    is_sql: bool,
    as_json: bool,
    as_csv: bool,
    limit: int | None,
    out: Path | None,
) -> None:
    """List the samples of a data set for which EXPRESSION is true, in DuckDB's SQL; "-" reads it from stdin.

    It can use inputs, parameters, scalar and text fields, row, sample_id and split. With --sql it is a query over the
    view rows, which also has every row that is not in the data set, with its outcome and cause.

    \b
    merlin shards query PATH "yield > 1e14 and split = 'train'" --out ids.txt
    merlin shards query PATH "select outcome, cause, count(*) group by all" --sql
    """
    from merlin.shards.ensemble import open_shards
    from merlin.shards.reading.query import VIEW
    from merlin.shards.reading.sql_text import mentioned

    if as_json and as_csv:
        raise UsageError("--json and --csv are two answers; take one")
    text = sys.stdin.read() if expression == "-" else expression
    is_shown = not (as_json or as_csv or out)
    most = _SHOWN if limit is None and is_shown and not is_sql else limit
    with open_shards(find_data_set(path)) as ensemble:
        answer, num = _ask_sql(ensemble, text, most) if is_sql else _ask(ensemble, text, most)
        summary = "" if is_sql else f"{count(num, 'sample')} of {len(ensemble):,}"
    if out is not None:
        answer.write(out)
        remark(f"{out}: {count(len(answer), 'row')}" + (f", {summary}" if summary else ""))
    else:
        asked = None if is_sql else mentioned(f"select {text}", answer.columns, VIEW)
        print_answer(answer.columns, answer.rows, as_json=as_json, as_csv=as_csv, first=asked)
    if is_shown and summary:
        first = f", the first {len(answer)} shown" if len(answer) < num else ""
        print(f"\n{summary}{first}")


def _ask_sql(ensemble: Ensemble, sql: str, most: int | None) -> tuple[ResultTable, int]:
    """The first rows of the answer to a query, and how many it has."""
    from merlin.cli.display import late_progress
    from merlin.shards.reading.query import answer

    with late_progress("reading", "shards") as report:
        found = answer(ensemble, sql, report)
    return found.first(most), len(found)


def _ask(ensemble: Ensemble, expression: str, most: int | None) -> tuple[ResultTable, int]:
    """The first samples for which an expression is true, and how many there are."""
    from merlin.cli.display import late_progress
    from merlin.shards.reading.query import positions_where, table_of

    with late_progress("asking", "shards") as report:
        selection = ensemble.take(positions_where(ensemble, expression, report))
    with late_progress("reading", "shards") as report:
        return table_of(selection, most, report), len(selection)
