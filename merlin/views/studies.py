"""The studies in a directory, one line each, and those that a spec on the command line means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from merlin.base.files import absolute_path
from merlin.config.study_places import remembered, remembered_folders
from merlin.errors import MerlinError, WorkspaceError, command_line
from merlin.plan.outcome_counts import summed
from merlin.status.live import is_held
from merlin.status.whole_study import state_of
from merlin.views.live import AskServers, live_study
from merlin.views.study_line import SettledLines, StudyLine, stamp_of
from merlin.workspace.directory import (
    Workspace,
    begin_of,
    begin_shown,
    extension_paths,
    find_workspaces,
    open_workspace,
    output_path,
    shown_together,
    study_name_of,
    workspaces_in,
)
from merlin.workspace.provenance import read_provenance


def studies_in(*folders: Path, newest: int | None = None) -> list[StudyLine]:
    """The studies whose workspaces lie in the folders, the newest first.

    One that is damaged, or that this user may not read, costs its own line.
    """
    paths = {path for folder in folders for path in workspaces_in(absolute_path(folder), also_closed=True)}
    found = sorted(paths, key=lambda path: (begin_of(path), str(path)), reverse=True)
    servers, settled = AskServers(), SettledLines(os.environ)
    lines = [_line(path, servers, settled) for path in found[:newest]]
    settled.save()
    return lines


def known_folders(env: Mapping[str, str]) -> list[Path]:
    """Where studies of this user may lie: the current directory, and where `merlin run` has put some."""
    return list(dict.fromkeys([Path.cwd(), *remembered_folders(env)]))


def _line(path: Path, servers: AskServers, settled: SettledLines) -> StudyLine:
    stamp = stamp_of(path)
    if (line := settled.get(path, stamp)) is not None and not any(
        map(is_held, [path, *extension_paths(path)])
    ):
        return line
    when = begin_shown(path)
    try:
        studies = shown_together(open_workspace(path))
        members = [live_study(member, servers) for member in studies]
    except (MerlinError, OSError) as error:
        problem = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return StudyLine(
            name=study_name_of(path), workspace=str(path), when=when, state="unreadable", problem=problem
        )
    snapshots = [member.snapshot for member in members]
    state, reason = state_of(snapshots)
    at_work = next((snapshot for snapshot in snapshots if snapshot.state == "running"), None)
    line = StudyLine(
        name=snapshots[0].name,
        workspace=str(path),
        when=when,
        state=state,
        **summed(each.totals for each in snapshots),
        rate=None if at_work is None else at_work.totals.rate,
        eta=None if at_work is None else at_work.eta,
        state_reason=reason if state in ("stalled", "unknown") else "",
        is_dry=state == "new" and is_of_dry_run(studies[0]),
    )
    if all(member.is_settled for member in members):
        settled.add(path, stamp, line)
    return line


def is_of_dry_run(workspace: Workspace) -> bool:
    """True if a dry run made the workspace, and nothing has run in it."""
    return read_provenance(workspace.info).is_dry and not any(workspace.ledger_dir.glob("*"))


def studies_of_spec(path: Path, output: Path | None, given: Mapping[str, str]) -> list[Workspace]:
    """The workspaces of a spec's study, the newest first (below `output`, if given).

    Studies that `merlin run -o DIR` has put elsewhere are found where they are. The variables that are `given` may
    move a spec's workspaces. Raises WorkspaceError if there is none.
    """
    from merlin.spec.load import load_spec  # heavy, and needed for specs alone

    variables = dict(given) if output is None else {**given, "OUTPUT_PATH": str(absolute_path(output))}
    spec = load_spec(path, variables=variables, allow_undefined=True)
    found = find_workspaces(spec, [] if "OUTPUT_PATH" in variables else remembered(path, os.environ))
    if not found:
        raise WorkspaceError(
            f"no workspace of the study {spec.document.description.name!r} in {output_path(spec)}; "
            f"run it with: {command_line('run', path)}"
        )
    return found
