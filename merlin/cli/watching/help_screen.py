"""The keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """\
merlin status --watch

  arrows, enter   choose a row and open it: a step shows its tasks,
                  a task its log, a worker what it runs
  esc             back
  tab             the next table; in a task, its next file
  f               what has failed, by cause, with examples
  t               all tasks
  n, p            next and previous page, or task
  o               only tasks with one outcome
  g               go to a sample
  q, ctrl+c       leave; the study goes on

  bars:  █ ok   ▓ failed   ▒ skipped   · missing

Any key closes this page.
"""


class HelpScreen(ModalScreen[None]):
    """Shows the keys until one is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "Close")]
    CSS = """
    HelpScreen { align: center middle; }
    #help { width: auto; max-width: 100%; height: auto; padding: 0 2; border: solid; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(TEXT, id="help", markup=False)

    def on_key(self) -> None:
        self.dismiss()
