"""`merlin shards plot`: pictures of a data set."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.base.kinds import CHARTS
from merlin.cli.commands.shards.find import find_data_set, path_argument
from merlin.cli.options import FILE, json_option, out_option
from merlin.cli.output import print_json


@click.command()
@path_argument
@out_option(
    FILE,
    "File to write: .png, .pdf or .svg for a picture, .html for a page with tables.",
    default=Path("data_set.png"),
    show_default=True,
)
@click.option(
    "--kind", type=click.Choice(("all", *CHARTS)), default="all", show_default=True, help="Which charts."
)
@click.option(
    "--field", "--fields", "fields", multiple=True, metavar="A,B", help="Only these fields, inputs or graphs."
)
@click.option(
    "--num", type=click.IntRange(1, 400), default=12, show_default=True, help="Samples in contact sheets."
)
@click.option("--split", default="", metavar="NAME", help="Only samples of this split.")
@click.option(
    "--query", default="", metavar="EXPR", help="Only samples for which this is true: 'yield > 1e14'."
)
@json_option
def plot(
    path: Path,
    out: Path,
    kind: str,
    fields: tuple[str, ...],
    num: int,
    split: str,
    query: str,
    as_json: bool,
) -> None:
    """Draw a data set: inputs, scalars, series, images, volumes, graphs.

    A page (-o NAME.html) is one file that can be mailed. Of very many samples a fixed subset is drawn, and the charts
    say so.
    """
    from merlin.cli.display import spinner
    from merlin.shards.ensemble import open_shards
    from merlin.shards.plot import request, write_plot

    chosen = [name for word in fields for name in word.split(",") if name]
    wanted = request(kind, fields=chosen, num=num, split=split, query=query)
    with open_shards(find_data_set(path)) as ensemble, spinner("opening") as on_section:
        written = write_plot(ensemble, out, wanted, on_section)
    if as_json:
        print_json({"path": written})
    else:
        print(written)
