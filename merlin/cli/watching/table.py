"""A table that is brought up to date in place: its cursor stays on the same row, and only what has changed is drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.widgets import DataTable

from merlin.cli.watching.cells import cell

if TYPE_CHECKING:
    from rich.text import Text


class LiveTable(DataTable[Any]):
    """Rows have keys; `show` makes them those that are given, in this order."""

    DEFAULT_CSS = """
    LiveTable { overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    def __init__(self, columns: Mapping[str, int], *, id: str, right: Collection[str] = ()) -> None:
        """`columns`: name -> width; 0: as wide as its content. Those in `right` have their texts at the right."""
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
        self._names = tuple(columns)
        self._widths = dict(columns)
        self._right = frozenset(right)
        self._shown: dict[str, tuple[Text, ...]] = {}

    def on_mount(self) -> None:
        for name, width in self._widths.items():
            self.add_column(cell(name, right=name in self._right), width=width or None, key=name)

    def show(self, rows: Mapping[str, Sequence[Text]]) -> None:
        """Show these rows, by their keys."""
        new = {key: tuple(cells) for key, cells in rows.items()}
        if list(new) != list(self._shown):
            self._fill(new)
        else:
            for key, cells in new.items():
                for name, old, new_cell in zip(self._names, self._shown[key], cells, strict=True):
                    if old != new_cell:
                        self.update_cell(key, name, new_cell, update_width=not self._widths[name])
        self._shown = new

    def _fill(self, rows: Mapping[str, tuple[Text, ...]]) -> None:
        """Other rows than before: the cursor goes where its row went."""
        chosen, row = self.chosen, self.cursor_row
        self.clear()
        for key, cells in rows.items():
            self.add_row(*cells, key=key)
        keys = list(rows)
        self.move_cursor(row=keys.index(chosen) if chosen in keys else min(row, max(0, len(keys) - 1)))

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None
