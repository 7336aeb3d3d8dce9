"""True against predicted values, and how errors are spread: a small panel for each scalar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.shards.format.segments import Array
from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply, choose_scale, label, number
from merlin.train.quantities import Quantity

Pairs = Mapping[str, tuple[Array, Array]]  # true and predicted (n,)

_PER_LINE = 5
_MAX_PANELS = 60
_SPACE = 0.62  # beside and below a panel of true against predicted values, for ticks and names
_HISTOGRAM = 1.35  # height of a line of histograms


class ScalarPanel(Struct, frozen=True):
    name: str
    units: str
    true: Array
    predicted: Array


class Panels(Struct, frozen=True):
    """Panels side by side, so many in each line."""

    panels: Sequence[ScalarPanel]

    @staticmethod
    def of(pairs: Pairs, quantities: Mapping[str, Quantity]) -> Panels:
        shown = list(pairs.items())[:_MAX_PANELS]
        return Panels([ScalarPanel(name, quantities[name].units, *pair) for name, pair in shown])

    @property
    def per_line(self) -> int:
        return min(_PER_LINE, max(3, len(self.panels)))

    @property
    def num_lines(self) -> int:
        return -(-len(self.panels) // self.per_line)

    @property
    def step(self) -> float:
        """The width of a panel with what stands beside it."""
        return (WIDTH - MARGIN) / self.per_line

    def agreement(self, key: str, title: str, note: str, scores: Mapping[str, Any]) -> Section:
        """True against predicted values."""
        return Section(key, title, note, self.step * self.num_lines, partial(_draw_agreement, self, scores))

    def errors(self, title: str, note: str) -> Section:
        """Histograms of the errors."""
        return Section("errors", title, note, _HISTOGRAM * self.num_lines, partial(_draw_errors, self))


def _draw_agreement(chart: Panels, scores: Mapping[str, Any], canvas: Canvas) -> None:
    step, side = chart.step, chart.step - _SPACE
    for i, panel in enumerate(chart.panels):
        line, place = divmod(i, chart.per_line)
        axes = canvas.axes(MARGIN + 0.4 + place * step, line * step + 0.08, side, side)
        words = f"R² {score(scores[panel.name]['r2'])}"
        axes.text(0.05, 0.95, words, transform=axes.transAxes, va="top", fontsize=look.SMALL, color=look.INK)
        _scatter(axes, panel, step)


def _scatter(axes: Any, panel: ScalarPanel, room: float) -> None:
    scale = choose_scale(panel.true)
    known = panel.predicted[np.isfinite(panel.predicted)]
    if not scale.is_log and len(known):  # the predictions' own reach, but not that of a single wild one
        low, high = np.quantile(known, [0.005, 0.995])
        scale = Scale(min(scale.lo, float(low)), max(scale.hi, float(high)))
    apply(axes.xaxis, scale, ticks=3)
    apply(axes.yaxis, scale, ticks=3)
    axes.set_gid(look.TINTED)
    axes.plot([scale.lo, scale.hi], [scale.lo, scale.hi], color=look.SOFT, linewidth=0.7, zorder=1)
    alpha = float(np.clip(600 / max(1, len(panel.true)), 0.25, 0.8))
    inside = np.clip(panel.predicted, scale.lo, scale.hi)
    axes.plot(panel.true, inside, "o", color=look.BLUE, markersize=2.0, alpha=alpha, mew=0, rasterized=True,
              zorder=2)  # fmt: skip
    axes.set_xlabel(label(panel.name, panel.units, scale, room), labelpad=2)


def score(r2: float) -> str:
    """R² for people: as many digits as tell it from 1, at most five."""
    if not np.isfinite(r2):
        return "–"
    for digits in (3, 4, 5):
        if r2 < 1 - 0.5 * 10.0**-digits:
            break
    return f"{r2:.{digits}f}".replace("-", "−")


def _draw_errors(chart: Panels, canvas: Canvas) -> None:
    for i, panel in enumerate(chart.panels):
        line, place = divmod(i, chart.per_line)
        left, top = MARGIN + 0.08 + place * chart.step, line * _HISTOGRAM + 0.1
        _histogram(canvas.axes(left, top, chart.step - 0.3, 0.8), panel, chart.step)


def _histogram(axes: Any, panel: ScalarPanel, room: float) -> None:
    """Draw errors from the 0.5th to the 99.5th percentile, and write how many lie beyond."""
    errors = panel.predicted - panel.true
    known = errors[np.isfinite(errors)]
    low, high = (float(q) for q in np.quantile(known, [0.005, 0.995])) if len(known) else (-1.0, 1.0)
    reach = max(abs(low), abs(high)) or 1.0
    scale = Scale(-reach, reach)
    edges = scale.edges(len(known))
    counts, _ = np.histogram(known, edges)
    axes.stairs(counts, edges, fill=True, color=look.BLUE, alpha=0.4, linewidth=0)
    axes.stairs(counts, edges, color=look.BLUE, linewidth=0.9)
    axes.axvline(0, color=look.SOFT, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(0, 1.25 * max(1, counts.max(initial=0)))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    apply(axes.xaxis, scale, ticks=3)
    axes.set_xlabel(label(panel.name, panel.units, scale, room), labelpad=2)
    beyond = int((np.abs(known) > reach).sum())
    if beyond:
        worst = number(float(np.abs(known).max()), 2)
        axes.text(1, 1, f"{beyond:,} beyond, to {worst}", transform=axes.transAxes, ha="right", va="top",
                  fontsize=look.SMALL - 1, color=look.SOFT)  # fmt: skip
