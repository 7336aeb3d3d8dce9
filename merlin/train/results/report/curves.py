"""Metrics and losses over the steps of every trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply, label
from merlin.train.results.history import Curve, History

COLOURS = look.SPLIT_COLOURS
_MAX_PANELS = 12
_PER_LINE = 3
_LEGEND, _LINE, _PANEL = 0.3, 1.95, 1.35
_LOG_FROM = 30.0  # ratio of a panel's greatest to its least value from which it is logarithmic


class CurvePanel(Struct, frozen=True):
    title: str
    curves: tuple[Curve, ...]
    is_judged: bool = False  # the metric that decides which model is best


class Curves(Struct, frozen=True):
    panels: tuple[CurvePanel, ...]
    trainers: tuple[int, ...]
    best: tuple[int, int]  # trainer and step of the best model

    @staticmethod
    def of(history: History, metric: str, best: tuple[int, int]) -> Curves:
        """First the metric that decides, then losses, then the other metrics."""
        validation = dict(history.validation)
        panels = []
        if metric in validation:
            panels.append(CurvePanel(f"validation {metric}", validation.pop(metric), is_judged=True))
        panels += [CurvePanel(f"training {name}", curves) for name, curves in history.training.items()]
        panels += [CurvePanel(f"validation {name}", curves) for name, curves in validation.items()]
        return Curves(tuple(panels[:_MAX_PANELS]), tuple(t.trainer for t in history.trainers), best)

    def section(self) -> Section:
        note = "by step; the dot is the model that is evaluated here"
        height = self.head + _LINE * -(-len(self.panels) // _PER_LINE)
        return Section("curves", "Learning curves", note, height, partial(_draw, self))

    @property
    def head(self) -> float:
        return _LEGEND if len(self.trainers) > 1 else 0.1

    @property
    def is_crowded(self) -> bool:
        """True if there are too many trainers for each to have a colour of its own."""
        return len(self.trainers) > len(COLOURS)

    def colour(self, trainer: int) -> str:
        if self.is_crowded:
            return look.BLUE if trainer == self.best[0] else look.SOFT
        return COLOURS[self.trainers.index(trainer)] if len(self.trainers) > 1 else look.BLUE


def _draw(chart: Curves, canvas: Canvas) -> None:
    if chart.is_crowded:
        words = [
            ("line", look.BLUE, f"trainer {chart.best[0]}, the best"),
            ("line", look.SOFT, "other trainers"),
        ]
        canvas.legend(MARGIN, 0.04, words)
    elif len(chart.trainers) > 1:
        canvas.legend(MARGIN, 0.04, [("line", chart.colour(t), f"trainer {t}") for t in chart.trainers])
    step = (WIDTH - MARGIN) / _PER_LINE
    for i, panel in enumerate(chart.panels):
        line, place = divmod(i, _PER_LINE)
        left, top = MARGIN + 0.5 + place * step, chart.head + line * _LINE + 0.08
        _panel(canvas.axes(left, top, step - 0.75, _PANEL), chart, panel, step)


def _panel(axes: Any, chart: Curves, panel: CurvePanel, room: float) -> None:
    values = np.concatenate([curve.values for curve in panel.curves])
    steps = np.concatenate([curve.steps for curve in panel.curves])
    scale = _scale(values)
    x_scale = Scale(0.0, float(max(1, steps.max(initial=1))))
    for curve in sorted(panel.curves, key=lambda c: c.trainer == chart.best[0]):
        is_best, colour = curve.trainer == chart.best[0], chart.colour(curve.trainer)
        axes.plot(curve.steps, curve.values, color=colour, zorder=2 + is_best, markersize=3,
                  linewidth=0.6 if chart.is_crowded and not is_best else 1.3,
                  marker="o" if len(curve.steps) == 1 else None)  # fmt: skip
        if panel.is_judged and is_best:
            at = curve.steps == chart.best[1]
            axes.plot(curve.steps[at], curve.values[at], "o", color=colour, markersize=5, zorder=4)
    apply(axes.xaxis, x_scale, ticks=4)
    apply(axes.yaxis, scale, ticks=4)
    axes.set_xlabel(label("step", "", x_scale, room), labelpad=2)
    axes.set_title(
        label(panel.title, "", scale, room), fontsize=look.NORMAL, color=look.INK, loc="left", pad=4
    )


def _scale(values: Any) -> Scale:
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(0.0, 1.0)
    low, high = float(known.min()), float(known.max())
    if low > 0 and high / low > _LOG_FROM:
        return Scale(low, high, is_log=True)
    if low == high:
        return Scale(low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1)
    return Scale(low, high)
