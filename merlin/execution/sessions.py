"""Sessions of processes. Every worker leads one, and its tasks belong to it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from merlin.base.processes import all_sessions
from merlin.execution.waiting import is_readable

KILL_WAIT_S = 10.0


def kill_session(session: int) -> None:
    """Send SIGKILL to every process of a session and wait until all have ended. This process is the last.

    The leader is the first, unless it is this process: a worker must not record its killed tasks as failed.
    """
    deadline = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < deadline:  # again, because a process may have forked in between
        others = [p.pid for p in all_sessions().get(session, []) if p.pid != os.getpid()]
        others.sort(key=lambda pid: pid != session)
        if not others:
            break
        _kill(others, deadline)
    if os.getsid(0) == session:
        os.kill(os.getpid(), signal.SIGKILL)


def _kill(pids: list[int], deadline: float) -> None:
    fds: list[int] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                fds.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGKILL)
        for fd in fds:
            is_readable(fd, deadline - time.monotonic())
    finally:
        for fd in fds:
            os.close(fd)
