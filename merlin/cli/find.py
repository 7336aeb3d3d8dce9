"""Finds the workspace that a command line means: given itself, or the newest of a spec's study."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from merlin.cli.output import remark
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
    may choose; else stderr says which one was taken.

    Raises:
        WorkspaceError: there is none.
    """
    if path.is_dir():
        return open_finished(path, remark)
    from merlin.views.studies import studies_of_spec  # what a workspace does not need

    found = studies_of_spec(path, output, variables or {})
    if len(found) == 1:
        return open_finished(found[0].path, remark)
    if ask and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return open_finished(_ask(found).path, remark)
    remark(f"{len(found)} workspaces of this study; this is the newest: {found[0].path}")
    return open_finished(found[0].path, remark)


def _ask(found: list[Workspace]) -> Workspace:
    for number, workspace in enumerate(found, 1):
        remark(f"{number}: {workspace.path}")
    chosen: int = click.prompt("Which one?", type=click.IntRange(1, len(found)), default=1, err=True)
    return found[chosen - 1]
