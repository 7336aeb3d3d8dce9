"""Holding a study, so that nobody else runs it or changes it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from merlin.workspace.directory import REVISIONS_DIR, Workspace, lock_file
from merlin.workspace.revisions import finish_switch, require_same_plan


@contextmanager
def lock(workspace: Workspace) -> Iterator[None]:
    """Hold the workspace for one run; the kernel lets go of it when the process ends, however it ends.

    An update of the study that was cut off is finished first.

    Raises:
        WorkspaceError: another run holds it, and the message names its process; or it was updated since it was opened.
    """
    with lock_file(workspace.info / "lock", f"{workspace.path} is in use by a live run"):
        if (workspace.root / "merlin_info" / REVISIONS_DIR).is_dir():
            finish_switch(workspace.root)
            require_same_plan(workspace)
        yield
