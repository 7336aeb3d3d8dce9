"""Texts with colours as textual draws them; what stands in a text is never taken for markup."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from merlin.base.text import printable

if TYPE_CHECKING:
    from rich.text import Text

_NO_COLOURS = ("", "bold", "reverse")


def cell(value: object, colour: str = "", *, right: bool = False) -> Text:
    """One value; `right`: at the right edge of its column."""
    from rich.text import Text

    justify: Literal["left", "right"] = "right" if right else "left"
    return Text(printable(str(value)), style=_style(colour), justify=justify, no_wrap=True)


def pieces(parts: Iterable[tuple[str, str]]) -> Text:
    """Texts with their colours, one behind the other."""
    from rich.text import Text

    found = Text(no_wrap=True)
    for text, colour in parts:
        found.append(printable(text), style=_style(colour))
    return found


def _style(colour: str) -> str:
    """The colour, unless the user wants none: textual would draw some in a grey that nobody can read."""
    return colour if colour in _NO_COLOURS or "NO_COLOR" not in os.environ else ""
