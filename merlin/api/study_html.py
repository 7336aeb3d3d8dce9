"""A study as a few lines of HTML, for notebooks: every style is on its element, and the colours suit light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from merlin.base.text import duration, rate
from merlin.execution.events import Progress
from merlin.plan.outcome_counts import OutcomeCounts
from merlin.plan.task_states import TaskCounts
from merlin.views.study_page import StudyPage

# colours that are seen on light and on dark paper
_COLOURS = {"ok": "#3d85c6", "failed": "#d64b2f", "skipped": "#8a93a0"}
_REST = "rgba(128,128,128,0.22)"
_TONES = {
    "finished": "#12876a",
    "failed": "#d64b2f",
    "running": "#3d85c6",
    "stopped": "#d9820f",
    "stalled": "#d9820f",
}
_TABLE = "border-collapse:collapse;color:inherit;margin:0.3em 0;font-variant-numeric:tabular-nums"
_CELL = "text-align:left;padding:0.1em 0.8em 0.1em 0;background:none;white-space:nowrap"


class StepCounts(OutcomeCounts, frozen=True, kw_only=True):
    """A line of the table."""

    step: str
    rate: float | None = None
    eta_s: float | None = None


def page_html(page: StudyPage) -> str:
    """A study at one moment."""
    lines = [
        StepCounts(
            step=step.step, planned=step.planned, ok=step.ok, failed=step.failed, skipped=step.skipped,
            missing=step.missing, rate=step.rate if page.state == "running" else None,
            eta_s=step.eta_s if step.missing else None,
        )
        for step in page.steps
    ]  # fmt: skip
    notes = [page.state_reason] if page.state_reason else []
    for obstacle in page.obstacles if page.totals.missing else ():
        notes.append(f"{obstacle.what}; {obstacle.remedy}" if obstacle.remedy else obstacle.what)
    took = duration(page.elapsed_s) if page.started is not None else ""
    return _study_html(page.name, page.state, took, lines, notes, page.workspace)


def progress_html(name: str, path: Path, progress: Progress, first: Progress) -> str:
    """A run of this process while it goes on; `first` is how it began."""
    lines = [_counts(step, counts, progress, first) for step, counts in progress.per_step.items()]
    return _study_html(name, "running", duration(progress.seconds), lines, [], str(path))


def _counts(step: str, counts: TaskCounts, progress: Progress, first: Progress) -> StepCounts:
    begun, seconds = first.per_step.get(step, counts), progress.seconds - first.seconds
    done = begun.missing - counts.missing
    pace = done / seconds if done and seconds > 0 and counts.running else None
    return StepCounts(
        step=step, planned=counts.planned, ok=counts.ok, failed=counts.failed, skipped=counts.skipped,
        missing=counts.missing, rate=pace, eta_s=counts.missing / pace if pace else None,
    )  # fmt: skip


def _study_html(
    name: str, state: str, took: str, lines: Iterable[StepCounts], notes: list[str], path: str
) -> str:
    rows = "".join(map(_row, lines))
    tone = _TONES.get(state, "#8a93a0")
    dot = f'<span style="color:{tone}">●</span>'
    said = "".join(f'<div style="opacity:0.75">{escape(note)}</div>' for note in notes)
    return (
        f'<div style="font-family:system-ui,sans-serif;max-width:60em"><div>{dot} <b>{escape(name)}</b> {escape(state)}'
        f'<span style="opacity:0.7"> {escape(took)}</span></div>'
        f'<table style="{_TABLE}">{rows}</table>'
        f'{said}<code style="opacity:0.75;font-size:0.9em;background:none">{escape(path)}</code></div>'
    )


def _row(line: StepCounts) -> str:
    pieces = "".join(
        f'<span style="flex:{num} 0 2px;background:{_COLOURS[kind]}"></span>'
        for kind, num in (("ok", line.ok), ("failed", line.failed), ("skipped", line.skipped))
        if num
    )
    rest = f'<span style="flex:{line.missing} 0 0;background:{_REST}"></span>' if line.missing else ""
    bar = f'<div style="display:flex;width:16em;height:0.75em;border-radius:3px;overflow:hidden">{pieces}{rest}</div>'
    words = [f"{line.ok:,} ok"]
    words += [f"{line.failed:,} failed"] if line.failed else []
    words += [f"{line.skipped:,} skipped"] if line.skipped else []
    pace = ", ".join(word for word in (rate(line.rate), _left(line.eta_s)) if word) if line.missing else ""
    cells = (
        f"<b>{escape(line.step)}</b>",
        bar,
        f"{', '.join(words)} of {line.planned:,}",
        f'<span style="opacity:0.7">{escape(pace)}</span>',
    )
    return "<tr>" + "".join(f'<td style="{_CELL}">{html}</td>' for html in cells) + "</tr>"


def _left(eta_s: float | None) -> str:
    return f"{duration(eta_s)} left" if eta_s else ""
