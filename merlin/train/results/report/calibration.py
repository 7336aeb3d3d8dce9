"""How many true values lie in intervals of an ensemble, beside how many should: a small panel for each field."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply, label, number

_PER_LINE = 5
_MAX_PANELS = 60
_SPACE = 0.62  # beside and below a panel, for ticks and names
_LEGEND = 0.32
_RAW, _SCALED = look.ORANGE, look.BLUE


class Calibration(Struct, frozen=True):
    """Panels side by side, of what `evaluation.json` says of `uncertainty`."""

    facts: Mapping[str, Any]

    @property
    def panels(self) -> list[tuple[str, Mapping[str, Any]]]:
        return list(self.facts["fields"].items())[:_MAX_PANELS]

    @property
    def step(self) -> float:
        """The width of a panel with what stands beside it."""
        return (WIDTH - MARGIN) / _PER_LINE

    def section(self) -> Section:
        lines = -(-len(self.panels) // _PER_LINE)
        facts, fitted = self.facts, self.facts["fitted_on"]
        note = (
            "horizontally the share of true values that a central interval should hold, vertically the share that it "
            f"holds, of {facts['num_samples']:,} samples ({facts['split']}); intervals are as wide as the spread of "
            f"{len(facts['members'])} trainers says, or scaled by the factor in the panel, which was fitted on "
            f"{fitted['num_samples']:,} samples ({fitted['split']}). On the line is right; below it is too sure"
        )
        height = _LEGEND + self.step * lines
        return Section("calibration", "Calibration of the uncertainty", note, height, partial(_draw, self))


def _draw(chart: Calibration, canvas: Canvas) -> None:
    canvas.legend(MARGIN, 0.04, [("line", _RAW, "spread as it is"), ("line", _SCALED, "scaled")])
    side = chart.step - _SPACE
    for i, (name, of) in enumerate(chart.panels):
        line, place = divmod(i, _PER_LINE)
        left, top = MARGIN + 0.4 + place * chart.step, _LEGEND + line * chart.step + 0.08
        _panel(canvas.axes(left, top, side, side), name, of, chart.facts["levels"], chart.step)


def _panel(axes: Any, name: str, of: Mapping[str, Any], levels: list[float], room: float) -> None:
    scale = Scale(0.0, 1.0)
    apply(axes.xaxis, scale, ticks=3)
    apply(axes.yaxis, scale, ticks=3)
    axes.plot([0, 1], [0, 1], color=look.SOFT, linewidth=0.7, zorder=1)
    for key, colour in (("raw", _RAW), ("scaled", _SCALED)):
        axes.plot([0, *levels], [0, *of["coverage"][key]], color=colour, linewidth=1.3, zorder=2)
    axes.text(0.05, 0.95, f"× {number(of['scale'], 2)}", transform=axes.transAxes, va="top", fontsize=look.SMALL,
              color=look.INK)  # fmt: skip
    axes.set_xlabel(label(name, "", scale, room), labelpad=2)
