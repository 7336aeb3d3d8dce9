"""How each scalar (or number of items) is spread, by split, and which input drives it."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

import merlin.shards.plot.canvas as look
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas
from merlin.shards.plot.coverage import rank_correlation
from merlin.shards.plot.ticks import apply, choose_scale, label, signed

MAX_PANELS = 40
_FEWEST = 10  # samples of a split that make a histogram
MAX_DRIVERS = 12
_PER_LINE = 5
_PANEL, _LINE, _LEGEND = 1.05, 1.62, 0.28
_CELL = 0.25


class SampleValues(Struct, frozen=True):
    """One number per sample."""

    name: str
    units: str
    values: Array  # (n,) float64, NaN where they cannot be drawn


class Histograms(Struct, frozen=True):
    quantities: tuple[SampleValues, ...]
    split: Array  # (n,) index into `split_names`
    split_names: tuple[str, ...]  # none: all samples in one

    @property
    def per_line(self) -> int:
        return min(_PER_LINE, max(3, len(self.quantities)))

    @property
    def height(self) -> float:
        return _LEGEND + _LINE * -(-len(self.quantities) // self.per_line)

    @property
    def groups(self) -> list[tuple[str, str, Array]]:
        """(name, colour, mask) of the splits with enough samples; all in one without a name if fewer than two have."""
        sizes = np.bincount(self.split, minlength=len(self.split_names))
        present = [(i, name) for i, name in enumerate(self.split_names) if sizes[i] >= _FEWEST]
        if len(present) < 2:
            return [("", look.BLUE, np.ones(len(self.split), bool))]
        colours = look.SPLIT_COLOURS
        return [(name, colours[min(i, len(colours) - 1)], self.split == i) for i, name in present]


def draw(data: Histograms, canvas: Canvas) -> None:
    """Densities, so that splits of different size lie on each other; the fewer samples, the wider the bins."""
    groups = data.groups
    if len(groups) > 1:
        entries = [
            ("fill" if i == 0 else "line", colour, f"{name} ({int(mask.sum()):,})")
            for i, (name, colour, mask) in enumerate(groups)
        ]
        canvas.legend(MARGIN, 0.04, entries)
    step = (WIDTH - MARGIN) / data.per_line
    for i, quantity in enumerate(data.quantities):
        line, place = divmod(i, data.per_line)
        axes = canvas.axes(MARGIN + 0.08 + place * step, _LEGEND + line * _LINE + 0.12, step - 0.3, _PANEL)
        _panel(axes, quantity, groups, step)


def _panel(axes: Any, quantity: SampleValues, groups: list[tuple[str, str, Array]], room: float) -> None:
    scale, top = choose_scale(quantity.values), 0.0
    for i, (_, colour, mask) in enumerate(groups):
        edges = scale.edges(int(mask.sum()))
        counts, _ = np.histogram(quantity.values[mask], edges)
        density = counts * (len(counts) / max(1, int(counts.sum())))
        look.bars(axes, density, edges, colour, width=1.1 if i else 0.0, filled=i == 0)
        top = max(top, float(density.max()))
    axes.set_ylim(top=1.05 * top or 1.0)
    apply(axes.xaxis, scale, ticks=4)
    axes.set_xlabel(label(quantity.name, quantity.units, scale, room), labelpad=2)
    num_bad = int((~np.isfinite(quantity.values)).sum())
    if num_bad:
        axes.text(1, 1, f"{num_bad:,} not drawn", transform=axes.transAxes, ha="right", va="top",
                  fontsize=look.SMALL, color=look.RED)  # fmt: skip


class Drivers(Struct, frozen=True):
    """Rank correlation of scalars with inputs."""

    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    values: Array  # (scalars, inputs), NaN where undefined

    @property
    def height(self) -> float:
        return 0.4 + _CELL * len(self.scalars) + 0.1


def drivers(inputs: tuple[SampleValues, ...], scalars: tuple[SampleValues, ...]) -> Drivers:
    """Spearman's coefficient of every scalar with every input, at most `MAX_DRIVERS` inputs."""
    inputs = inputs[:MAX_DRIVERS]
    table = [[rank_correlation(x.values, y.values) for x in inputs] for y in scalars]
    return Drivers(
        tuple(x.name for x in inputs),
        tuple(y.name for y in scalars),
        np.array(table, dtype=np.float64).reshape(len(scalars), len(inputs)),
    )


def draw_drivers(data: Drivers, canvas: Canvas) -> None:
    """A table of numbers with bars: their length and side say the same as the number."""
    left, width = 1.9, min(1.3, (WIDTH - 1.9 - MARGIN) / max(1, len(data.inputs)) - 0.12)
    for column, name in enumerate(data.inputs):
        x = left + column * (width + 0.12)
        canvas.text(x + width / 2, 0.1, label(name, "", room=width + 0.12), ha="center", color=look.INK)
        axes = canvas.axes(x, 0.36, width, _CELL * len(data.scalars))
        values = np.nan_to_num(data.values[:, column])
        colours = [look.BLUE if value >= 0 else look.ORANGE for value in values]
        axes.barh(np.arange(len(values)), values, height=0.62, color=colours, alpha=0.55)
        axes.axvline(0, color=look.RULE, linewidth=0.7)
        axes.set_xlim(-1, 1)
        axes.set_ylim(len(values) - 0.5, -0.5)
        look.without_box(axes)
        for row, value in enumerate(data.values[:, column]):
            if abs(value) >= 0.1:
                side = {"ha": "right" if value > 0 else "left", "va": "center"}
                place = (-0.04 if value > 0 else 0.04, row)
                axes.text(*place, signed(value), **side, fontsize=look.SMALL, color=look.INK)
    for row, name in enumerate(data.scalars):
        words, middle = label(name, "", room=left - 0.2), 0.36 + (row + 0.5) * _CELL
        canvas.text(left - 0.12, middle, words, ha="right", va="center")
