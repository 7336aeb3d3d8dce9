"""`merlin status`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.options import json_option, study_options

if TYPE_CHECKING:
    from merlin.cli.live import Live
    from merlin.status.snapshot import Snapshot, StepStatus

BAR_WIDTH = 30
_FILLS = {"ok": "█", "failed": "▓", "skipped": "▒", "missing": "·"}
_CB_FILLS = {"ok": "#", "failed": "X", "skipped": "/", "missing": "."}
_COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow", "missing": ""}


@click.command()
@study_options
@click.option("--cb-help", is_flag=True, help="Symbols that do not need colours to be told apart.")
@json_option
def status(
    spec_or_workspace: Path,
    output: Path | None,
    dump: Path | None,
    no_prompts: bool,
    task_server: str,
    cb_help: bool,
    as_json: bool,
) -> None:
    """Show how far a study is, step by step.

    For a directory of workspaces, its studies are listed, one line each, the newest first.
    For a spec, the newest workspace of its study is shown; extensions are shown below their study. Takes well under
    a second for a million tasks and never disturbs the run.
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.live import live_snapshot
    from merlin.cli.output import check_dump, dump_file, jsonable, print_json
    from merlin.cli.studies import holds_studies, list_studies
    from merlin.workspace.directory import shown_together

    check_dump(dump)
    if holds_studies(spec_or_workspace):
        list_studies(spec_or_workspace, as_json=as_json, dump=dump)
        return
    study, *extensions = shown_together(
        find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    )
    first, *more = [live_snapshot(each) for each in (study, *extensions)]
    snapshot, added = first.snapshot, [live.snapshot for live in more]
    if first.note:
        print(first.note, file=sys.stderr)
    document = {**jsonable(snapshot), "extensions": added} if added else snapshot
    if dump is not None:
        names = [study.member, *(extension.member for extension in extensions)]
        rows = [
            {"extension": name, **_flat(step)} if added else _flat(step)
            for name, each in zip(names, [snapshot, *added], strict=True)
            for step in each.steps
        ]
        dump_file(dump, rows, document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    else:
        show(snapshot, added, cb_help=cb_help)
        _show_idle([first, *more])


def _show_idle(studies: Sequence[Live]) -> None:
    """Say where no worker is there, and how to start one."""
    from merlin.cli.watch import nobody_serves
    from merlin.errors import command_line

    for live in studies:
        start = command_line("run-workers", live.snapshot.workspace)
        if live.idle_queues:
            print(nobody_serves(live.idle_queues, 0, start))
        elif live.snapshot.state == "running" and not live.snapshot.num_workers:
            print(f"no worker serves the study; start some: {start}")


def _flat(step: StepStatus) -> dict[str, object]:
    """A step as a row of a CSV file."""
    from merlin.cli.output import jsonable

    facts = jsonable(step)
    return {key: value for key, value in facts.items() if isinstance(value, str | int | float | None)}


def bar(step: StepStatus, fills: dict[str, str], width: int = BAR_WIDTH) -> list[tuple[str, str]]:
    """Pieces (outcome, text) of a bar, together `width` long; every outcome that occurs has a cell."""
    counts = {kind: getattr(step, kind) for kind in fills}
    cells = {kind: max(num > 0, num * width // max(1, step.planned)) for kind, num in counts.items()}
    largest = max(cells, key=lambda kind: cells[kind])
    cells[largest] += width - sum(cells.values()) if step.planned else 0
    return [(kind, fills[kind] * num) for kind, num in cells.items()]


def show(snapshot: Snapshot, added: Sequence[Snapshot] = (), *, cb_help: bool = False) -> None:
    """Print a snapshot for people, and those of the study's extensions below it."""
    from merlin.cli.execute import on_failed_input, reconciled

    print(f"{snapshot.name}  {snapshot.state}  {snapshot.workspace}\n")
    width = max((len(s.step) for each in (snapshot, *added) for s in each.steps), default=4)
    _show_steps(snapshot, width, cb_help)
    for extension in added:
        print(f"\n{Path(extension.workspace).relative_to(snapshot.workspace)}  {extension.state}\n")
        _show_steps(extension, width, cb_help)
    if cb_help:
        print("\n" + "  ".join(f"{fill} {kind}" for kind, fill in _CB_FILLS.items()))
    totals = {
        kind: sum(getattr(step, kind) for each in (snapshot, *added) for step in each.steps)
        for kind in ("planned", "ok", "failed", "skipped", "missing")
    }
    print(f"\ntasks: {reconciled(totals)}")
    if num := sum(each.totals.on_failed_input for each in (snapshot, *added)):
        print(on_failed_input(num))
    for data_set in snapshot.data_sets:
        print(f"samples in {data_set.aggregate}: {data_set.samples}")
    _show_advice([snapshot, *added], totals)


def _show_steps(snapshot: Snapshot, width: int, cb_help: bool) -> None:
    from rich.text import Text

    from merlin.base.text import rate
    from merlin.cli.output import console

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


def _show_advice(snapshots: Sequence[Snapshot], totals: Mapping[str, int]) -> None:
    """Who is at work, how long it takes, and the next command."""
    from merlin.base.text import count, duration
    from merlin.cli.advice import next_commands
    from merlin.errors import command_line

    running = [snapshot for snapshot in snapshots if snapshot.state == "running"]
    for snapshot in running:
        if not snapshot.num_workers:
            continue  # `_show_idle` says it
        at_work = sum(step.running for step in snapshot.steps)
        # a local run does not tell before its first outcome
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
