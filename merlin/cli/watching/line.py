"""A text that is drawn again only when it changes: nothing is sent over a slow line while nothing happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Static

if TYPE_CHECKING:
    from rich.text import Text


class Line(Static):
    """One text, or several lines."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._said: Text | str | None = None

    def say(self, text: Text | str) -> None:
        """Show this text."""
        if text != self._said:
            self._said = text
            self.update(text)
