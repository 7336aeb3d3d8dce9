"""Displays of a training run: a row per trainer that redraws itself in a terminal, lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from merlin.base.text import duration
from merlin.cli.display import LINE_EVERY_S, Lines, Picture
from merlin.cli.output import remark, stderr_is_terminal
from merlin.train.reports import Note, Report

REDRAW_S = 0.1
VALIDATED_EVERY_S = 0.5  # least time between lines about a very small run, which is validated often


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


class TrainLines(Lines):
    """Writes a line when a trainer was validated or ends, and now and then between."""

    def __init__(
        self, *, write: Callable[[str], Any] = remark, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(write=write, clock=clock)
        self._last: dict[int, float] = {}
        self._seen: dict[int, tuple[str, Any]] = {}

    def report(self, report: Report) -> None:
        now, seen = self._clock(), (report.state, dict(report.metrics))
        since = now - self._last.get(report.trainer, 0.0)
        has_changed = self._seen.get(report.trainer) != seen
        if since < LINE_EVERY_S and not has_changed:
            return
        if since < VALIDATED_EVERY_S and report.state == "training":
            return
        self._last[report.trainer], self._seen[report.trainer] = now, seen
        if report.state != "starting":
            self._write(f"trainer {report.trainer}: {', '.join(_facts(report))}")

    def note(self, note: Note) -> None:
        self._write(f"trainer {note.trainer}: {note.text}")


def _facts(report: Report) -> list[str]:
    ended = report.state in ("finished", "stopped", "failed")
    facts = [f"step {report.step:,} of {report.num_steps:,}", f"epoch {report.epoch:.2f}"]
    facts += [f"loss {loss_text(report)}"] if report.losses else []
    facts += [f"validation {metrics_text(report)}"] if report.metrics else []
    facts += [f"round {report.round}"] if report.round else []
    facts += [f"{per_second(report.samples_per_s)} samples/s"] if report.samples_per_s else []
    facts += [f"{report.state}: {report.reason}"] if ended else []
    facts += [f"{duration(report.eta_s)} to go"] if not ended and report.eta_s else []
    return facts


class TrainTable(Picture):
    """A row per trainer, redrawn on stderr."""

    _STYLES = {"finished": "green", "failed": "red", "stopped": "yellow", "starting": "dim"}  # noqa: RUF012

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stays=True, clock=clock)
        self._reports: dict[int, Report] = {}
        self._shown_at = 0.0

    def __exit__(self, *exc: object) -> None:
        self._show(self._drawn())
        super().__exit__(*exc)

    def report(self, report: Report) -> None:
        before = self._reports.get(report.trainer)
        self._reports[report.trainer] = report
        now = self._clock()
        if before is not None and before.state == report.state and now - self._shown_at < REDRAW_S:
            return
        self._shown_at = now
        self._show(self._drawn())

    def note(self, note: Note) -> None:
        self._note(f"trainer {note.trainer}: {note.text}")

    def _drawn(self) -> Any:
        from rich.table import Table

        grid = Table(box=None, pad_edge=False, header_style="dim")
        grid.add_column("trainer", justify="right", no_wrap=True)
        grid.add_column("", width=20)
        for name in ("step", "epoch", "samples/s", "loss"):
            grid.add_column(name, justify="right", no_wrap=True)
        grid.add_column("validation", no_wrap=True)
        for name in ("round", "to go"):
            grid.add_column(name, justify="right", no_wrap=True)
        reports = sorted(self._reports.values(), key=lambda r: r.trainer)
        for report in reports[: self._num_rows]:
            grid.add_row(*self._row(report))
        if len(reports) > self._num_rows:
            grid.add_row("", "", f"… {len(reports) - self._num_rows} more")
        return grid

    def _row(self, report: Report) -> tuple[Any, ...]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        style = self._STYLES.get(report.state, "")
        return (
            str(report.trainer),
            ProgressBar(max(1, report.num_steps), report.step, width=20),
            f"{report.step:,}/{report.num_steps:,}" if report.num_steps else "",
            f"{report.epoch:.1f}" if report.num_steps else "",
            per_second(report.samples_per_s),
            loss_text(report),
            metrics_text(report),
            f"{report.round} ({report.wins} won)" if report.round else "",
            Text(report.state if style else duration(report.eta_s), style=style),
        )


def choose_train_display() -> TrainTable | TrainLines:
    """A table when stderr is a terminal, lines elsewhere."""
    return TrainTable() if stderr_is_terminal() else TrainLines()
