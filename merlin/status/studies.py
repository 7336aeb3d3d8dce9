"""The studies in a directory, one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from merlin.base.files import absolute_path
from merlin.errors import MerlinError
from merlin.status.snapshot import Snapshot, take_snapshot
from merlin.workspace.directory import Workspace, open_workspace, workspaces_in


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """A study as a list shows it; tasks are those of the study itself, without its extensions."""

    name: str
    workspace: str
    when: str  # "2026-01-02 03:04:05", from the name of the workspace
    state: str  # of its snapshot; "unreadable" if it cannot be told, and why is in `problem`
    planned: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    problem: str = ""


def studies_in(folder: Path, look: Callable[[Workspace], Snapshot] = take_snapshot) -> list[StudyLine]:
    """The studies whose workspaces lie in `folder`, the newest first; a damaged one costs its own line."""
    return [_line(path, look) for path in workspaces_in(absolute_path(folder))]


def _line(path: Path, look: Callable[[Workspace], Snapshot]) -> StudyLine:
    stem, _, stamp = path.name.rpartition("_")
    date, time = stamp.split("-")
    when = f"{date[:4]}-{date[4:6]}-{date[6:]} {time[:2]}:{time[2:4]}:{time[4:]}"
    try:
        snapshot = look(open_workspace(path))
    except MerlinError as error:
        return StudyLine(name=stem, workspace=str(path), when=when, state="unreadable", problem=str(error))
    totals = snapshot.totals
    return StudyLine(
        name=snapshot.name,
        workspace=str(path),
        when=when,
        state=snapshot.state,
        planned=totals.planned,
        ok=totals.ok,
        failed=totals.failed,
        skipped=totals.skipped,
        missing=totals.missing,
    )
