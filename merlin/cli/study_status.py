"""Shows how far studies are: one step by step, or those of a directory in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merlin.base.text import count, duration, rate
from merlin.cli.execute import COUNTS, next_commands, on_failed_input, reconciled
from merlin.cli.output import console, dump_file, plain, print_json, print_table, remark
from merlin.errors import command_line
from merlin.status.snapshot import Snapshot, StepStatus
from merlin.views.live import LiveStudy, live_study
from merlin.views.studies import StudyLine, studies_in
from merlin.views.watch import nobody_serves
from merlin.workspace.directory import Workspace, shown_together

BAR_WIDTH = 30
_FILLS = {"ok": "█", "failed": "▓", "skipped": "▒", "missing": "·"}
_CB_FILLS = {"ok": "#", "failed": "X", "skipped": "/", "missing": "."}
_COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow", "missing": ""}


def list_studies(folder: Path, *, as_json: bool, dump: Path | None) -> None:
    """Print the studies in `folder`, or write them into the file `dump`."""
    studies = studies_in(folder)
    document = {"directory": folder.absolute(), "studies": studies}
    if dump is not None:
        dump_file(dump, plain(studies), document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    else:
        columns = ("study", "when", "state", *COUNTS, "workspace")
        print_table(columns, map(_row, studies), right=COUNTS)


def _row(study: StudyLine) -> tuple[str, ...]:
    if study.problem:
        return (study.name, study.when, study.state, *("" for _ in COUNTS), study.problem)
    numbers = (f"{getattr(study, kind):,}" for kind in COUNTS)
    return (study.name, study.when, study.state, *numbers, study.workspace)


def show_status(workspace: Workspace, *, as_json: bool, dump: Path | None, cb_help: bool) -> None:
    """Print how far the study and its extensions are, or write it into the file `dump`."""
    members = shown_together(workspace)
    studies = [live_study(member) for member in members]
    first, *added = [study.snapshot for study in studies]
    if studies[0].note:
        remark(studies[0].note)
    document = {**plain(first), "batch_jobs": [counts for study in studies for counts in study.jobs]}
    document |= {"extensions": added} if added else {}
    if dump is not None:
        names = [{"extension": member.member} if added else {} for member in members]
        rows = [
            name | _flat(step)
            for name, study in zip(names, studies, strict=True)
            for step in study.snapshot.steps
        ]
        dump_file(dump, rows, document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    else:
        _show([first, *added], cb_help=cb_help)
        _show_idle(studies)


def _flat(step: StepStatus) -> dict[str, Any]:
    """A step as a row of a CSV file."""
    return {key: value for key, value in plain(step).items() if isinstance(value, str | int | float | None)}


def _show(snapshots: Sequence[Snapshot], *, cb_help: bool) -> None:
    """Print the snapshot of a study, and those of its extensions below it."""
    first, *added = snapshots
    print(f"{first.name}  {first.state}  {first.workspace}\n")
    width = max((len(step.step) for each in snapshots for step in each.steps), default=4)
    _show_steps(first, width, cb_help)
    for extension in added:
        print(f"\n{Path(extension.workspace).relative_to(first.workspace)}  {extension.state}\n")
        _show_steps(extension, width, cb_help)
    if cb_help:
        print("\n" + "  ".join(f"{fill} {kind}" for kind, fill in _CB_FILLS.items()))
    totals = {kind: sum(getattr(each.totals, kind) for each in snapshots) for kind in COUNTS}
    print(f"\ntasks: {reconciled(totals)}")
    if num := sum(each.totals.on_failed_input for each in snapshots):
        print(on_failed_input(num))
    for data_set in first.data_sets:
        print(f"samples in {data_set.aggregate}: {data_set.samples}")
    show_advice(snapshots, totals)


def _show_steps(snapshot: Snapshot, width: int, cb_help: bool) -> None:
    from rich.text import Text

    out = console()
    for step in snapshot.steps:
        line = Text(f"{step.step:<{width}}  ")
        for kind, piece in bar(step, _CB_FILLS if cb_help else _FILLS):
            line.append(piece, style="" if cb_help else _COLOURS[kind])
        line.append(f"  {step.ok:,} ok")
        for kind in ("failed", "skipped", "missing"):
            if getattr(step, kind):
                line.append(f", {getattr(step, kind):,} {kind}", style="" if cb_help else _COLOURS[kind])
        line.append(f" of {step.planned:,}")
        line.append(f"  {rate(step.rate)}" if step.missing and step.rate else "")
        out.print(line)


def bar(step: StepStatus, fills: Mapping[str, str], width: int = BAR_WIDTH) -> list[tuple[str, str]]:
    """Pieces (outcome, text) of a bar, together `width` long; every outcome that occurs has a cell."""
    counts = {kind: getattr(step, kind) for kind in fills}
    cells = {kind: max(num > 0, num * width // max(1, step.planned)) for kind, num in counts.items()}
    largest = max(cells, key=lambda kind: cells[kind])
    cells[largest] += width - sum(cells.values()) if step.planned else 0
    return [(kind, fills[kind] * num) for kind, num in cells.items()]


def show_advice(snapshots: Sequence[Snapshot], totals: Mapping[str, int]) -> None:
    """Print who is at work, how long it takes, and the next command."""
    running = [snapshot for snapshot in snapshots if snapshot.state == "running"]
    for snapshot in running:
        if not snapshot.num_workers:
            continue  # `_show_idle` says it
        at_work = sum(step.running for step in snapshot.steps)
        # a local run says nothing of its tasks before the first outcome
        busy = f", {at_work:,} at work" if at_work else ""
        print(f"{count(snapshot.num_workers, 'worker process', 'worker processes')}{busy}")
        if snapshot.eta_s:
            print(f"about {duration(snapshot.eta_s)} to go")
    if totals["missing"] and not running:
        reason = next((snapshot.stop_reason for snapshot in snapshots if snapshot.stop_reason), "")
        for line in next_commands(snapshots[0].workspace, reason, has_failed=totals["failed"] > 0):
            print(line)
    if totals["failed"]:
        print(f"why they failed: {command_line('failures', snapshots[0].workspace)}")


def _show_idle(studies: Sequence[LiveStudy]) -> None:
    """Say what batch jobs there are, where no worker is, and how to start one."""
    for study in studies:
        for counts in study.jobs:
            print(counts)
        if study.idle_queues:
            print(nobody_serves(study.idle_queues, 0, study.start))
        elif study.snapshot.state == "running" and not study.snapshot.num_workers:
            print(f"no worker serves the study; start some: {study.start}")
