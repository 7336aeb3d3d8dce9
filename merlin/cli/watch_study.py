"""Opens the whole screen of a terminal on a study."""

from __future__ import annotations

from merlin.cli.output import can_ask, is_terminal
from merlin.errors import MissingExtraError, UsageError, command_line
from merlin.workspace.directory import Workspace


def watch_study(workspace: Workspace, *, alone: bool) -> None:
    """Show the study, with its extensions, until the user leaves.

    Raises:
        UsageError: no person is at a terminal, or other options ask for other output (not `alone`).
        MissingExtraError: textual is not installed.
    """
    if not alone:
        raise UsageError("--watch takes the whole screen; --json and --dump show the study once, without it")
    if not (is_terminal() and can_ask()):
        follow = command_line("monitor", workspace.path)
        raise UsageError(f"--watch needs a terminal; without one, {follow} follows a study line by line")
    try:
        from merlin.cli.watching.app import watch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtraError("textual", "dashboard", "merlin status --watch") from error
    from merlin.views.study_page import StudyView

    watch(StudyView(workspace.root))
