"""Sections on one figure (for notebooks, PNG and PDF), or each as a drawing of its own (for the page)."""

from __future__ import annotations

import io
import re
from html import escape
from textwrap import wrap
from typing import Any

import merlin.shards.plot.canvas as look
from merlin.base.page.style import FONT, THEME
from merlin.shards.plot.canvas import LARGE, MARGIN, PAPER, SOFT, WIDTH, Canvas, Section, settings
from merlin.shards.plot.ticks import CHARACTER

_HEADING, _SPACE, _TITLE = 0.55, 0.25, 0.75
_LINE = 0.15  # of a note that has several
DPI = 150


def make_figure(sections: list[Section], title: str, subtitle: str) -> Any:
    """All sections, one below the other, as a matplotlib Figure; it shows itself in a notebook."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    head = _TITLE if title else 0.0
    notes = ["\n".join(wrap(section.note, int((WIDTH - 2 * MARGIN) / CHARACTER))) for section in sections]
    headings = [_HEADING + _LINE * note.count("\n") for note in notes]
    height = head + sum(headings) + sum(section.height + _SPACE for section in sections)
    with settings():
        figure: Any = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER)
        FigureCanvasAgg(figure)
        if title:
            page = Canvas(figure, WIDTH, height)
            page.text(MARGIN, 0.16, title, fontsize=LARGE + 4, weight="bold")
            page.text(MARGIN, 0.47, subtitle, color=SOFT)
        top = head
        for section, note, heading in zip(sections, notes, headings, strict=True):
            above = Canvas(figure, WIDTH, heading, top, height)
            above.text(MARGIN, 0.12, section.title, fontsize=LARGE, weight="bold")
            above.text(MARGIN, 0.34, note, color=SOFT)
            top += heading
            section.draw(Canvas(figure, WIDTH, section.height, top, height))
            top += section.height + _SPACE
    figure._repr_png_ = lambda: picture(figure, "png", dpi=100)
    return figure


def picture(figure: Any, format: str, dpi: int = DPI) -> bytes:
    """The figure as a file of this format; the same every time."""
    out = io.BytesIO()
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[format]
    with settings():
        figure.savefig(out, format=format, dpi=dpi, metadata=metadata)
    return out.getvalue()


def drawing(section: Section) -> str:
    """The section as an <svg> element for an HTML page: no references to anything outside, and colours as
    variables of the page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    with settings():
        import matplotlib

        matplotlib.rcParams["svg.hashsalt"] = section.key + section.title
        figure = Figure(figsize=(WIDTH, section.height), dpi=200, facecolor="none")
        FigureCanvasSVG(figure)
        section.draw(Canvas(figure, WIDTH, section.height, is_vector=True))
        figure.savefig(out, format="svg", metadata={"Date": None})
    return _inline(out.getvalue(), section.title)


def picture_file(section: Section) -> str:
    """The section as an SVG file for pages; it follows the reader's light or dark theme, too."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    named = drawing(section).replace("<svg ", f"<svg {names} ", 1)
    return named.replace(">", f"><style>{_FILE_STYLE}</style>", 1)


_FILE_STYLE = f"""{THEME}
svg text {{ font-family: {FONT} !important; }}
@media screen and (prefers-color-scheme: dark) {{ .tinted image {{ filter: brightness(1.5) saturate(0.9); }} }}"""
_VARIABLES = ("paper", "ink", "soft", "rule", "blue", "orange", "green", "red", "purple")


def _inline(svg: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace(f'<g id="{look.TINTED}">', f'<g class="{look.TINTED}">')
    svg = re.sub(r'<g id="[A-Za-z]\w*">', "<g>", svg)
    head = rf'<svg role="img" aria-label="{escape(title)}" viewBox="\1">'
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', head, svg, count=1)
    for name in _VARIABLES:
        svg = svg.replace(getattr(look, name.upper()), f"var(--{name})")
    return svg
