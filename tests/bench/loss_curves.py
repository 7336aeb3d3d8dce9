"""A picture for docs/tournament.md: loss against modelled time, for each way in which several trainers can work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from data_rich import Course

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "tournament-data-rich.svg"
COLOURS = ("#444444", "#0072b2", "#009e73", "#d55e00", "#999999")  # told apart by those who see few colours
STYLES = ("-", "-", "--", "-.", ":")


def draw(panels: Mapping[str, Mapping[str, Course]], told: str) -> None:
    """One panel for each number of trainers."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "merlin", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            -(-len(panels) // 2), 2, figsize=(8.4, 3.1 * -(-len(panels) // 2)), sharey=True, squeeze=False
        )
        for panel, (title, lines) in zip(axes.flat, panels.items(), strict=False):
            for (name, course), colour, kind in zip(lines.items(), COLOURS, STYLES, strict=False):
                panel.plot(course.seconds, course.losses, kind, color=colour, label=name, linewidth=1.4)
            panel.set(title=title, xlabel="modelled time, s", yscale="log", ylim=(8e-6, 1e-3))
        figure.supylabel(f"validation loss, {told}", fontsize=9)
        _, with_most = max(zip(panels.values(), axes.flat, strict=False), key=lambda both: len(both[0]))
        with_most.legend(frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig(PICTURE, metadata={"Date": None})
        plt.close(figure)
