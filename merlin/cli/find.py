"""Finds the workspace that a command line means: given itself, or the newest of a spec's study."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.errors import WorkspaceError, command_line

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace


def find_workspace(
    path: Path,
    *,
    output: Path | None = None,
    ask: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Workspace:
    """The workspace at `path`; for a spec, the newest of its study (below `output`, if given).

    Studies that `merlin run -o DIR` has put elsewhere are found where they are. `variables` are those of --vars: they
    may move a spec's workspaces. With several and `ask`, a person at a terminal may choose; else stderr says which
    one was taken.

    Raises:
        WorkspaceError: there is none.
    """
    from merlin.workspace.directory import open_workspace

    if path.is_dir():
        return open_workspace(path)
    found = _of_spec(path, output, variables or {})
    if len(found) == 1:
        return found[0]
    if ask and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return _ask(found)
    print(f"{len(found)} workspaces of this study; this is the newest: {found[0].path}", file=sys.stderr)
    return found[0]


def _of_spec(path: Path, output: Path | None, given: Mapping[str, str]) -> list[Workspace]:
    import os

    from merlin.config.study_places import remembered
    from merlin.spec.load import load_spec
    from merlin.workspace.directory import find_workspaces, output_path

    variables = dict(given) if output is None else {**given, "OUTPUT_PATH": str(output.absolute())}
    spec = load_spec(path, variables=variables, allow_undefined=True)
    found = find_workspaces(spec, [] if "OUTPUT_PATH" in variables else remembered(path, os.environ))
    if not found:
        raise WorkspaceError(
            f"no workspace of the study {spec.document.description.name!r} in {output_path(spec)}; "
            f"run it with: {command_line('run', path)}"
        )
    return found


def _ask(found: list[Workspace]) -> Workspace:
    import click

    for number, workspace in enumerate(found, 1):
        print(f"{number}: {workspace.path}", file=sys.stderr)
    chosen: int = click.prompt("Which one?", type=click.IntRange(1, len(found)), default=1, err=True)
    return found[chosen - 1]
