"""`merlin shards plot`: pictures of a data set."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.errors import UsageError

KINDS = ("all", "inputs", "scalars", "series", "images", "volumes", "graphs", "ragged")


@click.command()
@path_argument
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("data_set.png"),
    show_default=True,
    help="File to write: .png, .pdf or .svg for a picture, .html for a page with tables.",
)
@click.option("--kind", type=click.Choice(KINDS), default="all", show_default=True, help="Which charts.")
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
def plot(path: Path, out: Path, kind: str, fields: tuple[str, ...], num: int, split: str, query: str) -> None:
    """Draw a data set: inputs, scalars, series, images, volumes, graphs.

    A page (-o NAME.html) is one file that can be mailed. Of very many samples a fixed subset is drawn, and the charts
    say so.
    """
    from merlin.cli.output import is_terminal
    from merlin.shards.plot import request, write_plot
    from merlin.shards.reading.reader import open_shards

    found = find_data_sets(path)
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found)
        raise UsageError(f"{path} holds several data sets; name one of: {names}")
    chosen = [name for word in fields for name in word.split(",") if name]
    wanted = request(kind, fields=chosen, num=num, split=split, query=query)
    with open_shards(found[0]) as ensemble:
        if not is_terminal():
            print(write_plot(ensemble, out, wanted))
            return
        from rich.console import Console

        with Console(stderr=True).status("opening") as status:
            written = write_plot(ensemble, out, wanted, lambda section: status.update(section))
    print(written)
