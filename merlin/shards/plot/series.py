"""Fan charts: the median of a series over the samples, bands of quantiles, and some samples themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

import merlin.shards.plot.canvas as look
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas
from merlin.shards.plot.ticks import Scale, apply, choose_scale, label

MAX_SAMPLES = 2000
MAX_POINTS = 1000  # along the axis; longer series are thinned out
_PER_LINE = 2
_LEFT, _PANEL, _LINE, _LEGEND = 0.72, 1.9, 2.55, 0.34
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Fan(Struct, frozen=True):
    """One channel of a series field."""

    name: str
    units: str
    x_name: str
    x_units: str
    x: Array  # (points,)
    values: Array  # (samples, points) float64, NaN where a sample has no value
    shown: Array  # (k,) samples drawn as lines


class Fans(Struct, frozen=True):
    fans: tuple[Fan, ...]

    @property
    def per_line(self) -> int:
        return min(_PER_LINE, len(self.fans))

    @property
    def height(self) -> float:
        return _LEGEND + _LINE * -(-len(self.fans) // _PER_LINE)


def thin(length: int) -> Array:
    """Positions along an axis of this length that are drawn, both ends among them."""
    return np.unique(np.linspace(0, max(0, length - 1), min(length, MAX_POINTS)).round().astype(np.int64))


def draw(data: Fans, canvas: Canvas) -> None:
    legend = [
        ("line", look.BLUE, "median"),
        ("fill", look.BLUE, "25–75 %"),
        ("faint", look.BLUE, "5–95 % of the samples"),
        ("line", look.ORANGE, "single samples"),
    ]
    canvas.legend(MARGIN, 0.04, legend)
    step = (WIDTH - MARGIN) / data.per_line
    for i, fan in enumerate(data.fans):
        line, place = divmod(i, data.per_line)
        axes = canvas.axes(_LEFT + place * step, _LEGEND + 0.08 + line * _LINE, step - _LEFT - 0.15, _PANEL)
        _panel(axes, fan)


def _panel(axes: Any, fan: Fan) -> None:
    low, quarter, median, upper, high = _quantiles(fan.values)
    axes.fill_between(fan.x, low, high, color=look.BLUE, alpha=0.16, linewidth=0)
    axes.fill_between(fan.x, quarter, upper, color=look.BLUE, alpha=0.28, linewidth=0)
    for sample in fan.shown:
        axes.plot(fan.x, fan.values[sample], color=look.ORANGE, linewidth=0.6, alpha=0.75)
    axes.plot(fan.x, median, color=look.BLUE, linewidth=1.6)
    drawn = np.concatenate([low, high, fan.values[fan.shown].ravel()])
    scale = choose_scale(drawn)
    scale = Scale(scale.lo, scale.hi, scale.is_log)
    apply(axes.yaxis, scale, ticks=5)
    x_scale = choose_scale(fan.x)
    x_scale = Scale(x_scale.lo, x_scale.hi)
    apply(axes.xaxis, x_scale, ticks=6, margin=0)
    axes.set_xlabel(label(fan.x_name, fan.x_units, x_scale), labelpad=2)
    axes.set_ylabel(label(fan.name, fan.units, scale), labelpad=3)


def _quantiles(values: Array) -> Array:
    """(5, points); NaN where no sample has a finite value."""
    values = np.where(np.isfinite(values), values, np.nan)
    known = np.isfinite(values).any(axis=0)
    out = np.full((len(QUANTILES), values.shape[1]), np.nan)
    if known.any():
        out[:, known] = np.nanquantile(values[:, known], QUANTILES, axis=0)
    return out
