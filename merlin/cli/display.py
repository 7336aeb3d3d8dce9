"""Displays of work on stderr: lines now and then, or a picture that a terminal redraws; and a bar made of these."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from merlin.base.text import duration, size
from merlin.cli.output import is_terminal, remark, stderr_is_terminal

LINE_EVERY_S = 5.0
LATE_S = 2.0
RATE_WINDOW_S = 10.0

OnProgress = Callable[[int, int], None]  # done, in all


class Speed:
    """Tasks per second over the last seconds, so that the forecast follows the present."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> None:
        self._points.append((now, done))
        while len(self._points) > 2 and self._points[1][0] <= now - self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        if len(self._points) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._points[0], self._points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0


class Lines:
    """Writes lines. Times come from the clock that is passed in."""

    def __init__(
        self, *, write: Callable[[str], Any] = remark, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class Picture:
    """Redraws itself in a terminal; with `stays` the last picture remains."""

    def __init__(self, *, stays: bool, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=not stays)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    @property
    def _num_rows(self) -> int:
        """Rows that the terminal has room for."""
        return max(3, self._console.height - 4)

    def _show(self, picture: Any) -> None:
        self._live.update(picture, refresh=True)

    def _note(self, text: str) -> None:
        """Print a line that stays above the picture."""
        self._live.console.print(text)


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Show that the work goes on, if stdout is a terminal; yields a function to call with what is done next."""
    if not is_terminal():
        yield lambda what: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update


@contextmanager
def progress_bar(label: str, unit: str, *, quiet: bool = False) -> Iterator[OnProgress]:
    """Yield a function to call with how much is done, and how much there is; for "bytes" the rate is shown, too."""
    if quiet:
        yield lambda done, total: None
    elif stderr_is_terminal():
        with _bar(label, unit) as report:
            yield report
    else:
        yield _lines(label, unit)


@contextmanager
def late_progress(
    label: str, unit: str, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """As `progress_bar`, for what is often short: a terminal shows nothing in the first seconds, nor at the end."""
    if not stderr_is_terminal():
        yield _lines(label, unit)
        return
    begin = clock()
    shown: OnProgress | None = None
    with ExitStack() as bar:

        def report(done: int, total: int) -> None:
            nonlocal shown
            if done >= total:
                bar.close()
                shown = None
            elif shown is None and clock() - begin >= LATE_S:
                shown = bar.enter_context(_bar(label, unit))
            if shown is not None:
                shown(done, total)

        yield report


@contextmanager
def _bar(label: str, unit: str) -> Iterator[OnProgress]:
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


def _lines(label: str, unit: str) -> OnProgress:
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
