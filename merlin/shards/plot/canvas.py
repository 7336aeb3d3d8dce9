"""The paper that charts are drawn on: colours, places in inches, axes without junk.

Colours can be distinguished with every common colour blindness (after Okabe and Ito, 2008), and each meaning has one
colour everywhere. Every colour here is written in one way only, so that the page can replace it by a variable
and follow the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from merlin.errors import MissingExtraError
from merlin.shards.format.segments import Array

WIDTH = 10.0  # of every figure, inches
MARGIN = 0.12

PAPER = "#fefefe"
INK = "#1d2330"
SOFT = "#5d6675"
RULE = "#d5dae1"
BLUE = "#2e6db4"
ORANGE = "#d9820f"
GREEN = "#12876a"
RED = "#c63d1f"
PURPLE = "#8a56ac"

TINTED = "tinted"  # gid of axes with pixels in one of these colours; the page lightens them on dark paper

SPLIT_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SOFT)
OUTCOME_COLOURS = {"ok": BLUE, "failed": RED, "filtered": PURPLE, "skipped": SOFT, "missing": ORANGE}
OUTCOME_MARKERS = {"failed": "x", "filtered": "D", "skipped": "+", "missing": "s"}

SMALL, NORMAL, LARGE = 7.0, 8.5, 12.0  # points

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": NORMAL,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.7,
    "svg.fonttype": "none",
    "path.simplify": True,
    "text.parse_math": False,  # a "$" in what users wrote is a dollar
}


def require_matplotlib() -> None:
    """Raise MissingExtraError, which names the extra, unless matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a picture of a data set") from None


@contextmanager
def settings() -> Iterator[None]:
    """Settings under which figures are made and saved, whatever the user's own matplotlibrc says."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


class Canvas(Struct, frozen=True):
    """A strip of a figure; places are inches from its upper left corner."""

    figure: Any
    width: float
    height: float
    top: float = 0.0  # of the strip, from the upper edge of the figure
    figure_height: float = 0.0  # 0: the strip is the complete figure
    is_vector: bool = False

    @property
    def _full(self) -> float:
        return self.figure_height or self.height

    @property
    def interpolation(self) -> str | None:
        """How images are drawn: a vector file keeps their own pixels, a raster file has no jagged edges."""
        return "none" if self.is_vector else None

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Any:
        """New axes; the place is that of the box itself, labels come outside."""
        bottom = self._full - (self.top + top + height)
        rectangle = (left / self.width, bottom / self._full, width / self.width, height / self._full)
        made = self.figure.add_axes(rectangle, **options)
        _plain(made)
        return made

    def text(self, left: float, top: float, text: str, **options: Any) -> Any:
        style = {"fontsize": NORMAL, "color": INK, "ha": "left", "va": "top"} | options
        place = (left / self.width, 1 - (self.top + top) / self._full)
        return self.figure.text(*place, text, **style)

    def legend(self, left: float, top: float, entries: list[tuple[str, str, str]]) -> None:
        """A line of entries (mark, colour, words); the mark is "line", "fill", "faint" or one of matplotlib's."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        marks: list[Any] = []
        for mark, colour, _ in entries:
            if mark in ("fill", "faint"):
                marks.append(Patch(facecolor=colour, alpha=0.4 if mark == "fill" else 0.16))
            else:
                style = (
                    {"linewidth": 1.4} if mark == "line" else {"ls": "", "marker": mark, "markersize": 4.5}
                )
                marks.append(Line2D([], [], color=colour, **style))
        drawn = self.figure.legend(
            marks,
            [words for *_, words in entries],
            loc="upper left",
            bbox_to_anchor=(left / self.width, 1 - (self.top + top) / self._full),
            ncols=len(entries),
            frameon=False,
            fontsize=NORMAL,
            labelcolor=INK,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.4,
            handletextpad=0.5,
            columnspacing=1.6,
        )
        drawn.set_in_layout(False)


def _plain(axes: Any) -> None:
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelcolor=SOFT, labelsize=SMALL, width=0.7, length=2.5, pad=2)
    axes.xaxis.label.set(color=INK, fontsize=NORMAL)
    axes.yaxis.label.set(color=INK, fontsize=NORMAL)


def bars(
    axes: Any, heights: Array, edges: Array, colour: str, *, width: float = 1.0, filled: bool = True
) -> None:
    """A histogram: its area, and its outline if that has a width. Heights begin at 0 and have no ticks."""
    if filled:
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.35, linewidth=0)
    if width:
        axes.stairs(heights, edges, color=colour, linewidth=width)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def without_box(axes: Any) -> None:
    """Neither frame nor ticks, for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


class Section(Struct, frozen=True):
    """A chart that has its data and waits to be drawn."""

    key: str  # inputs | scalars | images | …, which `kind` selects
    title: str
    note: str  # what is drawn, of how many samples
    height: float  # inches, of a strip `WIDTH` wide
    draw: Callable[[Canvas], None]
