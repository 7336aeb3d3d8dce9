"""Whether a run holds the workspace, found out without touching its lock."""

from __future__ import annotations

import os
import re
from pathlib import Path

from merlin.workspace.directory import Workspace

_OWNER = re.compile(r"pid (\d+) on (\S+)")


def is_live(workspace: Workspace, *, locks: Path = Path("/proc/locks")) -> bool:
    """True while a run holds the workspace's lock.

    The kernel's table of locks is read instead of trying the lock, because a probe that holds the lock for an
    instant could turn away a run that starts. For a run on another host its word in the lock file has to do.
    """
    path = workspace.info / "lock"
    try:
        inode = path.stat().st_ino
        owner = _OWNER.search(path.read_text("utf-8", "replace"))
    except OSError:
        return False
    if owner is None:
        return False
    pid, host = int(owner[1]), owner[2]
    if host != os.uname().nodename:
        return True
    try:
        held = any(
            fields[1] == "FLOCK" and fields[4] == str(pid) and fields[5].rpartition(":")[2] == str(inode)
            for fields in (line.split() for line in locks.read_text().splitlines())
            if len(fields) >= 6 and fields[1] != "->"
        )
    except OSError:
        held = False
    return held or _holds(pid, path)


def _holds(pid: int, path: Path) -> bool:
    """Whether process `pid` has the lock file open: it opens it only to hold it."""
    try:
        fds = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for fd in fds:
        try:
            if fd.samefile(path):
                return True
        except OSError:
            continue
    return False
