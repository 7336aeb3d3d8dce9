"""Holding a study, so that nobody else runs it or changes it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from merlin.errors import UsageError, WorkspaceError, command_line
from merlin.workspace.directory import INFO_DIR, REVISIONS_DIR, Workspace, lock_file, open_workspace
from merlin.workspace.revisions import cut_off_switch, finish_switch, require_same_plan


@contextmanager
def lock(workspace: Workspace) -> Iterator[None]:
    """Hold the workspace for one run; the kernel lets go of it when the process ends, however it ends.

    An update of the study that was cut off is finished first.

    Raises:
        WorkspaceError: another run holds it, and the message names its process; or it was updated since it was opened.
    """
    with lock_file(workspace.info / "lock", f"{workspace.path} is in use by a live run"):
        if (workspace.root / INFO_DIR / REVISIONS_DIR).is_dir():
            finish_switch(workspace.root)
            require_same_plan(workspace)
        yield


def open_finished(path: str | os.PathLike[str], note: Callable[[str], None]) -> Workspace:
    """Open the workspace at `path`; if an update of its study was cut off on the way, it is finished first.

    A `note` says so. If that cannot be done, for example because somebody holds the study or because it belongs to
    another user, the note says what can be done, and the workspace stays as it is.

    Raises:
        WorkspaceError: there is no plan at `path`, or it cannot be read.
    """
    workspace = open_workspace(path)
    root = workspace.root
    revision = cut_off_switch(root)
    if revision is None:
        return workspace
    try:
        with lock_file(
            root / INFO_DIR / "lock", f"{root} is being changed to revision {revision} by another command"
        ):
            finish_switch(root)
    except WorkspaceError as error:
        note(f"{error}; until then its files are partly those of another revision")
        return workspace
    note(
        f"a change of {root} to revision {revision} was cut off, and has been finished now; "
        f"to run what is left: {command_line('restart', root)}"
    )
    return open_workspace(path)


def open_root(path: str | os.PathLike[str], note: Callable[[str], None], option: str = "") -> Workspace:
    """`open_finished` for a command that is about a whole study. Raises UsageError if `path` is an extension."""
    study = open_finished(path, note)
    if study.plan.extension:
        words = f"{option} {study.root}".strip()
        raise UsageError(f"{path} is an extension; give its study: {words}")
    return study
