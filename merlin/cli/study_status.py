"""Shows how far a study and its extensions are, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merlin.base.text import count, duration, rate
from merlin.cli.advice import on_failed_input, reconciled
from merlin.cli.outcome_bar import COLOURS, FILLS, bar
from merlin.cli.output import can_show, console, plain, print_json
from merlin.errors import command_line
from merlin.plan.outcome_counts import OUTCOMES
from merlin.status.activity import nobody_serves
from merlin.status.eta import Eta
from merlin.status.snapshot import Snapshot, StepStatus
from merlin.views.after_stop import next_commands
from merlin.views.live import AskServers, LiveStudy, live_study
from merlin.workspace.directory import Workspace, shown_together

BAR_WIDTH = 30
MAX_FINISHED = 3  # extensions that have their steps shown
OVER = ("new", "stopped", "failed", "finished")  # states in which nothing goes on
_CB_FILLS = {"ok": "#", "failed": "X", "skipped": "/", "missing": "."}


def show_status(workspace: Workspace, *, as_json: bool, dump: Path | None, cb_help: bool) -> None:
    """Print how far the study and its extensions are, or write it into the file `dump`."""
    members = shown_together(workspace)
    servers = AskServers()
    studies = [live_study(member, servers) for member in members]
    first, *added = [study.snapshot for study in studies]
    document = {**plain(first), "batch_jobs": [counts for study in studies for counts in study.jobs]}
    document |= {"extensions": added} if added else {}
    if dump is not None:
        rows = [
            ({"extension": member.member} if added else {}) | _flat(step)
            for member, study in zip(members, studies, strict=True)
            for step in study.snapshot.steps
        ]
        from merlin.cli.status_dump import add_to_dump

        add_to_dump(dump, rows, document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    else:
        _show([first, *added], [member.plan.num_samples for member in members], cb_help=cb_help)
        _show_idle(studies)


def _flat(step: StepStatus) -> dict[str, Any]:
    """A step as a row of a CSV file."""
    row: dict[str, Any] = plain(step)
    times = row.pop("eta") or {}
    return row | {f"eta_{name}": times.get(name) for name in ("low_s", "mid_s", "high_s")}


def _show(snapshots: Sequence[Snapshot], nums_samples: Sequence[int], *, cb_help: bool) -> None:
    """Print the snapshot of a study, and those of its extensions below it."""
    first, *added = snapshots
    cb_help = cb_help or not can_show("".join(FILLS.values()))
    print(f"{first.name}  {first.state}  {first.workspace}")
    print(f"{first.state_reason}\n" if first.state_reason else "")
    width = max((len(step.step) for each in snapshots for step in each.steps), default=4)
    _show_steps(first, width, cb_help)
    for extension in _without_many_finished(added, nums_samples[1:]):
        print(f"\n{Path(extension.workspace).relative_to(first.workspace)}  {extension.state}")
        print(f"{extension.state_reason}\n" if extension.state_reason else "")
        _show_steps(extension, width, cb_help)
    if cb_help:
        print("\n" + "  ".join(f"{fill} {kind}" for kind, fill in _CB_FILLS.items()))
    totals = {kind: sum(getattr(each.totals, kind) for each in snapshots) for kind in OUTCOMES}
    print(f"\ntasks: {reconciled(totals)}")
    if line := on_failed_input(
        (step.step, step.on_failed_input) for each in snapshots for step in each.steps
    ):
        print(line)
    for data_set in first.data_sets:
        print(f"samples in {data_set.aggregate}: {data_set.samples}")
    for place in (place for each in snapshots for place in each.damage):
        print(f"the ledger is damaged: {place}; tasks whose outcome only stood there count as missing")
    show_advice(snapshots, totals)


def _without_many_finished(added: Sequence[Snapshot], nums_samples: Sequence[int]) -> list[Snapshot]:
    """The extensions to show one by one; prints a line for those that have finished, if they are many."""
    finished = [num for num, each in zip(nums_samples, added, strict=True) if each.state == "finished"]
    if len(finished) <= MAX_FINISHED:
        return list(added)
    tasks = count(sum(each.totals.ok for each in added if each.state == "finished"), "task")
    print(f"\n{len(finished):,} extensions finished: {count(sum(finished), 'sample')}, {tasks} ok")
    return [each for each in added if each.state != "finished"]


def _show_steps(snapshot: Snapshot, width: int, cb_help: bool) -> None:
    from rich.text import Text

    out = console()
    for step in snapshot.steps:
        line = Text(f"{step.step:<{width}}  ")
        for kind, piece in bar(step, BAR_WIDTH, _CB_FILLS if cb_help else FILLS):
            line.append(piece, style="" if cb_help else COLOURS[kind])
        line.append(f"  {step.ok:,} ok")
        for kind in ("failed", "skipped", "missing"):
            if getattr(step, kind):
                line.append(f", {getattr(step, kind):,} {kind}", style="" if cb_help else COLOURS[kind])
        line.append(f" of {step.planned:,}")
        for fact in _pace(step, snapshot):
            line.append(f"  {fact}")
        out.print(line)


def _pace(step: StepStatus, snapshot: Snapshot) -> list[str]:
    """How fast a step goes on, with how many at work, and how long it takes."""
    if not step.missing or snapshot.state in OVER:
        return []
    facts = [rate(step.rate)] if step.rate else []
    if snapshot.state == "running":
        facts += [f"{step.running:,} at work"] if step.running else []
        facts += [f"{left(step.eta)} left"] if step.eta is not None else []
    return facts


def left(eta: Eta) -> str:
    """ "12 s (9.0 s to 20 s)"."""
    return f"{duration(eta.mid_s)} ({duration(eta.low_s)} to {duration(eta.high_s)})"


def show_advice(snapshots: Sequence[Snapshot], totals: Mapping[str, int]) -> None:
    """Print who is at work, how long it takes, and the next command."""
    for snapshot in snapshots:
        if snapshot.state == "running":
            _show_work(snapshot)
    if totals["missing"] and all(snapshot.state in OVER for snapshot in snapshots):
        reason = next((snapshot.stop_reason for snapshot in snapshots if snapshot.stop_reason), "")
        for line in next_commands(snapshots[0].workspace, reason, has_failed=totals["failed"] > 0):
            print(line)
    if totals["failed"]:
        print(f"why they failed: {command_line('failures', snapshots[0].workspace)}")


def _show_work(snapshot: Snapshot) -> None:
    if snapshot.num_workers:
        at_work = sum(step.running for step in snapshot.steps)
        # a local run says nothing of its tasks before the first outcome
        busy = f", {at_work:,} at work" if at_work else ""
        print(f"{count(snapshot.num_workers, 'worker process', 'worker processes')}{busy}")
    if snapshot.eta is not None and snapshot.eta.high_s:
        unknown = snapshot.eta.without
        rest = f", without {', '.join(unknown)}: nobody knows yet how long that takes" if unknown else ""
        print(f"about {left(snapshot.eta)} to go{rest}")
    elif snapshot.eta is None:
        print("how long the rest takes is not known yet")


def _show_idle(studies: Sequence[LiveStudy]) -> None:
    """Say what batch jobs there are, and where no worker is although others are at work."""
    for study in studies:
        for counts in study.jobs:
            print(counts)
        workers = study.workers
        if study.snapshot.state == "running" and workers is not None and workers.idle_queues:
            print(nobody_serves(workers.idle_queues, workers.num_workers, study.start))
