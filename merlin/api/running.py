"""Runs what is left of a workspace in this process: the notebook, the logger and the caller see how it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from merlin.api.notebook import RunView
from merlin.errors import ExecutionError
from merlin.execution.events import Observer, Progress
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.execution.conductor import RunOptions
    from merlin.plan.plan import Plan

_LOG = logging.getLogger("merlin")


def run_here(
    workspace: Workspace, options: RunOptions, tell: Callable[[Progress], object] | None = None
) -> int | None:
    """Run it to its end; returns the number of the notebook's cell that has shown it, None outside of notebooks.

    Raises:
        WorkspaceError: another run holds the workspace.
        LedgerError, ExecutionError: the run itself broke; the outcomes so far are in the ledger.
        KeyboardInterrupt: after Ctrl-C, when the study has stopped.
    """
    from merlin.execution.embedded import INTERRUPTED, run_embedded

    go_on = f"go on with: merlin.Study({str(workspace.root)!r}).restart()"
    view = RunView(workspace)
    try:
        summary = run_embedded(workspace, options, _Observer(view, tell))
    except ExecutionError as error:
        error.add_note(go_on)
        raise
    finally:
        view.end()
    if summary.stop_reason == INTERRUPTED:
        raise KeyboardInterrupt(f"the study has stopped; {go_on}")
    if summary.stop_reason:
        _LOG.warning("the study stopped early: %s", summary.stop_reason)
    return view.cell


class _Observer(Observer):
    """Hands the events of a run on."""

    def __init__(self, view: RunView, tell: Callable[[Progress], object] | None) -> None:
        self._view, self._tell = view, tell

    def started(self, plan: Plan, progress: Progress) -> None:
        self.progress(progress)

    def progress(self, progress: Progress) -> None:
        self._view.update(progress)
        if self._tell is not None:
            self._tell(progress)

    def note(self, text: str) -> None:
        _LOG.info(text)
