"""`merlin shards`: describe, verify and plot data sets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.cli.options import json_option
from merlin.errors import NotADataSetError, UsageError

if TYPE_CHECKING:
    from merlin.shards.reader import Ensemble

path_argument = click.argument("path", type=click.Path(exists=True, path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def shards() -> None:
    """Describe, verify and plot data sets.

    PATH is a data set (a directory with manifest.json), or a workspace with one or more of them.
    """


def find_data_sets(path: Path) -> list[Path]:
    """The directories of the data sets that `path` means. Raises NotADataSetError if there is none."""
    if path.name == "manifest.json":
        path = path.parent
    if (path / "manifest.json").is_file():
        return [path]
    if (path / "merlin_info").is_dir():
        from merlin.study.plan import StepKind
        from merlin.study.workspace import open_workspace

        plan = open_workspace(path).plan
        ids = [i.id for i in plan.instances if i.kind is StepKind.AGGREGATE]
        found = [path / id for id in ids if (path / id / "manifest.json").is_file()]
        if found:
            return found
        what = "its aggregate steps have not finished" if ids else "no step of its study is an aggregate"
        raise NotADataSetError(f"no data set in the workspace {path}: {what}")
    raise NotADataSetError(f"{path} is no data set: it has no manifest.json")


@shards.command()
@path_argument
@json_option
def describe(path: Path, as_json: bool) -> None:
    """Show what a data set holds: fields, statistics, splits, samples that are missing and why."""
    from merlin.cli.output import print_json
    from merlin.shards.describe import describe as describe_one

    found = [describe_one(folder) for folder in find_data_sets(path)]
    if as_json:
        print_json(found)
        return
    for facts in found:
        _show_description(facts)


def _show_description(facts: Any) -> None:
    raise NotImplementedError


@shards.command()
@path_argument
@json_option
def verify(path: Path, as_json: bool) -> None:
    """Read every byte again, compare it with the manifest, and reconcile the counts.

    Exits with 0 if the data set is complete and intact, with 1 if not; damage names the shards and samples.
    """
    raise NotImplementedError


@shards.command()
@path_argument
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("contact_sheet.png"),
    show_default=True,
    help="Picture to write: .png, .pdf or .svg.",
)
@click.option("--num", type=click.IntRange(1, 400), default=12, show_default=True, help="How many samples.")
def plot(path: Path, out: Path, num: int) -> None:
    """Draw a contact sheet: images, series and histograms of scalars."""
    from merlin.cli.contact_sheet import draw_contact_sheet
    from merlin.shards.reader import open_shards

    found = find_data_sets(path)
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found)
        raise UsageError(f"{path} holds several data sets; name one of: {names}")
    ensemble: Ensemble = open_shards(found[0])
    draw_contact_sheet(ensemble, out, num=num)
    print(out)
    sys.stdout.flush()
