"""`merlin shards query`: the samples for which something is true, or any question in SQL."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.cli.options import json_option
from merlin.errors import UsageError

_SHOWN = 20


@click.command()
@path_argument
@click.argument("expression")
@click.option("--sql", "is_sql", is_flag=True, help="EXPRESSION is a whole query: select … from rows …")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"At most N samples [default: {_SHOWN} on the screen, else all].",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the answer to a .csv or .parquet file, or its sample ids to a .txt file.",
)
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
    from merlin.base.text import count
    from merlin.cli.output import console, flush, print_json, table
    from merlin.shards.reading.query import table_of
    from merlin.shards.reading.reader import open_shards

    if as_json and as_csv:
        raise UsageError("--json and --csv are two answers; take one")
    text = sys.stdin.read() if expression == "-" else expression
    found = find_data_sets(path)
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found)
        raise UsageError(f"{path} holds several data sets; name one of: {names}")
    is_shown = not (as_json or as_csv or out)
    most = _SHOWN if limit is None and is_shown and not is_sql else limit
    with open_shards(found[0]) as ensemble:
        if is_sql:
            answer = ensemble.query_table(text).first(most)
            summary = ""
        else:
            selection = ensemble.query(text)
            answer = table_of(selection, most)
            summary = f"{count(len(selection), 'sample')} of {len(ensemble):,}"
    if out is not None:
        answer.write(out)
        print(f"{out}: {count(len(answer), 'row')}" + (f", {summary}" if summary else ""), file=sys.stderr)
    elif as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif as_csv:
        answer.print_csv(sys.stdout)
    else:
        console().print(table(answer.columns, answer.rows))
        if summary:
            print(
                f"\n{summary}" + (f", the first {len(answer)} shown" if len(answer) < len(selection) else "")
            )
    flush()
