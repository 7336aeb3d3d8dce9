"""The studies in a directory, one line each, and those that a spec on the command line means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from merlin.base.files import absolute_path
from merlin.config.study_places import remembered
from merlin.errors import MerlinError, WorkspaceError, command_line
from merlin.status.snapshot import take_snapshot
from merlin.views.live import live_study
from merlin.workspace.directory import (
    INFO_DIR,
    Workspace,
    find_workspaces,
    open_workspace,
    output_path,
    workspaces_in,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """A study as a list shows it; tasks are those of the study itself, without its extensions."""

    name: str
    workspace: str
    when: str  # "2026-01-02 03:04:05", from the name of the workspace
    state: str  # of its snapshot; "unreadable" if there can be none, and `problem` says why
    planned: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    problem: str = ""


def holds_studies(path: Path) -> bool:
    """True if this is a directory of workspaces, and none itself."""
    return not (path / INFO_DIR).is_dir() and bool(workspaces_in(path))


def studies_in(folder: Path) -> list[StudyLine]:
    """The studies whose workspaces lie in `folder`, the newest first; a damaged one costs its own line."""
    return [_line(path) for path in workspaces_in(absolute_path(folder))]


def _line(path: Path) -> StudyLine:
    stem, _, stamp = path.name.rpartition("_")
    date, time = stamp.split("-")
    when = f"{date[:4]}-{date[4:6]}-{date[6:]} {time[:2]}:{time[2:4]}:{time[4:]}"
    try:
        workspace = open_workspace(path)
        snapshot = take_snapshot(workspace)
        if snapshot.totals.missing:  # the servers are asked only about what is not finished
            snapshot = live_study(workspace).snapshot
    except MerlinError as error:
        return StudyLine(name=stem, workspace=str(path), when=when, state="unreadable", problem=str(error))
    numbers = {
        kind: getattr(snapshot.totals, kind) for kind in ("planned", "ok", "failed", "skipped", "missing")
    }
    return StudyLine(name=snapshot.name, workspace=str(path), when=when, state=snapshot.state, **numbers)


def studies_of_spec(path: Path, output: Path | None, given: Mapping[str, str]) -> list[Workspace]:
    """The workspaces of a spec's study, the newest first (below `output`, if given).

    Studies that `merlin run -o DIR` has put elsewhere are found where they are. The variables that are `given` may
    move a spec's workspaces.

    Raises:
        WorkspaceError: there is none.
    """
    from merlin.spec.load import load_spec  # heavy, and needed for specs alone

    variables = dict(given) if output is None else {**given, "OUTPUT_PATH": str(output.absolute())}
    spec = load_spec(path, variables=variables, allow_undefined=True)
    found = find_workspaces(spec, [] if "OUTPUT_PATH" in variables else remembered(path, os.environ))
    if not found:
        raise WorkspaceError(
            f"no workspace of the study {spec.document.description.name!r} in {output_path(spec)}; "
            f"run it with: {command_line('run', path)}"
        )
    return found
