"""Displays of a training run: a row per trainer that redraws itself in a terminal, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from merlin.base.text import duration

if TYPE_CHECKING:
    from merlin.train.reports import Note, Report

LINE_EVERY_S = 5.0
REDRAW_S = 0.1


def number(value: float | None) -> str:
    """Four significant digits; "" for none."""
    return "" if value is None else f"{value:.4g}"


def per_second(rate: float) -> str:
    return f"{rate:,.0f}" if rate else ""


def metrics_text(report: Report) -> str:
    """ "loss 0.0123, mae 0.08"; the loss first."""
    names = sorted(report.metrics, key=lambda name: (name != "loss", name))
    return ", ".join(f"{name} {number(report.metrics[name])}" for name in names[:3])


def loss_text(report: Report) -> str:
    """The training loss; of several phases, each."""
    found = {name: value for name, value in report.losses.items() if name.rpartition("/")[2] == "loss"}
    if len(found) == 1:
        return number(next(iter(found.values())))
    return " ".join(f"{name.partition('/')[0]} {number(value)}" for name, value in found.items())


class TrainLines:
    """Writes a line when a trainer was validated or ends, and now and then between."""

    def __init__(
        self, *, write: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or self._to_stderr
        self._clock = clock
        self._last: dict[int, float] = {}
        self._seen: dict[int, tuple[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    @staticmethod
    def _to_stderr(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def report(self, report: Report) -> None:
        now, seen = self._clock(), (report.state, dict(report.metrics))
        changed = self._seen.get(report.trainer) != seen
        if not changed and now - self._last.get(report.trainer, 0.0) < LINE_EVERY_S:
            return
        ended = report.state in ("finished", "stopped", "failed")
        if report.state == "training" and now - self._last.get(report.trainer, 0.0) < 0.5:
            return  # validations of a very small run
        self._last[report.trainer], self._seen[report.trainer] = now, seen
        if report.state == "starting":
            return
        parts = [f"step {report.step:,} of {report.num_steps:,}", f"epoch {report.epoch:.2f}"]
        parts += [f"loss {loss_text(report)}"] if report.losses else []
        parts += [f"validation {metrics_text(report)}"] if report.metrics else []
        parts += [f"round {report.round}"] if report.round else []
        parts += [f"{per_second(report.samples_per_s)} samples/s"] if report.samples_per_s else []
        parts += [f"{report.state}: {report.reason}"] if ended else []
        parts += [f"{duration(report.eta_s)} to go"] if not ended and report.eta_s else []
        self._write(f"trainer {report.trainer}: {', '.join(parts)}")

    def note(self, note: Note) -> None:
        self._write(f"trainer {note.trainer}: {note.text}")


class TrainTable:
    """A row per trainer, redrawn on stderr."""

    _STYLES = {"finished": "green", "failed": "red", "stopped": "yellow", "starting": "dim"}  # noqa: RUF012

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._reports: dict[int, Report] = {}
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.update(self._draw(), refresh=True)
        self._live.stop()

    def report(self, report: Report) -> None:
        before = self._reports.get(report.trainer)
        self._reports[report.trainer] = report
        now = self._clock()
        if before is not None and before.state == report.state and now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        self._live.update(self._draw(), refresh=True)

    def note(self, note: Note) -> None:
        self._live.console.print(f"trainer {note.trainer}: {note.text}")

    def _draw(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False, header_style="dim")
        grid.add_column("trainer", justify="right", no_wrap=True)
        grid.add_column("", width=20)
        for name in ("step", "epoch", "samples/s", "loss"):
            grid.add_column(name, justify="right", no_wrap=True)
        grid.add_column("validation", no_wrap=True)
        for name in ("round", "to go"):
            grid.add_column(name, justify="right", no_wrap=True)
        room = max(3, self._console.height - 4)
        reports = sorted(self._reports.values(), key=lambda r: r.trainer)
        for report in reports[:room]:
            style = self._STYLES.get(report.state, "")
            left = report.state if style else duration(report.eta_s)
            grid.add_row(
                str(report.trainer),
                ProgressBar(total=max(1, report.num_steps), completed=report.step, width=20),
                f"{report.step:,}/{report.num_steps:,}" if report.num_steps else "",
                f"{report.epoch:.1f}" if report.num_steps else "",
                per_second(report.samples_per_s),
                loss_text(report),
                metrics_text(report),
                f"{report.round} ({report.wins} won)" if report.round else "",
                Text(left, style=style),
            )
        if len(reports) > room:
            grid.add_row("", "", f"… {len(reports) - room} more")
        return grid


def choose_train_display() -> TrainTable | TrainLines:
    """A table when stderr is a terminal, lines elsewhere."""
    return TrainTable() if sys.stderr is not None and sys.stderr.isatty() else TrainLines()
