"""Sessions of processes: every worker leads one, and its tasks cannot leave it unnoticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from merlin.execution.waiting import is_readable

KILL_WAIT_S = 10.0
_CLOCKS_S = 0.05  # between two looks at clocks that count as one


@dataclass(frozen=True, slots=True)
class Process:
    """One entry of /proc."""

    pid: int
    parent: int
    group: int
    session: int
    is_stopped: bool  # by a signal or a debugger
    started: float  # epoch seconds, to the clock tick


def all_processes() -> Iterator[Process]:
    """The live processes of this machine that we may see."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))):
            yield process


def all_sessions() -> dict[int, list[Process]]:
    """The same, by session."""
    found: dict[int, list[Process]] = {}
    for process in all_processes():
        found.setdefault(process.session, []).append(process)
    return found


def read_process(pid: int) -> Process | None:
    """What /proc says about a process; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    state, (parent, group, session) = fields[0], map(int, fields[1:4])
    if state in (b"Z", b"X"):
        return None
    started = _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return Process(pid, parent, group, session, state in (b"T", b"t"), started)


def _boot_time() -> float:
    """Epoch seconds. Looked at again if this process was kept waiting between the clocks, which would count as age."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = time.time()
        if time.clock_gettime(time.CLOCK_BOOTTIME) - before < _CLOCKS_S:
            return now - before


def kill_session(session: int) -> None:
    """SIGKILL every process of a session and wait until they are gone; this process goes last.

    The leader goes first, if it is another: a worker shall not take the end of its tasks for their own fault.
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
