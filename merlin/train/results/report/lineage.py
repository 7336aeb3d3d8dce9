"""Which trainer's model went where: a line for each trainer, and a link wherever it took or merged another's model."""

from __future__ import annotations

from functools import cached_property, partial
from itertools import groupby
from typing import Any

from msgspec import Struct

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply, label
from merlin.train.results.history import History
from merlin.train.results.report.curves import COLOURS

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 0.35, 0.12, 0.5
_MOST_INCHES = 7.0
_MOST_NAMES = 24
_MOST_MEANS = 60  # of all models that are drawn


class Lineage(Struct, frozen=True, dict=True):
    history: History
    best: tuple[int, int]  # trainer and step of the best model

    @cached_property
    def trainers(self) -> list[int]:
        return [trained.trainer for trained in self.history.trainers]

    @cached_property
    def origins(self) -> dict[int, list[int]]:
        return self.history.origins()

    @cached_property
    def capacities(self) -> dict[int, float]:
        return self.history.capacities()

    @property
    def taken(self) -> int:
        return sum(played.kept == "partner" for played in self.history.rounds)

    @property
    def merged(self) -> int:
        """The means of two models."""
        return sum(played.kept == "merged" and played.partner is not None for played in self.history.rounds)

    @property
    def note(self) -> str:
        if self.history.averaged:
            return f"{self.history.num_rounds:,} rounds, in which all models became their mean; lines are some of them"
        left = sorted({origin[-1] for origin in self.origins.values()})
        began = f"trainer {left[0]}" if len(left) == 1 else f"{len(left)} of {len(self.trainers)} trainers"
        return (
            f"{self.history.num_rounds:,} rounds; a link is a model that another trainer took over "
            f"({self.taken:,} times){self._merged_note}. At the end all models go back to {began}"
            + ("; at the right: capacity" if self.capacities else "")
        )

    @property
    def _merged_note(self) -> str:
        return (
            f", and a diamond one that became the mean of two ({self.merged:,} times)" if self.merged else ""
        )

    def section(self) -> Section:
        height = max(0.6, min(_MOST_INCHES, 0.34 * len(self.trainers)))
        return Section(
            "tournament", "Tournament", self.note, _TOP + _BOTTOM + height, partial(_draw, self, height)
        )

    def colour(self, origin: int) -> str:
        """A colour for the trainer in which a model began; of many, only the best model's origin has one."""
        if len(self.trainers) <= len(COLOURS):
            return COLOURS[self.trainers.index(origin)]
        return look.BLUE if origin == self.origins[self.best[0]][-1] else look.SOFT


def _draw(chart: Lineage, height: float, canvas: Canvas) -> None:
    axes = canvas.axes(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, height)
    rounds = chart.history.rounds
    place = {trainer: row for row, trainer in enumerate(chart.trainers)}
    for trainer, row in place.items():
        for origin, same in groupby(enumerate(chart.origins[trainer]), key=lambda entry: entry[1]):
            numbers = [number for number, _ in same]
            axes.plot([numbers[0], numbers[-1] + 1], [row, row], color=chart.colour(origin), linewidth=2.2,
                      zorder=2, solid_capstyle="butt")  # fmt: skip
    averaged = chart.history.averaged
    for number in averaged[:: -(-len(averaged) // _MOST_MEANS) or 1]:
        axes.plot([number, number], [0, len(place) - 1], color=look.SOFT, linewidth=0.7, zorder=1)
    for played in rounds:
        at, row = played.number, place[played.trainer]
        colour = chart.colour(chart.origins[played.trainer][at])
        if played.kept == "local":
            axes.plot([at], [row], "o", color=look.PAPER, markersize=2.6, mew=0, zorder=4)
        elif played.partner in place:
            shape = "D" if played.kept == "merged" else "o"
            axes.plot([at - 0.28, at], [place[played.partner], row], color=colour, linewidth=1.1, zorder=3)
            axes.plot([at], [row], shape, color=colour, markersize=4.2, mew=0, zorder=5)
    _finish(axes, chart, place)


def _finish(axes: Any, chart: Lineage, place: dict[int, int]) -> None:
    end = chart.history.num_rounds + 1
    scale = Scale(0.0, float(end), is_whole=True)
    apply(axes.xaxis, scale, ticks=10)
    axes.set_xlim(0, end)
    axes.set_ylim(len(place) - 0.5, -0.5)
    shown = chart.trainers[:: max(1, -(-len(place) // _MOST_NAMES))]
    axes.set_yticks([place[t] for t in shown])
    axes.set_yticklabels([f"trainer {t}" + (" ★" if t == chart.best[0] else "") for t in shown])
    for trainer in shown:
        if trainer in chart.capacities:
            axes.text(end, place[trainer], f" {chart.capacities[trainer]:.2f}", va="center", color=look.SOFT,
                      fontsize=look.SMALL, clip_on=False)  # fmt: skip
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label("round", "", scale), labelpad=2)
