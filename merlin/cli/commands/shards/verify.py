"""`merlin shards verify`: prove that data sets are intact, and repair them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count, duration, size
from merlin.cli.commands.shards.find import find_data_sets, path_argument
from merlin.cli.options import AT_LEAST_ONE, EXISTING_FOLDER, json_option
from merlin.cli.output import print_json, remark
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.execution.repair import RepairResult
    from merlin.shards.proving.verify import VerifyReport

EXIT_INTERRUPTED = 130


@click.command()
@path_argument
@click.option("--quick", is_flag=True, help="Read no values: files, sizes, sidecars, headers, texts, counts.")
@click.option(
    "--repair",
    "with_repair",
    is_flag=True,
    help="Run again exactly the samples whose data is lost, and rebuild what is damaged.",
)
@click.option(
    "--workspace",
    type=EXISTING_FOLDER,
    metavar="DIR",
    help="With --repair: the workspace of the study, for a data set that was copied elsewhere.",
)
@click.option(
    "--workers",
    "num_workers",
    type=AT_LEAST_ONE,
    metavar="N",
    help="Threads that read, and processes that run samples again [default: all cores].",
)
@json_option
def verify(
    path: Path,
    quick: bool,
    with_repair: bool,
    workspace: Path | None,
    num_workers: int | None,
    as_json: bool,
) -> None:
    """Prove that data sets are what was written, or say what is damaged, down to the samples.

    Reads every byte again and compares it with the digests, the values with the statistics, and the rows with the
    counts. Exits with 0 if every data set is intact (or was repaired), with 1 if one is damaged, with 2 if PATH is
    no data set.
    """
    from merlin.cli.display import progress_bar
    from merlin.shards.proving.verify import verify as verify_one

    if with_repair and quick:
        raise UsageError("--repair needs the full check; leave out --quick")
    if workspace is not None and not with_repair:
        raise UsageError("--workspace says where --repair runs samples again; give both")

    def check(folder: Path) -> VerifyReport:
        with progress_bar(f"verify {folder.name}", "bytes") as report_bytes:
            return verify_one(folder, report_bytes, quick=quick, workers=num_workers)

    documents, code = [], 0
    for folder in find_data_sets(path, lost=True):
        report = check(folder)
        document: dict[str, Any] = report.to_json()
        if not as_json:
            _show(report, with_advice=not with_repair)
        if with_repair:
            report, done = _repair(folder, report, workspace, check, num_workers)
            document = {**report.to_json(), "damage_before": document["damage"], "repair": done.to_json()}
            if not as_json and done.has_changes:
                from merlin.cli.repairing import show_repair

                show_repair(report, done)
            code = max(code, int(len(done.failed) > 0), EXIT_INTERRUPTED * done.was_interrupted)
        documents.append(document)
        code = max(code, int(not report.ok))
    if as_json:
        print_json(documents)
    sys.exit(code)


def _repair(
    folder: Path,
    report: VerifyReport,
    workspace: Path | None,
    check: Callable[[Path], VerifyReport],
    num_workers: int | None,
) -> tuple[VerifyReport, RepairResult]:
    from merlin.api.repairing import repair
    from merlin.cli.progress import choose_display

    return repair(
        folder,
        report,
        workspace=workspace,
        verify=check,
        watch=choose_display,
        note=remark,
        workers=num_workers,
    )


def _show(report: VerifyReport, *, with_advice: bool) -> None:
    from merlin.api.repairing import how_to_repair

    for problem in report.problems:
        print(problem.render())
    verdict = "intact" if report.ok else f"DAMAGED, {count(len(report.problems), 'problem')}"
    lost = sum(b - a for a, b in report.samples)
    print(f"{report.path}: {verdict}" + (f"; {count(lost, 'sample')} lost" if lost else ""))
    if report.counts is None:
        print("  its shards were not checked, as nothing but its study could tell what they have to hold")
    else:
        _show_size(report)
    if with_advice and not report.ok:
        print(f"  {how_to_repair(report)}")


def _show_size(report: VerifyReport) -> None:
    print(f"  {report.counts}")
    pace = f" ({size(report.num_read / report.seconds)}/s)" if report.num_read and report.seconds else ""
    read = f"{size(report.num_read)} of {size(report.size_bytes)} read in {duration(report.seconds)}{pace}"
    print(f"  {count(report.num_rows, 'sample')} in {count(report.num_shards, 'shard')}, {read}")
