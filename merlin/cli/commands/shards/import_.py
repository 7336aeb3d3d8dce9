"""`merlin shards import`: make a data set of files that Merlin did not write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.options import EXISTING_FILE, FOLDER, json_option, out_option
from merlin.cli.output import print_json
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.spec.import_schema import ImportSchema


@click.command("import")
@click.argument("sources", nargs=-1, required=True, type=EXISTING_FILE)
@click.option(
    "--schema", type=EXISTING_FILE, metavar="FILE", help="YAML: what the columns of the files mean."
)
@click.option("--infer", is_flag=True, help="Guess the schema and print it; with --out, import by it.")
@out_option(FOLDER, "Directory of the data set; a killed import goes on there.")
@click.option("--overwrite", is_flag=True, help="Replace a data set that is in DIR.")
@json_option
def import_(
    sources: tuple[Path, ...],
    schema: Path | None,
    infer: bool,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make a data set of HDF5, .npz, .npy, CSV or Parquet files.

    Files of one kind follow each other in the order given; columns in different kinds of files belong together row
    by row. The data set can be described, verified, queried, exported and trained on as any other.
    """
    if infer == (schema is not None):
        raise UsageError("name a schema with --schema FILE, or let it be guessed with --infer")
    if out is None and not infer:
        raise UsageError("--out DIR is missing: where the data set goes")
    found = _schema(sources, schema, shown=out is None or not as_json)
    if out is not None:
        _import(sources, found, out, overwrite, as_json)


def _schema(sources: tuple[Path, ...], path: Path | None, *, shown: bool) -> ImportSchema:
    from merlin.base.document.findings import Findings
    from merlin.spec.import_schema import parse_import_schema, read_import_schema

    if path is not None:
        return read_import_schema(path)
    from merlin.shards.importing.infer import infer_schema

    text = infer_schema(sources)
    if shown:
        print(text, end="")
    return parse_import_schema(text, Findings("inferred schema"))


def _import(
    sources: tuple[Path, ...], schema: ImportSchema, out: Path, overwrite: bool, as_json: bool
) -> None:
    from merlin.cli.display import progress_bar
    from merlin.shards.describe import describe
    from merlin.shards.importing.run import import_data

    with progress_bar("import", "samples", quiet=as_json) as report:
        data = import_data(sources, schema, out, overwrite=overwrite, progress=report)
    if as_json:
        print_json(describe(out).to_json())
        return
    print(f"{describe(out).line}\n{data.counts}")
    for group in data.failures:
        print(f"{count(group.num, 'sample')} left out: {group.cause}")
