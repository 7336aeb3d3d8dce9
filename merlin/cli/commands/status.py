"""`merlin status`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.options import json_option, study_options

if TYPE_CHECKING:
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

    For a spec, the newest workspace of its study is shown. Takes well under a second for a million tasks and
    never disturbs the run.
    """
    from merlin.cli.find import find_workspace
    from merlin.cli.live import live_snapshot
    from merlin.cli.output import check_dump, dump_file, print_json

    check_dump(dump)
    snapshot, note = live_snapshot(
        find_workspace(spec_or_workspace, output=output, ask=not (no_prompts or as_json))
    )
    if note:
        print(note, file=sys.stderr)
    if dump is not None:
        dump_file(dump, [_flat(step) for step in snapshot.steps], snapshot)
        print(f"status written to {dump}")
    elif as_json:
        print_json(snapshot)
    else:
        show(snapshot, cb_help=cb_help)


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


def show(snapshot: Snapshot, *, cb_help: bool = False) -> None:
    """Print a snapshot for people."""
    from rich.text import Text

    from merlin.cli.execute import reconciled
    from merlin.cli.output import console, count, duration, rate

    out = console()
    print(f"{snapshot.name}  {snapshot.state}  {snapshot.workspace}\n")
    width = max((len(s.step) for s in snapshot.steps), default=4)
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
    if cb_help:
        print("\n" + "  ".join(f"{fill} {kind}" for kind, fill in _CB_FILLS.items()))
    totals = {
        k: sum(getattr(s, k) for s in snapshot.steps)
        for k in ("planned", "ok", "failed", "skipped", "missing")
    }
    print(f"\n{reconciled(totals)}")
    if snapshot.state == "running":
        at_work = sum(step.running for step in snapshot.steps)
        print(f"{count(snapshot.num_workers, 'worker process', 'worker processes')}, {at_work:,} at work")
    if snapshot.state == "running" and snapshot.eta_s:
        print(f"about {duration(snapshot.eta_s)} to go")
    if totals["missing"] and snapshot.state != "running":
        print(f"resume with: merlin restart {snapshot.workspace}")
    if totals["failed"]:
        print(f"why they failed: merlin failures {snapshot.workspace}")
