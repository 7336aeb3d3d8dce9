"""A picture for docs/tournament.md: loss against modelled time, for each way in which several trainers can work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from data_rich import Course

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "tournament-data-rich.svg"
COLOURS = ("#444444", "#0072b2", "#009e73", "#d55e00", "#999999")  # told apart by those who see few colours
STYLES = ("-", "-", "--", "-.", ":")


def draw(panels: Mapping[str, Mapping[str, Sequence[Course]]], told: str) -> None:
    """One panel for each number of trainers; a line is the median of the seeds."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "merlin", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4.2 * len(panels), 3.2), sharey=True, squeeze=False
        )
        for panel, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for (name, courses), colour, kind in zip(lines.items(), COLOURS, STYLES, strict=False):
                seconds = np.median([of.seconds for of in courses], axis=0)
                losses = np.median([of.losses for of in courses], axis=0)
                panel.plot(seconds, losses, kind, color=colour, label=name, linewidth=1.4)
            panel.set(title=title, xlabel="modelled time, s", yscale="log", ylim=(2e-5, 2e-3))
        axes[0][0].set_ylabel(f"validation loss ({told})")
        axes[0][0].legend(frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig(PICTURE, metadata={"Date": None})
        plt.close(figure)
