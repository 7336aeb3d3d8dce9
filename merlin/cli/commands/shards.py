"""`merlin shards`: describe, verify and plot data sets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.options import json_option
from merlin.errors import NotADataSetError, UsageError

if TYPE_CHECKING:
    from merlin.shards.describe import Description
    from merlin.shards.statistics import Statistics

_NUMBERS = ("min", "mean", "max", "std")

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
        print_json([facts.to_json() for facts in found])
        return
    for facts in found:
        _show(facts)


def _show(facts: Description) -> None:
    from merlin.cli.output import console, count, size, table

    out = console()
    print(f"{facts.line}\n{facts.counts}\n")
    columns = ("field", "kind", "type", "shape", *_NUMBERS, "units", "compression")
    rows = [
        (f.name, f.kind, f.dtype, _shape(f.shape), *_statistics(f.statistics), f.units, f.compression)
        for f in facts.fields
    ]
    out.print(table(columns, rows, right=_NUMBERS))
    inputs = [(c.name, c.dtype, *_statistics(c.statistics)) for c in (*facts.inputs, *facts.parameters)]
    if inputs:
        print()
        out.print(table(("input", "type", *_NUMBERS), inputs, right=_NUMBERS))
    parts = (f"{name} {facts.split_counts.get(name, 0):,}" for name in facts.split_fractions)
    print(f"\nsplits {', '.join(parts)}")
    print(f"{size(facts.row_bytes)} for each sample; content {facts.content_digest}")
    for group in facts.failures:
        print(f"{group.source}: {count(group.num, 'sample')} left out: {group.cause}")
    print()


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _statistics(statistics: Statistics | None) -> tuple[str, ...]:
    """min, mean, max, std; the channels of an image one after the other."""
    if statistics is None:
        return ("",) * len(_NUMBERS)
    return tuple(" ".join(f"{value:.4g}" for value in getattr(statistics, name)) for name in _NUMBERS)


@shards.command()
@path_argument
@json_option
def verify(path: Path, as_json: bool) -> None:
    """Read every byte again, compare it with the manifest, and reconcile the counts.

    Exits with 0 if every data set is complete and intact, with 1 if not; damage names the shards and samples.
    """
    from merlin.cli.output import count, duration, flush, print_json, size
    from merlin.shards.verify import verify as verify_one

    reports = [verify_one(folder) for folder in find_data_sets(path)]
    if as_json:
        print_json(reports)
    for report in () if as_json else reports:
        for problem in report.problems:
            print(problem.render())
        verdict = "intact" if report.ok else f"DAMAGED, {count(len(report.problems), 'problem')}"
        print(f"{report.path}: {verdict}")
        print(f"  {report.counts}")
        pace = size(report.size_bytes / report.seconds) + "/s" if report.seconds else ""
        print(
            f"  {count(report.num_rows, 'sample')} in {count(report.num_shards, 'shard')}, "
            f"{size(report.size_bytes)} read in {duration(report.seconds)} ({pace})"
        )
    flush()
    sys.exit(0 if all(report.ok for report in reports) else 1)


@shards.command()
@path_argument
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("contact_sheet.png"),
    show_default=True,
    help="PNG file to write.",
)
@click.option("--field", help="Image field to show [default: the first].")
@click.option("--num", type=click.IntRange(1, 400), default=12, show_default=True, help="How many samples.")
def plot(path: Path, out: Path, field: str | None, num: int) -> None:
    """Draw a contact sheet: images of samples, and histograms of scalars."""
    from merlin.shards.plot import contact_sheet
    from merlin.shards.reader import open_shards

    found = find_data_sets(path)
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found)
        raise UsageError(f"{path} holds several data sets; name one of: {names}")
    print(contact_sheet(open_shards(found[0]), out, image=field, num=num))
