"""Where the inputs have been sampled: every pair of them, and where samples were lost."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field

import merlin.shards.plot.canvas as look
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas
from merlin.shards.plot.ticks import Scale, apply, choose_scale, label, signed

_MAX_POINTS = 4000  # in a panel; more would hide each other
_ENOUGH_FOR_DENSITY = 1000
MAX_INPUTS = 8  # that are paired
_TICKS = 0.06  # of a panel's height
_LEFT, _TOP, _BOTTOM, _GAP = 0.75, 0.34, 0.5, 0.09


class Coverage(Struct, frozen=True):
    """Inputs of the samples in the data set, and of those that are not, by their outcome."""

    labels: tuple[str, ...]
    units: tuple[str, ...]
    values: Array  # (n, d)
    lost: dict[str, Array] = field(default_factory=dict)  # by outcome: (m, d)

    @property
    def points(self) -> Array:
        """The samples that are drawn as points."""
        return self.values[:: -(-len(self.values) // _MAX_POINTS) or 1]

    @property
    def num_paired(self) -> int:
        return min(len(self.labels), MAX_INPUTS)

    @property
    def panel(self) -> float:
        """Side of a panel, inches."""
        return min(2.4, (WIDTH - _LEFT - MARGIN) / self.num_paired - _GAP)

    @property
    def height(self) -> float:
        return _TOP + self.num_paired * (self.panel + _GAP) + _BOTTOM


def draw(data: Coverage, canvas: Canvas) -> None:
    """Scatter below the diagonal, density (or, of few samples, correlation) above, histograms on it."""
    _legend(data, canvas)
    scales = [choose_scale(_all(data, i)) for i in range(data.num_paired)]
    step = data.panel + _GAP
    for row in range(data.num_paired):
        for column in range(data.num_paired):
            axes = canvas.axes(_LEFT + column * step, _TOP + row * step, data.panel, data.panel)
            if row == column:
                _histogram(axes, data, row, scales[row])
            elif row > column:
                _scatter(axes, data, column, row)
            elif len(data.values) >= _ENOUGH_FOR_DENSITY:
                _density(axes, data, column, row, scales)
            else:
                _correlation(axes, data, column, row)
            _label(axes, data, row, column, scales)


def _legend(data: Coverage, canvas: Canvas) -> None:
    entries = [("o", look.BLUE, f"in the data set ({len(data.points):,} as points)")]
    for outcome, values in data.lost.items():
        words = f"{outcome} ({len(values):,} as points)"
        entries.append((look.OUTCOME_MARKERS[outcome], look.OUTCOME_COLOURS[outcome], words))
    canvas.legend(_LEFT, 0.04, entries)


def _all(data: Coverage, i: int) -> Array:
    return np.concatenate([data.values[:, i], *(values[:, i] for values in data.lost.values())])


def _histogram(axes: Any, data: Coverage, i: int, scale: Scale) -> None:
    """Draw the samples in the data set; the others are ticks along the upper edge, a line per outcome."""
    edges = scale.edges(len(data.values))
    counts, _ = np.histogram(data.values[:, i], edges)
    look.bars(axes, counts, edges, look.BLUE)
    top = 0.98 - _TICKS * len(data.lost)
    axes.set_ylim(0, max(1, counts.max(initial=0)) / (top - 0.05))
    for line, (outcome, values) in enumerate(data.lost.items()):
        y = top + _TICKS * line
        axes.vlines(values[:, i], y, y + 0.8 * _TICKS, transform=axes.get_xaxis_transform(),
                    colors=look.OUTCOME_COLOURS[outcome], linewidth=0.8, alpha=0.8)  # fmt: skip


def _scatter(axes: Any, data: Coverage, x: int, y: int) -> None:
    axes.set_gid(look.TINTED)

    def plot(points: Array, mark: str, colour: str, **style: float) -> None:
        axes.plot(points[:, x], points[:, y], mark, color=colour, rasterized=True, **style)

    num = len(data.points)
    alpha, size = float(np.clip(1000 / max(num, 1), 0.3, 0.8)), 1.8 if num > 300 else 3.0
    plot(data.points, "o", look.BLUE, markersize=size, alpha=alpha, mew=0)
    for outcome, values in data.lost.items():
        colour = look.OUTCOME_COLOURS[outcome]
        plot(values, look.OUTCOME_MARKERS[outcome], colour, markersize=3.0, alpha=0.9, mew=0.8)


def _density(axes: Any, data: Coverage, x: int, y: int, scales: list[Scale]) -> None:
    """Draw samples per cell; equally filled cells would be half as dark as the darkest can be."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    axes.set_gid(look.TINTED)
    cells = int(np.clip(np.sqrt(len(data.values) / 25), 8, 40))
    edges = [scales[i].spaced(cells) for i in (x, y)]
    counts, _, _ = np.histogram2d(data.values[:, x], data.values[:, y], bins=edges)
    red, green, blue = to_rgb(look.BLUE)
    ramp = LinearSegmentedColormap.from_list("ramp", [(red, green, blue, 0.0), (red, green, blue, 1.0)])
    top = max(2 * len(data.values) / cells**2, float(np.quantile(counts, 0.995)))
    axes.pcolormesh(*edges, counts.T, cmap=ramp, vmin=0, vmax=top, rasterized=True, linewidth=0)
    value = rank_correlation(data.values[:, x], data.values[:, y])
    if abs(value) >= 0.1:
        style = {"va": "top", "fontsize": look.SMALL, "color": look.INK}
        axes.text(0.04, 0.95, f"ρ {signed(value)}", transform=axes.transAxes, **style)


def _correlation(axes: Any, data: Coverage, x: int, y: int) -> None:
    value = rank_correlation(data.values[:, x], data.values[:, y])
    axes.set_axis_off()
    words, size = ("–", 0.0) if np.isnan(value) else (signed(value), 5 * abs(value))
    style = {"ha": "center", "va": "center", "fontsize": look.NORMAL + size, "color": look.INK}
    axes.text(0.5, 0.5, f"ρ {words}", transform=axes.transAxes, **style)


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's coefficient over the pairs that are finite; NaN if either does not vary."""
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 3:
        return float("nan")
    a, b = _ranks(x[known]), _ranks(y[known])
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else float("nan")


def _ranks(values: Array) -> Array:
    """Ranks; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse])


def _label(axes: Any, data: Coverage, row: int, column: int, scales: list[Scale]) -> None:
    """Ticks and names only at the outer edge."""
    last = data.num_paired - 1
    apply(axes.xaxis, scales[column], ticks=3)
    if row != column:
        apply(axes.yaxis, scales[row], ticks=3)
    axes.tick_params(labelbottom=row == last, left=column == 0 < row, labelleft=column == 0 < row)
    if row == last:
        words = label(data.labels[column], data.units[column], scales[column], data.panel)
        axes.set_xlabel(words, labelpad=2)
    if column == 0:
        axes.set_ylabel(label(data.labels[row], data.units[row], scales[row], data.panel))
        axes.yaxis.set_label_coords(-0.48 / data.panel, 0.5)
