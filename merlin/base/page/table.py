"""Tables of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """A table; cells are HTML already, columns named in `right` are right-aligned numbers."""
    style = [' class="n"' if name in right else "" for name in columns]
    # a column without a name has no heading, because screen readers would announce it
    head = "".join(
        f"<th{s}>{escape(name)}</th>" if name else "<td></td>" for s, name in zip(style, columns, strict=True)
    )
    body = []
    for row in rows:
        cells = "".join(f"<td{s}>{cell}</td>" for s, cell in zip(style, row, strict=True))
        body.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """A table of facts, each a name and a value; both are plain text."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td><code>{escape(value)}</code></td></tr>'
        for name, value in facts
    )
    return f'<div class="wide"><table class="facts"><tbody>\n{rows}\n</tbody></table></div>'
