"""Displays of a running study: bars that redraw themselves in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from merlin.base.text import count, duration, rate
from merlin.cli.display import LINE_EVERY_S, Lines, Picture, Speed
from merlin.cli.output import remark, stderr_is_terminal
from merlin.execution.events import Observer, Progress
from merlin.plan.plan import Plan
from merlin.plan.task_states import TaskCounts


def tally(counts: TaskCounts) -> str:
    """ "480 ok, 20 failed of 1,000"."""
    parts = [f"{counts.ok:,} ok"]
    parts += [f"{counts.failed:,} failed"] if counts.failed else []
    parts += [f"{counts.skipped:,} skipped"] if counts.skipped else []
    return f"{', '.join(parts)} of {counts.planned:,}"


class LineDisplay(Lines, Observer):
    """Writes a line per step when it ends, and one about the rest every few seconds."""

    def __init__(
        self, *, write: Callable[[str], Any] = remark, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(write=write, clock=clock)
        self._ended: set[str] = set()  # steps whose end was written
        self._last = clock()
        self._speeds: dict[str, Speed] = {}

    def started(self, plan: Plan, progress: Progress) -> None:
        totals = progress.per_step
        self._ended = {step for step, total in totals.items() if not total.missing}
        self._speeds = {step: Speed() for step in totals}
        for step, total in totals.items():
            self._speeds[step].add(self._clock(), total.done)
        done = sum(t.done for t in totals.values())
        planned = sum(t.planned for t in totals.values())
        before = f", {done:,} of them done before" if done else ""
        self._write(f"{plan.name}: {count(len(totals), 'step')}, {count(planned, 'task')}{before}")

    def progress(self, progress: Progress) -> None:
        now = self._clock()
        is_time = now - self._last >= LINE_EVERY_S
        for step, total in progress.per_step.items():
            self._speeds[step].add(now, total.done)
            if not total.missing and step not in self._ended:
                self._ended.add(step)
                self._write(f"{step}: {tally(total)}")
            elif is_time and total.running and total.missing:
                speed = self._speeds[step].per_second()
                forecast = f", {rate(speed)}, {duration(total.missing / speed)} to go" if speed else ""
                self._write(f"{step}: {tally(total)}{forecast}")
        if is_time:
            self._last = now

    def note(self, text: str) -> None:
        self._write(text)


class LiveDisplay(Picture, Observer):
    """A bar per step, redrawn a few times per second on stderr."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stays=False, clock=clock)
        self._name = ""
        self._speeds: dict[str, Speed] = {}
        self._begin = clock()

    def started(self, plan: Plan, progress: Progress) -> None:
        self._name, self._begin = plan.name, self._clock()
        self.progress(progress)

    def progress(self, progress: Progress) -> None:
        now = self._clock()
        for step, total in progress.per_step.items():
            self._speeds.setdefault(step, Speed()).add(now, total.done)
        self._show(self._drawn(progress.per_step, now))

    def note(self, text: str) -> None:
        self._note(text)

    def _drawn(self, totals: Mapping[str, TaskCounts], now: float) -> Any:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for justify in ("left", "left", "right", "left", "right", "right"):
            grid.add_column(justify=justify, no_wrap=True)
        rows = list(totals.items())
        if len(rows) > self._num_rows:  # those at work first
            rows.sort(key=lambda item: (not item[1].missing, not item[1].running))
        for step, total in rows[: self._num_rows]:
            grid.add_row(*self._row(step, total))
        if len(rows) > self._num_rows:
            grid.add_row(f"… {len(rows) - self._num_rows} more")
        grid.add_row(Text(f"{self._name}  {duration(now - self._begin)}", style="dim"))
        return grid

    def _row(self, step: str, total: TaskCounts) -> tuple[Any, ...]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done, left, speed = total.done, total.missing, self._speeds[step].per_second()
        bad = Text(f"{total.failed:,} failed" if total.failed else "", style="red")
        if total.skipped:
            bad.append(f" {total.skipped:,} skipped", style="yellow")
        return (
            Text(step, style="bold" if total.running else ""),
            ProgressBar(max(1, total.planned), done, width=28, complete_style="cyan", finished_style="green"),
            f"{done:,}/{total.planned:,}",
            bad,
            rate(speed) if left else "",
            f"{duration(left / speed)} left" if left and speed else "",
        )


def choose_display() -> LiveDisplay | LineDisplay:
    """Bars when stderr is a terminal, lines elsewhere."""
    return LiveDisplay() if stderr_is_terminal() else LineDisplay()
