"""Displays of a running study: bars that redraw themselves in a terminal, a line now and then elsewhere.

Both are observers of the execution layer. Times come from a clock that is passed in.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from merlin.base.text import count, duration, rate

if TYPE_CHECKING:
    from merlin.execution.events import Progress, RunSummary
    from merlin.plan.plan import Plan
    from merlin.plan.task_states import Counts

LINE_EVERY_S = 5.0
RATE_WINDOW_S = 10.0


def num_done(counts: Counts) -> int:
    """Tasks that have ended, one way or another."""
    return counts.ok + counts.failed + counts.skipped


def tally(counts: Counts) -> str:
    """ "480 ok, 20 failed of 1,000"."""
    parts = [f"{counts.ok:,} ok"]
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"{counts.skipped:,} skipped"] if counts.skipped else []
    return f"{', '.join(parts)} of {counts.planned:,}"


class Speed:
    """Tasks per second over the last seconds, so that the ETA follows the present."""

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


class LineDisplay:
    """Writes a line per step when it ends, and one about the rest every few seconds."""

    def __init__(
        self, *, write: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or self._to_stderr
        self._clock = clock
        self._plan: Plan | None = None
        self._told: set[str] = set()
        self._last = clock()
        self._speeds: dict[str, Speed] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    @staticmethod
    def _to_stderr(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def started(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        totals = progress.per_step
        self._told = {step for step, t in totals.items() if num_done(t) >= t.planned}
        for step, total in totals.items():
            self._speeds[step] = Speed()
            self._speeds[step].add(self._clock(), num_done(total))
        done = sum(num_done(t) for t in totals.values())
        planned = sum(t.planned for t in totals.values())
        before = f", {done:,} of them done before" if done else ""
        self._write(f"{plan.name}: {count(len(totals), 'step')}, {count(planned, 'task')}{before}")

    def progress(self, progress: Progress) -> None:
        if self._plan is None:
            return
        now = self._clock()
        totals = progress.per_step
        for step, total in totals.items():
            self._speeds[step].add(now, num_done(total))
            if num_done(total) >= total.planned and step not in self._told:
                self._told.add(step)
                self._write(f"{step}: {tally(total)}")
        if now - self._last < LINE_EVERY_S:
            return
        self._last = now
        for step, total in totals.items():
            if total.running and not num_done(total) >= total.planned:
                speed = self._speeds[step].per_second()
                eta = duration((total.planned - num_done(total)) / speed) if speed else ""
                self._write(f"{step}: {tally(total)}" + (f", {rate(speed)}, {eta} to go" if eta else ""))

    def note(self, text: str) -> None:
        self._write(text)

    def finished(self, summary: RunSummary) -> None:
        return None


class LiveDisplay:
    """A bar per step, redrawn a few times per second on stderr."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._plan: Plan | None = None
        self._totals: Mapping[str, Counts] = {}
        self._speeds: dict[str, Speed] = {}
        self._begin = clock()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def started(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._begin = self._clock()
        self.progress(progress)

    def progress(self, progress: Progress) -> None:
        if self._plan is None:
            return
        now = self._clock()
        self._totals = progress.per_step
        for step, total in self._totals.items():
            self._speeds.setdefault(step, Speed()).add(now, num_done(total))
        self._live.update(self._draw(now), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(text)

    def finished(self, summary: RunSummary) -> None:
        return None

    def _draw(self, now: float) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._plan is not None
        grid = Table.grid(padding=(0, 1))
        for justify in ("left", "left", "right", "left", "right", "right"):
            grid.add_column(justify=justify, no_wrap=True)
        rows = list(self._totals.items())
        room = max(3, self._console.height - 4)
        if len(rows) > room:  # those at work first
            rows.sort(key=lambda item: (num_done(item[1]) >= item[1].planned, not item[1].running))
        for step, total in rows[:room]:
            speed = self._speeds[step].per_second()
            left = total.planned - num_done(total)
            bad = Text(f"{total.failed:,} failed" if total.failed else "", style="red")
            if total.skipped:
                bad.append(f" {total.skipped:,} skipped", style="yellow")
            grid.add_row(
                Text(step, style="bold" if total.running else ""),
                ProgressBar(
                    total=max(1, total.planned),
                    completed=num_done(total),
                    width=28,
                    complete_style="cyan",
                    finished_style="green",
                ),
                f"{num_done(total):,}/{total.planned:,}",
                bad,
                rate(speed) if left else "",
                f"{duration(left / speed)} left" if left and speed else "",
            )
        if len(rows) > room:
            grid.add_row(f"… {len(rows) - room} more")
        grid.add_row(Text(f"{self._plan.name}  {duration(now - self._begin)}", style="dim"))
        return grid


def choose_display() -> LiveDisplay | LineDisplay:
    """Bars when stderr is a terminal, lines elsewhere."""
    return LiveDisplay() if sys.stderr is not None and sys.stderr.isatty() else LineDisplay()
