"""The frame of an HTML page that stands alone, to open anywhere and to attach to a mail.

It refers to nothing outside itself and has no scripts. Its colours follow the reader's light or dark theme, and on
paper it is light.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from merlin.base.page.style import CSS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Part = tuple[str, str, str]  # of a page: its id, its title, and HTML


def document(title: str, header: str, parts: list[Part], maker: str, more_style: str = "") -> str:
    """The page's HTML; title and header are HTML already. `maker` is the command that wrote it."""
    links = "".join(f'<a href="#{id}">{escape(title)}</a> ' for id, title, _ in parts)
    body = "\n".join(
        f'<section id="{id}"><h2>{escape(title)}</h2>\n{html}</section>' for id, title, html in parts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{title}</title>
<style>{CSS}{more_style}</style>
</head>
<body>
<header>{header}
<nav aria-label="Parts of this page">{links}</nav>
</header>
<main>
{body}
</main>
<footer>Made by <code>{maker}</code>. Everything is inside this file.</footer>
</body>
</html>
"""


def cards(facts: list[tuple[str, str]]) -> str:
    """Numbers shown large, each with its label; both are HTML already."""
    words = "".join(f"<div><b>{big}</b><span>{what}</span></div>" for big, what in facts)
    return f'<div class="cards">{words}</div>'


def counts_bar(counts: Mapping[str, int], planned: int) -> str:
    """A bar of outcomes, and planned = ok + failed + …; `counts` by outcome, in the order in which they are shown."""
    parts = "".join(f'<span class="{o}" style="flex-grow:{num}"></span>' for o, num in counts.items() if num)
    words = " + ".join(f'<span class="dot {o}"></span>{o} <b>{num:,}</b>' for o, num in counts.items())
    sign = "=" if planned == sum(counts.values()) else "≠"
    return (
        f'<div class="bar" aria-hidden="true">{parts}</div>\n'
        f'<p class="outcomes">planned <b>{planned:,}</b> {sign} {words}</p>'
    )
