"""`merlin metrics` prints numbers of studies for Prometheus, or writes them into a file."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import FILE, places_options


@click.command()
@places_options("Every study")
@click.option(
    "--textfile", type=FILE, metavar="FILE", help="Write FILE, for node_exporter; it ends in .prom."
)
@click.option(
    "--every", "every_s", type=click.FloatRange(min=1.0), metavar="S",
    help="With --textfile: write it every S seconds, until Ctrl-C.",
)  # fmt: skip
def metrics(
    workspaces: tuple[Path, ...], roots: tuple[Path, ...], textfile: Path | None, every_s: float | None
) -> None:
    """Print the metrics of studies in the format of Prometheus, or write them into a file.

    Of the studies in the current directory, or in each --root, or of the WORKSPACEs alone. A dashboard serves the same
    at /metrics.
    """
    from merlin.cli.metrics_file import print_metrics, write_metrics
    from merlin.cli.study_places import study_places
    from merlin.errors import UsageError

    places = study_places(workspaces, roots)
    if textfile is not None:
        write_metrics(places, textfile, every_s)
    elif every_s is not None:
        raise UsageError("--every goes with --textfile FILE, which is written again and again")
    else:
        print_metrics(places)
