"""Finds the workspace that a command line means: given itself, or the newest of a spec's study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from merlin.cli.output import can_ask, remark, stderr_is_terminal
from merlin.workspace.directory import Workspace
from merlin.workspace.holding import open_finished


def find_workspace(
    path: Path,
    *,
    output: Path | None = None,
    ask: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Workspace:
    """The workspace at `path`; for a spec, the newest of its study (below `output`, if given).

    `variables` are those of --vars: they may move a spec's workspaces. With several and `ask`, a person at a terminal
    may choose; else stderr says which one was taken. Raises WorkspaceError if there is none.
    """
    if path.is_dir():
        return open_finished(path, remark)
    from merlin.views.studies import studies_of_spec  # what a workspace does not need

    found = studies_of_spec(path, output, variables or {})
    chosen = found[0]
    if len(found) > 1:
        if ask and can_ask() and stderr_is_terminal():
            chosen = _ask(found)
        else:
            remark(f"{len(found)} workspaces of this study; this is the newest: {chosen.path}")
    if chosen is found[0]:
        _say_if_dry(found)
    return open_finished(chosen.path, remark)


def _say_if_dry(found: list[Workspace]) -> None:
    """Say that the first is of a dry run, and which is the newest that is not."""
    from merlin.views.studies import is_of_dry_run

    if is_of_dry_run(found[0]):
        other = next((each for each in found if not is_of_dry_run(each)), None)
        before = "" if other is None else f"; the newest of another run: {other.path}"
        remark(f"it was made by a dry run, and nothing has run in it{before}")


def _ask(found: list[Workspace]) -> Workspace:
    for number, workspace in enumerate(found, 1):
        remark(f"{number}: {workspace.path}")
    chosen: int = click.prompt("Which one?", type=click.IntRange(1, len(found)), default=1, err=True)
    return found[chosen - 1]
