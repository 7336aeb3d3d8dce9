"""Finds out if a run holds the workspace, without touching its lock."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from merlin.base.locks import is_locked_by
from merlin.base.processes import read_process
from merlin.ledger.segments import segment_paths
from merlin.status.activity import Holder
from merlin.workspace.directory import INFO_DIR, Workspace

_OWNER = re.compile(r"pid (\d+) on (\S+)")


def is_live(workspace: Workspace) -> bool:
    """True while a run holds the workspace's lock, as far as this machine can see."""
    return holder_of(workspace) is not None


def is_held(path: Path) -> bool:
    """True while a run holds the lock of the workspace at `path`, which need not be opened."""
    return lock_holder(path / INFO_DIR / "lock") is not None


def holder_of(workspace: Workspace) -> Holder | None:
    """The run that holds the workspace's lock.

    The kernel's table of locks is read instead of trying the lock, because a probe that holds the lock for an
    instant could turn away a run that starts. For a run on another host, only the lock file's text is known.
    """
    return lock_holder(workspace.info / "lock")


def lock_holder(path: Path) -> Holder | None:
    """The process that holds the lock file at `path`, as far as this machine can see."""
    try:
        owner = _OWNER.search(path.read_text("utf-8", "replace"))
    except OSError:
        return None
    if owner is None:
        return None
    pid, host = int(owner[1]), owner[2]
    if host != os.uname().nodename:
        return Holder(pid=pid, host=host, is_here=False)
    process = read_process(pid)
    if process is None or not is_locked_by(pid, path):
        return None
    return Holder(pid=pid, host=host, is_here=True, is_suspended=process.is_stopped)


def last_sign(workspace: Workspace) -> float | None:
    """When a run of this workspace wrote something last, by the clock of the file system; None: nothing is there."""
    signs = []
    for path in (*segment_paths(workspace.ledger_dir), workspace.info / "lock"):
        with suppress(OSError):
            signs.append(path.stat().st_mtime)
    return max(signs, default=None)
