"""Sessions of processes. Every worker leads one, and its tasks belong to it."""

from __future__ import annotations

import os
import signal
import time

from merlin.base.processes import all_sessions
from merlin.execution.waiting import is_readable

KILL_WAIT_S = 10.0


def kill_session(session: int) -> None:
    """Send SIGKILL to every process of a session and wait until all have ended. This process is the last.

    The leader is the first, unless it is this process: a worker must not record its killed tasks as failed. Processes
    of other users, as of `sudo`, are left alone.
    """
    deadline, left = time.monotonic() + KILL_WAIT_S, {os.getpid()}
    while time.monotonic() < deadline:  # again, because a process may have forked in between
        others = [p.pid for p in all_sessions().get(session, []) if p.pid not in left]
        others.sort(key=lambda pid: pid != session)
        if not others:
            break
        left |= _kill(others, deadline)
    if os.getsid(0) == session:
        os.kill(os.getpid(), signal.SIGKILL)


def _kill(pids: list[int], deadline: float) -> set[int]:
    """Kill the processes and wait for their ends; returns those that we may not kill."""
    fds: dict[int, int] = {}
    refused: set[int] = set()
    try:
        for pid in pids:
            try:
                fds[pid] = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                refused.add(pid)
        for pid in fds.keys() - refused:
            is_readable(fds[pid], deadline - time.monotonic())
    finally:
        for fd in fds.values():
            os.close(fd)
    return refused
