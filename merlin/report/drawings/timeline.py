"""Workers at work, and the tasks of each step that ended, over the time of the study."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from merlin.base.text import count, cut, duration, rate
from merlin.report.activity import Activity, Floats, Span
from merlin.report.drawings.canvas import WIDTH, Drawing, ticks

_LEFT, _RIGHT = 150.0, 96.0
_TOP, _GAP = 18.0, 30.0
_WORKERS, _MANY = 96.0, 4  # height of the area for many workers; few take half of it
_LANE, _LANE_GAP, _BOTTOM = 30.0, 10.0, 34.0
_MOST_LANES = 30
_ROOM = 78.0  # between two times on the axis
_FEW = 10  # a rate says little about fewer tasks
_NAME = 22  # characters of a step's name
_UNITS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
            172800, 604800)  # fmt: skip


def draw_timeline(found: Activity) -> str:
    """The drawing as HTML; see `activity` for what it shows."""
    lanes = list(found.steps.items())[:_MOST_LANES]
    most = max(1.0, float(np.ceil(found.there.max() - 0.01)))
    height = _WORKERS if most > _MANY else _WORKERS / 2
    lanes_top = _TOP + height + _GAP
    bottom = lanes_top + len(lanes) * (_LANE + _LANE_GAP)
    title = f"{count(len(found.steps), 'step')} over {duration(found.length_s)} of work"
    drawing = Drawing(bottom + _BOTTOM, title)
    step = (WIDTH - _LEFT - _RIGHT) / len(found.there)
    _draw_time(drawing, found, bottom)
    _draw_workers(drawing, found, step, most, height)
    for i, (name, at_work) in enumerate(lanes):
        base = lanes_top + i * (_LANE + _LANE_GAP) + _LANE
        ended = at_work.ok + at_work.failed
        most = float(ended.max()) or 1.0
        drawing.text(_LEFT - 10, base - 9, cut(name, _NAME), "name", "end")
        drawing.line(_LEFT, base, WIDTH - _RIGHT, base)
        heights = _seen(_LANE * ended / most)
        failed = _seen(_LANE * at_work.failed / most)
        drawing.steps(heights, _LEFT, base, step, "ok")
        if at_work.failed.any():
            drawing.steps(heights, _LEFT, base, step, "failed", floor=heights - failed)
        drawing.text(WIDTH - _RIGHT + 8, base - 9, _pace(ended, found.width_s))
    return drawing.figure()


def _pace(ended: Floats, width_s: float) -> str:
    """The highest rate; for only a few tasks, their number."""
    num = round(float(ended.sum()))
    return count(num, "task") if num < _FEW else f"≤ {rate(float(ended.max()) / width_s)}"


def _seen(heights: Floats) -> Floats:
    """The heights, where anything above 0 is made high enough to be seen."""
    return np.where(heights > 0, np.maximum(heights, 1.0), 0.0)


def _draw_workers(drawing: Drawing, found: Activity, step: float, most: float, height: float) -> None:
    base = _TOP + height
    drawing.text(_LEFT - 10, _TOP + 10, "workers at work", "name", "end")
    for tick in ticks(most, count=3, least=1.0)[1:]:
        y = base - height * tick / most
        drawing.line(_LEFT, y, WIDTH - _RIGHT, y)
        drawing.text(WIDTH - _RIGHT + 8, y + 4, f"{tick:,.6g}")
    drawing.steps(height * np.minimum(found.there, most) / most, _LEFT, base, step, "there")
    drawing.steps(height * np.minimum(found.busy, most) / most, _LEFT, base, step, "area")
    drawing.line(_LEFT, base, WIDTH - _RIGHT, base)


def _draw_time(drawing: Drawing, found: Activity, bottom: float) -> None:
    """Draw times below, a line at each of them, and a gap at each pause."""
    per_s = (WIDTH - _LEFT - _RIGHT) / found.length_s
    x, last = _LEFT, -1e9
    for i, span in enumerate(found.spans):
        for at, words in _times(span, per_s):
            place = x + (at - span.start) * per_s
            drawing.line(place, _TOP, place, bottom)
            if place - last >= _ROOM:
                anchor = "start" if place < _LEFT + 20 else "middle"
                drawing.text(place, bottom + 16, words, "small", anchor)
                last = place
        x += span.length_s * per_s
        if i + 1 < len(found.spans):
            pause_s = found.spans[i + 1].start - span.end
            drawing.rect(x - 3, _TOP - 4, 6, bottom - _TOP + 4, "pause")
            drawing.text(x, _TOP - 8, f"{duration(pause_s)} pause", "small", "middle")


def _times(span: Span, per_s: float) -> Iterator[tuple[float, str]]:
    """The beginning, with its date, and round times of day after it, far enough apart to be read."""
    begin = datetime.fromtimestamp(span.start).astimezone()
    yield span.start, f"{begin:%-d %b %H:%M:%S}"
    unit = next((unit for unit in _UNITS_S if unit * per_s >= _ROOM), _UNITS_S[-1])
    form = "%-d %b" if unit >= 86400 else "%H:%M:%S" if unit < 60 else "%H:%M"
    offset = begin.utcoffset()
    zone = offset.total_seconds() if offset is not None else 0.0
    first = (span.start + zone) // unit * unit + unit - zone
    for at in np.arange(first, span.end, unit).tolist():
        if (at - span.start) * per_s >= 1.5 * _ROOM:
            yield at, f"{datetime.fromtimestamp(at):{form}}"
