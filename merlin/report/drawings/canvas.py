"""The paper of drawings: shapes and words become one <svg> element, and ticks that people read easily."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

WIDTH = 1000.0  # of a drawing that fills the page

# the colours are those of the page, so that drawings follow its theme
STYLE = """
figure.drawn svg { min-width: 560px; }
svg.d { overflow: visible; }
svg.d text { font-size: 12px; fill: var(--soft); }
svg.d .name { fill: var(--ink); }
svg.d .strong { fill: var(--ink); font-weight: 600; }
svg.d .small { font-size: 11px; }
svg.d .ok { fill: var(--blue); }
svg.d .failed { fill: var(--red); }
svg.d .skipped { fill: var(--soft); }
svg.d .missing { fill: var(--orange); }
svg.d .area { fill: var(--blue); fill-opacity: 0.45; }
svg.d .there { fill: var(--soft); fill-opacity: 0.16; }
svg.d .pause { fill: var(--card); }
svg.d .rule { stroke: var(--rule); stroke-width: 1; fill: none; }
svg.d .edge { stroke: var(--soft); stroke-width: 1.4; fill: none; }
svg.d .edge.all { stroke-width: 3; }
svg.d .edge.block { stroke-dasharray: 2 4; stroke-linecap: round; stroke-width: 2; }
svg.d .box { fill: var(--card); stroke: var(--rule); stroke-width: 1; }
svg.d .end { stroke: none; fill: var(--soft); }
svg.spark { display: inline-block; vertical-align: middle; width: 120px; height: 24px; }
svg.spark rect { fill: var(--blue); fill-opacity: 0.75; }
"""


def num(value: float) -> str:
    """A coordinate, as short as it can be."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """Shapes, one above the other."""

    def __init__(self, height: float, title: str) -> None:
        """`title` is read aloud to readers who cannot see the drawing."""
        self._height, self._title = height, title
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, look: str, *, round: float = 0.0) -> None:
        corners = f' rx="{num(round)}"' if round else ""
        place = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self._shapes.append(f'<rect class="{look}" {place}{corners}/>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.path(f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}", "rule")

    def path(self, d: str, look: str) -> None:
        self._shapes.append(f'<path class="{look}" d="{d}"/>')

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "start") -> None:
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        style = f' class="{look}"' if look else ""
        self._shapes.append(f'<text x="{num(x)}" y="{num(y)}"{style}{where}>{escape(words)}</text>')

    def steps(
        self,
        heights: Iterable[float],
        x: float,
        base: float,
        step: float,
        look: str,
        floor: Iterable[float] = (),
    ) -> None:
        """Draw a row of bars without gaps, as one area: from `floor` to `heights` above `base`, each `step` wide."""
        floors = list(floor)
        outline = [f"M{num(x)} {num(base - (floors[0] if floors else 0))}"]
        outline += [f"V{num(base - top)}H{num(x + step * (i + 1))}" for i, top in enumerate(heights)]
        back = [
            f"V{num(base - low)}H{num(x + step * i)}" for i, low in reversed(list(enumerate(floors)))
        ] or [f"V{num(base)}H{num(x)}"]
        self.path("".join([*outline, *back, "Z"]), look)

    def svg(self) -> str:
        box = f"0 0 {num(WIDTH)} {num(self._height)}"
        head = f'<svg class="d" role="img" aria-label="{escape(self._title)}" viewBox="{box}">'
        return head + "".join(self._shapes) + "</svg>"

    def figure(self) -> str:
        return f'<figure class="drawn">{self.svg()}</figure>'


def spark(bars: Sequence[int], title: str) -> str:
    """A histogram as large as a word; "" where there is nothing to show."""
    if not any(bars):
        return ""
    most, step = max(bars), 120 / len(bars)
    # a class with a single value among millions must be seen, too
    heights = [max(1.0, 24 * value / most) if value else 0.0 for value in bars]
    shapes = "".join(
        f'<rect x="{num(i * step)}" y="{num(24 - height)}" width="{num(step - 0.6)}" height="{num(height)}"/>'
        for i, height in enumerate(heights)
        if height
    )
    label = escape(title)
    return f'<svg class="spark" role="img" aria-label="{label}" viewBox="0 0 120 24">{shapes}</svg>'


def ticks(most: float, count: int, least: float) -> list[float]:
    """About `count` round numbers from 0 to `most`, at least `least` apart."""
    rough = max(least, most / count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * 0.999)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]
