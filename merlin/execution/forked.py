"""Worker processes that begin as copies of the command, which has loaded what they need.

To start Python anew and to import the same modules once more takes a tenth of a second of a core for each worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable

from merlin.execution.waiting import is_readable

_NOT_TO_BE_COPIED = ("h5py", "mpi4py", "torch")  # libraries whose state does not survive in a copy


def can_fork() -> bool:
    """Whether a copy of this process would be sound: one with more threads may hold the locks of those it lacks.

    The threads of NumPy's BLAS do not count: the library ends them before a fork, and starts others when it needs them.
    """
    return threading.active_count() == 1 and not any(name in sys.modules for name in _NOT_TO_BE_COPIED)


class ForkedProcess:
    """A copy of this process that leads a session and runs `main`; its owner uses it as a `subprocess.Popen`."""

    def __init__(self, main: Callable[[], int], *, log: int, keep: int) -> None:
        """Start it with its output in the descriptor `log`, and without this process's others but `keep`.

        Raises OSError if the machine cannot.
        """
        self.returncode: int | None = None
        begun, begin = os.pipe()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_copy(main, log, keep)
        finally:
            os.close(begin)
        os.read(
            begun, 1
        )  # ends when the copy has closed the rest: it leads its session, and can be killed by it
        os.close(begun)

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


def _run_copy(main: Callable[[], int], log: int, keep: int) -> None:
    """What a new process would be is made of the copy, which never returns into the code of the original."""
    code = 1
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
        code = main()
    except BaseException:  # noqa: BLE001 - the outermost frame of a process
        traceback.print_exc()
    finally:
        os._exit(code)
