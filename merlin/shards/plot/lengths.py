"""How many items the samples of a ragged field have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from merlin.shards.plot.canvas import BLUE, MARGIN, WIDTH, Canvas
from merlin.shards.plot.ticks import Array, apply, choose_scale, short

MAX_PANELS = 24
_PER_LINE = 4
_PANEL, _LINE = 1.05, 1.6


@dataclass(frozen=True)
class Lengths:
    """Numbers of items per sample: (what, (n,) values)."""

    counts: tuple[tuple[str, Array], ...]

    @property
    def height(self) -> float:
        return 0.1 + _LINE * -(-len(self.counts) // _PER_LINE)


def draw(data: Lengths, canvas: Canvas) -> None:
    step = (WIDTH - MARGIN) / _PER_LINE
    for i, (words, counts) in enumerate(data.counts):
        line, place = divmod(i, _PER_LINE)
        axes = canvas.axes(MARGIN + 0.08 + place * step, 0.1 + line * _LINE, step - 0.35, _PANEL)
        scale = choose_scale(counts.astype(np.float64))
        edges = scale.edges(len(counts))
        axes.stairs(np.histogram(counts, edges)[0], edges, fill=True, color=BLUE, alpha=0.35, linewidth=0)
        axes.stairs(np.histogram(counts, edges)[0], edges, color=BLUE, linewidth=1.1)
        axes.set_ylim(bottom=0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        apply(axes.xaxis, scale, ticks=4)
        axes.set_xlabel(short(words, 26), labelpad=2)
