"""Pictures for docs/tournament.md: loss against time, for each way in which several trainers can work; and lineages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pictures import IMAGES, pyplot, save

from merlin.shards.plot.figure import picture_file
from merlin.train.results.history import History, Round, Trained
from merlin.train.results.report.lineage import Lineage

COLOURS = ("#444444", "#0072b2", "#009e73", "#d55e00", "#999999")  # told apart by those who see few colours
STYLES = ("-", "-", "--", "-.", ":")


class Drawn(Protocol):
    """Losses at times."""

    @property
    def seconds(self) -> Sequence[float]: ...
    @property
    def losses(self) -> Sequence[float]: ...


def draw(
    name: str,
    panels: Mapping[str, Mapping[str, Drawn]],
    what: str,
    losses: tuple[float, float],
    time: str = "modelled time, s",
) -> None:
    """A panel for each entry; it ends with its first line, or with the longer one of two."""
    columns = min(2, len(panels))
    num_rows = -(-len(panels) // columns)
    with pyplot() as plt:
        figure, axes = plt.subplots(
            num_rows, columns, figsize=(8.4, 3.1 * num_rows), sharey=True, squeeze=False
        )
        for panel in list(axes.flat)[len(panels) :]:
            panel.set_visible(False)
        for panel, (title, lines) in zip(axes.flat, panels.items(), strict=False):
            for (label, course), colour, kind in zip(lines.items(), COLOURS, STYLES, strict=False):
                panel.plot(course.seconds, course.losses, kind, color=colour, label=label, linewidth=1.4)
            ends = [course.seconds[-1] for course in lines.values()]
            panel.set(title=title, xlabel=time, yscale="log", ylim=losses)
            panel.set_xlim(0, 1.04 * (ends[0] if len(ends) > 2 else max(ends)))
            panel.legend(frameon=False, fontsize=7)
        figure.supylabel(what, fontsize=9)
        figure.tight_layout()
        save(figure, name)


def draw_lineage(name: str, rounds: Sequence[Round], trainers: int, best: int = 0) -> None:
    """Whose model went where in a tournament, as its report draws it."""
    steps = max(played.step for played in rounds)
    history = History(
        trainers=tuple(Trained(k, steps, 0.0, 0.0, "finished") for k in range(trainers)), rounds=tuple(rounds)
    )
    section = Lineage(history, (best, steps)).section()
    (IMAGES / f"{name}.svg").write_text(picture_file(section), encoding="utf-8")
