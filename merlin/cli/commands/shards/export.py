"""`merlin shards export`: write a data set in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.cli.options import json_option, workers_option
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.shards.export.base import Options

FORMATS = ("lbann", "webdataset", "mds", "zarr", "parquet", "npz")


@click.command()
@path_argument
@click.option("--to", "format", type=click.Choice(FORMATS), required=True, help="The format to write.")
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Directory to write; a killed export goes on there.",
)
@click.option(
    "--fields", metavar="A,B,…", help="Only these fields; inputs, parameters and ids always go along."
)
@click.option("--split", metavar="NAME", help="Only the samples of this split.")
@click.option(
    "--samples-per-file",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples of a file [default: the format's].",
)
@click.option("--compression", metavar="NAME", help="Compression of the files [default: the format's].")
@click.option(
    "--trainers",
    type=click.IntRange(min=1),
    metavar="K",
    help="LBANN: sample lists for K trainers, disjoint and equal.",
)
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
    from merlin.shards.export.base import Options

    options = Options(
        format=format,
        fields=None if fields is None else tuple(name for name in fields.split(",") if name),
        split=split,
        samples_per_file=samples_per_file or 0,
        compression=compression or "",
        trainers=trainers or 0,
    )
    found = find_data_sets(path)
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found)
        raise UsageError(f"{path} holds several data sets; name one of: {names}")
    _export(found[0], out, options, num_workers, overwrite, as_json)


def _export(
    path: Path, out: Path, options: Options, num_workers: int | None, overwrite: bool, as_json: bool
) -> None:
    import time

    from merlin.cli.bar import progress_bar
    from merlin.cli.output import print_json
    from merlin.shards.export.run import export as export_one

    begin = time.monotonic()
    with progress_bar(f"export to {options.format}", "samples", quiet=as_json) as tell:
        told = export_one(path, out, options, overwrite=overwrite, num_workers=num_workers, progress=tell)
    if as_json:
        print_json({"out": out, "seconds": time.monotonic() - begin, **told})
    else:
        print(_summary(told, out, time.monotonic() - begin))


def _summary(told: dict[str, Any], out: Path, seconds: float) -> str:
    from merlin.base.text import count, duration, size

    files = count(len({entry["file"] for entry in told["files"]}), "file")
    listed = "".join(f"\n  {out / name}" for name in told["described_by"][:8])
    return (
        f"{out}: {count(told['num_samples'], 'sample')} in {files}, {size(told['size_bytes'])}, "
        f"{duration(seconds)}{listed}"
    )
