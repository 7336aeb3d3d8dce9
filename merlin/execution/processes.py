"""Process groups. Every task leads one, and the whole group ends with its task."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from merlin.base.processes import group_members
from merlin.execution.waiting import is_readable

_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_KILL_WAIT_S = 5.0


def kill_group(group: int) -> None:
    """Send SIGTERM to a process group, then SIGKILL after the grace period; returns when all have ended.

    Processes of other users, as of `sudo`, are left alone.
    """
    if group <= 1:
        raise ValueError(f"{group} is not the process group of a task")
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGCONT)  # a stopped process does not see SIGTERM
    if not _wait_until_gone(group, _GRACE_S):
        kill_group_at_once(group)
        _wait_until_gone(group, _KILL_WAIT_S)


def kill_group_at_once(group: int) -> None:
    """Send SIGKILL to the remaining processes of a group, if there are any."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _wait_until_gone(group: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    # again, because a process may have forked in between
    while (member := next(filter(_may_signal, group_members(group)), None)) is not None:
        if not _wait_for_exit(member, deadline - time.monotonic()):
            return False
    return True


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _wait_for_exit(pid: int, wait_s: float) -> bool:
    if wait_s <= 0:
        return False
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return is_readable(fd, wait_s)
    finally:
        os.close(fd)
