"""`merlin shards export`: write a data set in another format."""

from __future__ import annotations

import time
from pathlib import Path

import click

from merlin.base.text import count, duration, size
from merlin.cli.commands.shards.find import find_data_set, path_argument
from merlin.cli.options import FOLDER, json_option, number_option, out_option, split_names, workers_option
from merlin.cli.output import print_json
from merlin.shards.export.formats import FORMATS


@click.command()
@path_argument
@click.option("--to", "format", type=click.Choice(tuple(FORMATS)), required=True, help="The format to write.")
@out_option(FOLDER, "Directory to write; a killed export goes on there.", required=True)
@click.option(
    "--fields", metavar="A,B,…", help="Only these fields; inputs, parameters and ids always go along."
)
@click.option("--split", metavar="NAME", help="Only the samples of this split.")
@number_option("--samples-per-file", "N", "Samples of a file [default: the format's].")
@click.option("--compression", metavar="NAME", help="Compression of the files [default: the format's].")
@number_option("--trainers", "K", "LBANN: sample lists for K trainers, disjoint and equal.")
@workers_option
@click.option("--overwrite", is_flag=True, help="Replace an export that is in DIR, finished or not.")
@json_option
def export(
    path: Path,
    format: str,
    out: Path,
    fields: str | None,
    split: str | None,
    samples_per_file: int | None,
    compression: str | None,
    trainers: int | None,
    num_workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write a data set in a format that other tools read.

    Finished files are kept when an export is killed and started again; export.json is written last.
    """
    from merlin.cli.display import progress_bar
    from merlin.shards.export.base import ExportOptions
    from merlin.shards.export.run import export as export_one

    options = ExportOptions(
        format=format,
        fields=split_names(fields),
        split=split,
        samples_per_file=samples_per_file or 0,
        compression=compression or "",
        trainers=trainers or 0,
    )
    data_set, begin = find_data_set(path), time.monotonic()
    with progress_bar(f"export to {format}", "samples", quiet=as_json) as report:
        facts = export_one(
            data_set, out, options, overwrite=overwrite, num_workers=num_workers, progress=report
        )
    seconds = time.monotonic() - begin
    if as_json:
        print_json({"out": out, "seconds": seconds, **facts})
        return
    num = f"{count(facts['num_samples'], 'sample')} in {count(len({f['file'] for f in facts['files']}), 'file')}"
    print(f"{out}: {num}, {size(facts['size_bytes'])}, {duration(seconds)}")
    for name in facts["described_by"][:8]:
        print(f"  {out / name}")
