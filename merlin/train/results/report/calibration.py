"""How many true values lie in intervals of an ensemble, beside how many should: a small panel for each field."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply, label, number

_PER_LINE = 5
_MAX_PANELS = 60
_STEP = (WIDTH - MARGIN) / _PER_LINE  # the width of a panel with what stands beside it
_SPACE = 0.62  # beside and below a panel, for ticks and names
_LEGEND = 0.32
_RAW, _SCALED = look.ORANGE, look.BLUE


def calibration_section(facts: Mapping[str, Any]) -> Section:
    """Panels side by side, of what `evaluation.json` says of `uncertainty`."""
    fitted, height = facts["fitted_on"], _LEGEND + _STEP * -(-len(_panels(facts)) // _PER_LINE)
    note = (
        "horizontally the share of true values that a central interval should hold, vertically the share that it "
        f"holds, of {facts['num_samples']:,} samples ({facts['split']}); intervals are as wide as the spread of "
        f"{len(facts['members'])} trainers says, or scaled by the factor in the panel, which was fitted on "
        f"{fitted['num_samples']:,} samples ({fitted['split']}). On the line is right; below it is too sure"
    )
    return Section("calibration", "Calibration of the uncertainty", note, height, partial(_draw, facts))


def _panels(facts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(facts["fields"].items())[:_MAX_PANELS]


def _draw(facts: Mapping[str, Any], canvas: Canvas) -> None:
    canvas.legend(MARGIN, 0.04, [("line", _RAW, "spread as it is"), ("line", _SCALED, "scaled")])
    side = _STEP - _SPACE
    for i, (name, of) in enumerate(_panels(facts)):
        line, place = divmod(i, _PER_LINE)
        left, top = MARGIN + 0.4 + place * _STEP, _LEGEND + line * _STEP + 0.08
        _panel(canvas.axes(left, top, side, side), name, of, facts["levels"])


def _panel(axes: Any, name: str, of: Mapping[str, Any], levels: list[float]) -> None:
    scale = Scale(0.0, 1.0)
    apply(axes.xaxis, scale, ticks=3)
    apply(axes.yaxis, scale, ticks=3)
    axes.plot([0, 1], [0, 1], color=look.SOFT, linewidth=0.7, zorder=1)
    for key, colour in (("raw", _RAW), ("scaled", _SCALED)):
        axes.plot([0, *levels], [0, *of["coverage"][key]], color=colour, linewidth=1.3, zorder=2)
    axes.text(0.05, 0.95, f"× {number(of['scale'], 2)}", transform=axes.transAxes, va="top", fontsize=look.SMALL,
              color=look.INK)  # fmt: skip
    axes.set_xlabel(label(name, "", scale, _STEP), labelpad=2)
