"""Outputs of a notebook's cells that follow a study while it runs.

IPython is not imported: a process that is no notebook does not have it, and one that is has loaded it already.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from merlin.api.study_html import page_html, progress_html
from merlin.execution.events import Progress
from merlin.views.study_page import StudyPage, StudyView
from merlin.workspace.directory import Workspace

UPDATE_S = 0.5  # between two pictures of a run of this process
FOLLOW_S = 1.0  # between two looks at a study that somebody else runs
OVER = ("new", "finished", "failed", "stopped", "unreadable")  # states in which nothing will change by itself


def notebook() -> Any:
    """The notebook's shell; None in a script or a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


class Output:
    """An output of a cell whose HTML can be replaced."""

    def __init__(self, html: str) -> None:
        self._display = importlib.import_module("IPython.display")
        self._handle = self._display.display(self._display.HTML(html), display_id=True)

    def replace(self, html: str) -> None:
        self._handle.update(self._display.HTML(html))


class RunView:
    """Shows a run of this process below the cell that began it; does nothing in a script."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._shell = workspace, notebook()
        self._output: Output | None = None
        self._first: Progress | None = None
        self._next = 0.0
        # the number of the cell, in which the study need not be shown again
        self.cell: int | None = None if self._shell is None else self._shell.execution_count

    def update(self, progress: Progress) -> None:
        now = time.monotonic()
        self._first = self._first or progress
        if self._shell is None or now < self._next:
            return
        self._next = now + UPDATE_S
        html = progress_html(self._workspace.plan.name, self._workspace.path, progress, self._first)
        if self._output is None:
            self._output = Output(html)
        else:
            self._output.replace(html)

    def end(self) -> None:
        """Show how the run has ended, well or not."""
        if self._output is not None:
            self._output.replace(page_html(StudyView(self._workspace.root).look()))


def follow(look: Callable[[], StudyPage], first: StudyPage) -> None:
    """Show a study below the cell, and replace the picture from a thread until the study is over."""
    output = Output(page_html(first))
    if first.state not in OVER:
        name = f"merlin: {first.name}"
        threading.Thread(target=_follow, args=(look, output, first), name=name, daemon=True).start()


def _follow(look: Callable[[], StudyPage], output: Output, page: StudyPage) -> None:
    while page.state not in OVER:
        time.sleep(FOLLOW_S)
        page = look()
        output.replace(page_html(page))
