"""Which trainer's model went where: a line for each trainer, and a link wherever it took over another's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from merlin.shards.plot import canvas as look
from merlin.shards.plot.canvas import WIDTH, Canvas
from merlin.shards.plot.ticks import Scale, apply
from merlin.train.results.history import History, Round
from merlin.train.results.report.curves import COLOURS

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.95, 0.35, 0.12, 0.5
_MOST_INCHES = 7.0


@dataclass(frozen=True)
class Lineage:
    trainers: tuple[int, ...]
    rounds: tuple[Round, ...]
    num_rounds: int
    origins: dict[int, list[int]]  # trainer -> in which trainer its model began, before and after each round
    best: tuple[int, int]  # trainer and step of the best model
    capacities: dict[int, float] = field(default_factory=dict)  # of trainers that have made copies

    @staticmethod
    def of(history: History, best: tuple[int, int]) -> Lineage:
        trainers = tuple(t.trainer for t in history.trainers)
        capacities = history.capacities()
        return Lineage(trainers, history.rounds, history.num_rounds, history.origins(), best, capacities)

    @property
    def taken(self) -> int:
        return sum(played.kept == "partner" for played in self.rounds)

    @property
    def note(self) -> str:
        left = sorted({origin[-1] for origin in self.origins.values()})
        began = f"trainer {left[0]}" if len(left) == 1 else f"{len(left)} of {len(self.trainers)} trainers"
        return (
            f"{self.num_rounds:,} rounds; a link is a model that another trainer took over ({self.taken:,} times). "
            f"At the end all models go back to {began}"
            + ("; at the right: capacity" if self.capacities else "")
        )

    @property
    def height(self) -> float:
        return _TOP + _BOTTOM + max(0.6, min(_MOST_INCHES, 0.34 * len(self.trainers)))

    def colour(self, origin: int) -> str:
        """By the trainer in which a model began; of many trainers only the best model's origin has a colour."""
        if len(self.trainers) <= len(COLOURS):
            return COLOURS[self.trainers.index(origin)]
        return look.BLUE if origin == self.origins[self.best[0]][-1] else look.SOFT


def draw(chart: Lineage, canvas: Canvas) -> None:
    axes = canvas.axes(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, chart.height - _TOP - _BOTTOM)
    place = {trainer: row for row, trainer in enumerate(chart.trainers)}
    links = {(p.number, p.trainer): p.partner for p in chart.rounds if p.kept == "partner"}
    for trainer in chart.trainers:
        for number in range(chart.num_rounds + 1):
            colour = chart.colour(chart.origins[trainer][number])
            axes.plot([number, number + 1], [place[trainer]] * 2, color=colour, linewidth=2.2,
                      solid_capstyle="butt", zorder=2)  # fmt: skip
            giver = links.get((number, trainer))
            if giver in place:
                _link(axes, number, place[giver], place[trainer], colour)
    for played in chart.rounds:
        if played.kept == "local":
            axes.plot(
                [played.number],
                [place[played.trainer]],
                "o",
                color=look.PAPER,
                markersize=2.6,
                mew=0,
                zorder=4,
            )
    _finish(axes, chart, place)


def _tell_widths(axes: Any, chart: Lineage, place: dict[int, int], shown: Sequence[int]) -> None:
    for trainer in shown:
        if trainer in chart.capacities:
            axes.text(
                chart.num_rounds + 1, place[trainer], f" {chart.capacities[trainer]:.2f}",
                va="center", color=look.SOFT, fontsize=look.SMALL, clip_on=False,
            )  # fmt: skip


def _link(axes: Any, number: int, giver: int, taker: int, colour: str) -> None:
    axes.plot([number - 0.28, number], [giver, taker], color=colour, linewidth=1.1, zorder=3)
    axes.plot([number], [taker], "o", color=colour, markersize=4.2, mew=0, zorder=5)


def _finish(axes: Any, chart: Lineage, place: dict[int, int]) -> None:
    apply(axes.xaxis, Scale(0.0, float(chart.num_rounds + 1), is_whole=True), ticks=10)
    axes.set_xlim(0, chart.num_rounds + 1)
    axes.set_ylim(len(place) - 0.5, -0.5)
    shown = chart.trainers if len(place) <= 24 else chart.trainers[:: -(-len(place) // 24)]
    axes.set_yticks([place[t] for t in shown])
    axes.set_yticklabels([f"trainer {t}" + (" ★" if t == chart.best[0] else "") for t in shown])
    _tell_widths(axes, chart, place, shown)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("round", labelpad=2)
