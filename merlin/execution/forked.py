"""Worker processes that begin as copies of a process that has already loaded the modules that they need.

A new Python process that imports the same modules costs a tenth of a second of a core per worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn, Self

from merlin.execution.waiting import is_readable

# libraries whose state does not survive in a copy
_NOT_TO_BE_COPIED = ("blosc2", "h5py", "mpi4py", "pyarrow", "torch")


def can_fork() -> bool:
    """Return whether a copy of this process is safe. A copy of a process with more threads may find locks held forever.

    Where SIGCHLD is ignored, the system keeps no exit code of a copy, and nobody could wait for it.
    The threads of NumPy's BLAS do not matter: the library ends them before a fork, and starts others when needed.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        return False
    return threading.active_count() == 1 and not any(name in sys.modules for name in _NOT_TO_BE_COPIED)


def start_copy(main: Callable[[], int], *, log: int, keep: int) -> ForkedProcess:
    """Start a copy of this process that runs `main`; see `ForkedProcess.fork`."""
    process = ForkedProcess.fork(log=log, keep=keep)
    if process is None:
        _run(main)
    return process


class ForkedProcess:
    """A copy of this process that leads a session. It can be used as a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    @classmethod
    def fork(cls, *, log: int, keep: int) -> Self | None:
        """Make a copy with its output in the descriptor `log`. Of all other descriptors only `keep` stays open.

        Returns None in the copy, which has the session, signals and descriptors of a new process. Raises OSError if
        the machine cannot start it.
        """
        begun, begin = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(begun)
            os.close(begin)
            raise
        if pid == 0:
            _become_new(log, keep)  # closes the pipe, too
            return None
        os.close(begin)
        # ends when the copy has closed the rest: now it leads its session, and the session can be killed
        os.read(begun, 1)
        os.close(begun)
        return cls(pid)

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if timeout is not None and self.returncode is None:
            fd = os.pidfd_open(self.pid)
            try:
                if not is_readable(fd, timeout):
                    raise subprocess.TimeoutExpired(["worker"], timeout)
            finally:
                os.close(fd)
        code = self._reap(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become_new(log: int, keep: int) -> None:
    """Bring the copy into the state of a new process."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        last = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
        os.closerange(3, keep)
        os.closerange(keep + 1, last + 1)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    except BaseException:  # noqa: BLE001 - nobody above may run in the copy
        traceback.print_exc()
        os._exit(1)


def _run(main: Callable[[], int]) -> NoReturn:
    """Run `main` as the whole program of a copy."""
    code = 1
    try:
        code = main()
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(code)
