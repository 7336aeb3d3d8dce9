"""The types and rules that both ways of running a shell script share."""

from __future__ import annotations

import errno
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from merlin.base.files import written_name
from merlin.errors import ExecutionError
from merlin.plan.tasks import ReturnCode

TAIL_BYTES = 2048  # of a log that are shown and recorded
NOT_EXECUTABLE = 126
NOT_FOUND = 127

# errors of the machine and not of a task, with advice
_MACHINE_ERRORS = {
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.EDQUOT: ("the disk quota is used up", "make room"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.EMFILE: ("too many open files", "allow more (ulimit -n 65536), or use fewer workers"),
    errno.ENFILE: (
        "too many open files on this machine",
        "end other programs, or let its owner raise fs.file-max",
    ),
    errno.EAGAIN: ("no more processes can be started", "allow more (ulimit -u), or use fewer workers"),
    errno.ENOMEM: ("out of memory", "use fewer workers, or a machine with more memory"),
}
# signals N that a shell reports as 128 + N when the task or its last command died of them
_DEADLY = frozenset(
    int(s)
    for s in (
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT,
        signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE,
        signal.SIGALRM, signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS,
    )
)  # fmt: skip


class ShellTask(Struct, frozen=True):
    """A script on disk, ready to run in its directory."""

    task: int
    directory: str  # absolute
    stem: str  # of the files: <stem>.sh, .out, .err
    variables: tuple[tuple[str, str], ...] = ()  # of the environment of this task alone: name, value
    err_at: int = 0  # bytes that earlier tries have left in its .err

    @property
    def script(self) -> str:
        return f"{self.directory}/{self.stem}.sh"

    @property
    def err(self) -> str:
        return f"{self.directory}/{self.stem}.err"


class ShellExit(Struct, frozen=True):
    """How a script ended."""

    task: ShellTask
    code: int  # exit code; -N: it or its last command was killed by signal N
    started: float  # epoch seconds
    seconds: float
    cause: str = ""  # why it failed, if the exit code does not show it: a timeout, no such shell
    interrupted: bool = False  # killed because work must stop


def may_leave_processes(code: int) -> bool:
    """Return whether the background processes of a try may continue. They may if the try ended ok."""
    return code in (ReturnCode.SUCCESS, ReturnCode.DRY_SUCCESS, ReturnCode.STOP_WORKERS)


class Shell(Protocol):
    """Runs scripts one after another. When its waiter says to stop, it stops and yields nothing for the rest."""

    def run(self, batches: Iterator[list[ShellTask]]) -> Iterator[ShellExit]: ...

    def close(self) -> None:
        """Kill what still runs."""


def shell_argv(shell: str) -> list[str]:
    """The words before the script's path: "/usr/bin/env python3" -> ["/usr/bin/env", "python3"]."""
    try:
        return shlex.split(shell) or ["/bin/bash"]
    except ValueError:
        return shell.split()


def task_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of every task, without the variables that describe another working directory."""
    left_out = ("PWD", "OLDPWD", "_")
    return {name: value for name, value in base.items() if name not in left_out} | dict(extra)


def signalled(code: int) -> int:
    """-N where `code` is the shell's 128 + N for a deadly signal, else the code itself.

    If a shell starts the script, it cannot distinguish a killed script from one whose last command was killed. So both
    are recorded in the same way.
    """
    return 128 - code if code - 128 in _DEADLY else code


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def timeout_cause(timeout_s: float) -> str:
    return f"timeout after {timeout_s:g} s"


def machine_error(error: OSError) -> ExecutionError | None:
    """The error to raise if `error` is a fault of the machine; None if it concerns one task."""
    if (error.errno or 0) not in _MACHINE_ERRORS:
        return None
    what, advice = _MACHINE_ERRORS[error.errno or 0]
    place = f" ({written_name(error.filename)})" if error.filename else ""
    return ExecutionError(f"{what}{place}; nothing finished is lost: {advice}, then run merlin restart")


def full_disk(path: str) -> ExecutionError | None:
    """The error to raise if the file system of `path` has no free block for normal users; else None."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    is_full = stats.f_blocks > 0 and stats.f_bavail == 0
    return machine_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)) if is_full else None
