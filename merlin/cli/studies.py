"""Shows the studies in a directory; `merlin status DIRECTORY` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from merlin.status.snapshot import Snapshot
    from merlin.status.studies import StudyLine
    from merlin.workspace.directory import Workspace

_COUNTS = ("planned", "ok", "failed", "skipped", "missing")


def holds_studies(path: Path) -> bool:
    """Whether this is a directory of workspaces, and none itself."""
    from merlin.workspace.directory import INFO_DIR, workspaces_in

    return not (path / INFO_DIR).is_dir() and bool(workspaces_in(path))


def list_studies(folder: Path, *, as_json: bool, dump: Path | None) -> None:
    """Print the studies in `folder`, or write them into the file `dump`."""
    from merlin.cli.output import dump_file, jsonable, print_json
    from merlin.status.studies import studies_in

    studies = studies_in(folder, _look)
    document = {"directory": folder.absolute(), "studies": studies}
    if dump is not None:
        dump_file(dump, [jsonable(study) for study in studies], document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    else:
        _show(studies)


def _look(workspace: Workspace) -> Snapshot:
    """The servers are asked only about what is not finished."""
    from merlin.cli.live import live_snapshot
    from merlin.status.snapshot import take_snapshot

    snapshot = take_snapshot(workspace)
    return live_snapshot(workspace).snapshot if snapshot.totals.missing else snapshot


def _show(studies: Sequence[StudyLine]) -> None:
    """One line per study, for people."""
    from merlin.cli.output import console, table

    rows = [
        (s.name, s.when, s.state, *(f"{getattr(s, kind):,}" for kind in _COUNTS), s.workspace)
        if not s.problem
        else (s.name, s.when, s.state, *("" for _ in _COUNTS), s.problem)
        for s in studies
    ]
    console().print(table(("study", "when", "state", *_COUNTS, "workspace"), rows, right=_COUNTS))
