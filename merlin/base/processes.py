"""The processes of this machine, as /proc shows them.

psutil is not used: its time of creation moves when the clock is set, while `start_ticks` shows for good whether a
process id still means the same process.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LESS_URGENT = 10  # of 19: a full machine still answers a person within seconds
_CLOCKS_S = 0.05  # between two looks at clocks that count as one


@dataclass(frozen=True, slots=True)
class Process:
    """A live process."""

    pid: int
    parent: int
    group: int
    session: int
    is_stopped: bool  # by a signal or a debugger
    start_ticks: int  # since the boot

    @property
    def started(self) -> float:
        """Epoch seconds, to the clock tick."""
        return _boot_time() + self.start_ticks / os.sysconf("SC_CLK_TCK")


def read_process(pid: int) -> Process | None:
    """What the kernel says about a process; None for one that is gone, or dead and not yet collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    state, (parent, group, session) = fields[0], map(int, fields[1:4])
    if state in (b"Z", b"X"):
        return None
    return Process(pid, parent, group, session, state in (b"T", b"t"), int(fields[19]))


def catches(pid: int, number: int) -> bool:
    """True if a process has a handler for the signal, so that the signal does not simply end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def start_ticks(pid: int) -> int | None:
    """When a live process started; with the boot it identifies the process for good."""
    process = read_process(pid)
    return None if process is None else process.start_ticks


def all_processes() -> Iterator[Process]:
    """The live processes of this machine that we may see."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))):
            yield process


def all_sessions() -> dict[int, list[Process]]:
    """The live processes of this machine that we may see, by session."""
    found: dict[int, list[Process]] = {}
    for process in all_processes():
        found.setdefault(process.session, []).append(process)
    return found


def children(pid: int) -> list[int]:
    """The live children of a process."""
    return [process.pid for process in all_processes() if process.parent == pid]


def group_members(group: int) -> list[int]:
    """The live processes of a process group."""
    return [process.pid for process in all_processes() if process.group == group]


def works_in(pid: int, directory: Path) -> bool:
    """True if a process has its working directory inside `directory`, as far as we may see that."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(directory)
    except OSError:
        return False


def give_way() -> None:
    """Lower the priority of the calling thread, so that other work on this machine goes first.

    The threads and processes that it starts from now on have the lower priority, too. None of them can undo this. On an
    idle machine they are as fast as before.
    """
    with suppress(OSError):
        os.nice(_LESS_URGENT)


def boot_id() -> str:
    """Which boot of this machine this is; "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _boot_time() -> float:
    """The time of the boot, in epoch seconds.

    Both clocks are read again if this process had to wait between them: the wait would falsify the result.
    """
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = time.time()
        if time.clock_gettime(time.CLOCK_BOOTTIME) - before < _CLOCKS_S:
            return now - before


def user_name() -> str:
    """Who runs this process; a container may not know its user's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user{os.getuid()}"
