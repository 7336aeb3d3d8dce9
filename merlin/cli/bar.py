"""A bar for work that is counted: redrawn in a terminal, a line now and then elsewhere; both on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from merlin.base.text import duration, size
from merlin.cli.display import LINE_EVERY_S, Speed, stderr_is_terminal
from merlin.cli.output import remark

Report = Callable[[int, int], None]  # done, in all


@contextmanager
def progress_bar(label: str, unit: str, *, quiet: bool = False) -> Iterator[Report]:
    """Yield what is to be called with how much is done, and how much there is; of "bytes" the rate is shown, too."""
    if quiet:
        yield lambda done, total: None
    elif stderr_is_terminal():
        with _bar(label, unit) as report:
            yield report
    else:
        yield _lines(label, unit)


@contextmanager
def _bar(label: str, unit: str) -> Iterator[Report]:
    from rich import progress
    from rich.console import Console

    counts = (progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),)
    sizes = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(28),
        *(sizes if unit == "bytes" else counts),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=1)
        yield lambda done, total: bars.update(task, completed=done, total=max(1, total))


def _lines(label: str, unit: str) -> Report:
    speed = Speed()
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        speed.add(now, done)
        if now - last < LINE_EVERY_S:
            return
        last = now
        pace = speed.per_second()
        so_far = f"{done:,} of {total:,} {unit}"
        if unit == "bytes":
            so_far = f"{size(done)} of {size(total)}" + (f", {size(pace)}/s" if pace else "")
        to_go = f", {duration((total - done) / pace)} to go" if pace else ""
        remark(f"{label}: {so_far}{to_go}")

    return report
