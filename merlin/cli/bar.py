"""A bar for work that is counted: redrawn in a terminal, a line now and then elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from merlin.base.text import duration, size
from merlin.cli.progress import LINE_EVERY_S, Speed

Tell = Callable[[int, int], None]  # done, in all


@contextmanager
def progress_bar(
    label: str, unit: str, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Tell]:
    """Yield what is to be called with how much is done, and how much there is; of "bytes" the rate is told, too."""
    if quiet:
        yield lambda done, total: None
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar(label, unit) as tell:
            yield tell
    else:
        yield _lines(label, unit, clock)


@contextmanager
def _bar(label: str, unit: str) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(28),
        *((DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else counts),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=1)
        yield lambda done, total: bars.update(task, completed=done, total=max(1, total))


def _lines(label: str, unit: str, clock: Callable[[], float]) -> Tell:
    speed = Speed()
    last = clock()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        speed.add(now, done)
        if now - last < LINE_EVERY_S:
            return
        last = now
        pace = speed.per_second()
        left = duration((total - done) / pace) if pace else ""
        to_go = f", {left} to go" if left else ""
        so_far = f"{done:,} of {total:,} {unit}"
        if unit == "bytes":
            so_far = f"{size(done)} of {size(total)}" + (f", {size(pace)}/s" if pace else "")
        print(f"{label}: {so_far}{to_go}", file=sys.stderr, flush=True)

    return tell
