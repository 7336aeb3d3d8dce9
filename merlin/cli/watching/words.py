"""What the screens show, as texts: pure, from the read-models of `views/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from merlin.base.text import count, duration, printable, rate
from merlin.cli.outcome_bar import FILLS
from merlin.plan.outcome_counts import OutcomeCounts
from merlin.status.eta import Eta

STATE_COLOURS = {
    "running": "green", "finished": "green", "stalled": "yellow", "unknown": "yellow", "stopped": "yellow",
    "failed": "red", "unreadable": "red",
}  # fmt: skip
_BARS = " ▁▂▃▄▅▆▇█"
Pieces = list[tuple[str, str]]  # text and colour


def short(num: int) -> str:
    """ "1,234,567", and "12.35M" for more than fits into nine places."""
    return f"{num:,}" if num < 10_000_000 else f"{num / 1e6:,.2f}M"


def to_go(eta: Eta | None) -> str:
    """ "about 12 s to go (9.0 s to 20 s), without train"; "" if it is not known."""
    if eta is None or not eta.high_s:
        return ""
    rest = f", without {', '.join(eta.without)}" if eta.without else ""
    return f"about {duration(eta.mid_s)} to go ({duration(eta.low_s)} to {duration(eta.high_s)}){rest}"


def reconciled(numbers: OutcomeCounts) -> str:
    """ "10 planned = 8 ok + 1 failed + 0 skipped + 1 missing"."""
    parts = " + ".join(f"{getattr(numbers, kind):,} {kind}" for kind in FILLS)
    return f"{numbers.planned:,} planned = {parts}"


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """The values as bars of eighths, the last on the right; neighbours are averaged where there is no room for all."""
    shown = _resampled(values, width)
    top = max(shown, default=0.0)
    levels = [0 if top <= 0 else max(value > 0, round(8 * height * value / top)) for value in shown]
    return [
        "".join(_BARS[min(8, max(0, level - 8 * row))] for level in levels).rjust(width)
        for row in reversed(range(height))
    ]


def _resampled(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [len(values) * i // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def pace_line(values: Sequence[float], width_s: float) -> str:
    """ "throughput: at most 45/s, over 12 min 05 s"; `values`: tasks per interval of `width_s`."""
    if not values:
        return "throughput: no task has ended yet"
    best = rate(max(values) / width_s) or "0/s"
    return f"throughput: at most {best}, over {duration(len(values) * width_s)}"


def workers_line(num: int, num_slots: int, num_at_work: int) -> str:
    """ "2 workers, 16 tasks at a time, 14 at work"."""
    if not num and not num_slots:
        return "no worker"
    at_once = f", {num_slots:,} at a time" if num_slots else ""
    busy = f", {num_at_work:,} at work" if num_at_work else ""
    return f"{count(num, 'worker')}{at_once}{busy}"


def tail_of(text: str, num_lines: int) -> str:
    """The last lines that are not blank."""
    return "\n".join([line for line in printable(text).splitlines() if line.strip()][-num_lines:])


def joined(parts: Iterable[str]) -> str:
    """The parts that are not empty, with a wide space between them."""
    return "   ".join(part for part in parts if part)
