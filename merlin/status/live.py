"""Finds out if a run holds the workspace, without touching its lock."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from merlin.base.locks import is_locked_by
from merlin.base.processes import read_process
from merlin.ledger.replay import replay
from merlin.ledger.segments import segment_paths
from merlin.status.activity import Holder
from merlin.status.run_events import HasEvents, is_open
from merlin.workspace.directory import INFO_DIR, Workspace

_OWNER = re.compile(r"pid (\d+) on (\S+)")


def is_live(workspace: Workspace) -> bool:
    """True while a run holds the workspace's lock, as far as this machine can see."""
    return holder_of(workspace) is not None


def is_held(path: Path) -> bool:
    """True while a process of this machine holds the lock of the workspace at `path`, which need not be opened.

    A run on another machine shows by what it writes into the ledger.
    """
    holder = lock_holder(path / INFO_DIR / "lock")
    return holder is not None and holder.is_here


def holder_of(workspace: Workspace, state: HasEvents | None = None) -> Holder | None:
    """The run that holds the workspace's lock; `state`: the ledger, for those who have read it already.

    The kernel's table of locks is read instead of trying the lock, because a probe that holds the lock for an
    instant could turn away a run that starts. Of a process on another host only the lock file's text is known, which
    stays there after a kill: it counts only if by the ledger a run of a command has not ended. Raises LedgerError.
    """
    holder = lock_holder(workspace.info / "lock")
    if holder is None or holder.is_here:
        return holder
    ledger = replay(workspace.ledger_dir, workspace.plan) if state is None else state
    return holder if is_open(ledger) else None


def lock_holder(path: Path) -> Holder | None:
    """The process that holds the lock file at `path`; one on another machine may have left it long ago."""
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
