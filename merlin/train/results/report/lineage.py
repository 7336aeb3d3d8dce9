"""Which trainer's model went where: a line for each trainer, and a link wherever it took over another's model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import WIDTH, Canvas, Section
from merlin.shards.plot.ticks import Scale, apply
from merlin.train.results.history import History
from merlin.train.results.report.curves import COLOURS

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 0.35, 0.12, 0.5
_MOST_INCHES = 7.0
_MOST_NAMES = 24


@dataclass(frozen=True)
class Lineage:
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
    def note(self) -> str:
        left = sorted({origin[-1] for origin in self.origins.values()})
        began = f"trainer {left[0]}" if len(left) == 1 else f"{len(left)} of {len(self.trainers)} trainers"
        return (
            f"{self.history.num_rounds:,} rounds; a link is a model that another trainer took over "
            f"({self.taken:,} times). At the end all models go back to {began}"
            + ("; at the right: capacity" if self.capacities else "")
        )

    def section(self) -> Section:
        height = max(0.6, min(_MOST_INCHES, 0.34 * len(self.trainers)))
        return Section(
            "tournament", "Tournament", self.note, _TOP + _BOTTOM + height, partial(_draw, self, height)
        )

    def colour(self, origin: int) -> str:
        """By the trainer in which a model began; of many trainers only the best model's origin has a colour."""
        if len(self.trainers) <= len(COLOURS):
            return COLOURS[self.trainers.index(origin)]
        return look.BLUE if origin == self.origins[self.best[0]][-1] else look.SOFT


def _draw(chart: Lineage, height: float, canvas: Canvas) -> None:
    axes = canvas.axes(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, height)
    rounds = chart.history.rounds
    place = {trainer: row for row, trainer in enumerate(chart.trainers)}
    links = {(p.number, p.trainer): p.partner for p in rounds if p.kept == "partner"}
    for trainer, row in place.items():
        for number, origin in enumerate(chart.origins[trainer]):
            colour = chart.colour(origin)
            axes.plot([number, number + 1], [row, row], color=colour, linewidth=2.2, zorder=2,
                      solid_capstyle="butt")  # fmt: skip
            giver = links.get((number, trainer))
            if giver in place:
                axes.plot([number - 0.28, number], [place[giver], row], color=colour, linewidth=1.1, zorder=3)
                axes.plot([number], [row], "o", color=colour, markersize=4.2, mew=0, zorder=5)
    for played in rounds:
        if played.kept == "local":
            dot = [played.number], [place[played.trainer]]
            axes.plot(*dot, "o", color=look.PAPER, markersize=2.6, mew=0, zorder=4)
    _finish(axes, chart, place)


def _finish(axes: Any, chart: Lineage, place: dict[int, int]) -> None:
    end = chart.history.num_rounds + 1
    apply(axes.xaxis, Scale(0.0, float(end), is_whole=True), ticks=10)
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
    axes.set_xlabel("round", labelpad=2)
