"""Pictures for `docs/images`, which are the same after each run of the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
STYLE = {"svg.hashsalt": "merlin", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


@contextmanager
def pyplot() -> Iterator[Any]:
    """matplotlib.pyplot, with the look of all pictures."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        yield plt
    plt.close("all")


def save(figure: Any, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
