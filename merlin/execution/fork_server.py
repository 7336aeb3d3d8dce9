"""A small process that makes worker processes: each is a copy of it, so what they need is loaded once per machine.

The process that starts it may have threads, and then cannot be copied itself. It asks for one process after another
over a socket. When that socket closes, the server ends. The processes that it has made know by sockets of their own
when to end.

Processes that run functions of users are copies of a new Python that has loaded NumPy and our code alone: they begin
as `python -m merlin.execution.worker` would, and end as any Python does.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from merlin.execution.forked import ForkedProcess, can_fork, start_copy
from merlin.execution.waiting import is_readable
from merlin.plan.plan import Plan

MAX_BYTES = 65_536  # of a message
LOADING_S = 5.0  # until then, whoever wants a process waits for a server to load; later it takes a new Python
ANSWER_S = 10.0  # to make a copy, or to tell an exit code; a server that takes longer counts as dead
READY, NOT_READY = b"ready", b"not ready"
# a terminal or a scheduler sends them to all processes at once; what follows is decided by the process that asks
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class ForkServer:
    """The server, as the process that started it uses it. Threads may share it."""

    def __init__(self, start: Callable[[int], ProcessHandle]) -> None:
        """Start the process of the server, which gets the descriptor of its socket. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._lock = ours, threading.Lock()
        self._began = time.monotonic()
        self.is_dead = self.is_ready = False
        ours.settimeout(ANSWER_S)
        with theirs:
            self._process = start(theirs.fileno())

    @classmethod
    def copy(cls, num_threads: int) -> Self:
        """A copy of this process, for workers without functions of users; loads here what they need.

        `num_threads` is for the numerical libraries in each worker process. Raises OSError if the machine cannot
        start it.
        """
        _load(num_threads)
        return cls(lambda fd: start_copy(lambda: _serve_on(fd, READY), log=2, keep=fd))

    @classmethod
    def new(cls, num_threads: int) -> Self:
        """A new Python, for workers that run functions of users. Raises OSError if the machine cannot start it."""
        command = [sys.executable, "-P", "-m", "merlin.execution.fork_server"]

        def start(fd: int) -> ProcessHandle:
            return subprocess.Popen(
                [*command, str(fd), str(num_threads)],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
                start_new_session=True,
            )

        return cls(start)

    def can_serve(self) -> bool:
        """Whether it has loaded what processes need; waits for that for `LOADING_S` after its start, and no longer."""
        with self._lock:
            if not self.is_ready and not self.is_dead:
                left_s = max(0.0, self._began + LOADING_S - time.monotonic())
                if is_readable(self._socket.fileno(), left_s):
                    with suppress(OSError):
                        self.is_ready = self._socket.recv(MAX_BYTES) == READY
                    if not self.is_ready:
                        self._end()
            return self.is_ready and not self.is_dead

    def start(self, argv: Sequence[str], fd: int, log: int) -> ServedProcess | None:
        """Start a worker process with the socket `fd`, and its output in `log`.

        None if the server cannot serve, or the machine cannot make a copy. Raises OSError if it is not known whether
        the process has started, so that nobody starts a second one with this socket.
        """
        if not self.can_serve():
            return None
        answer = self._ask({"argv": list(argv)}, [fd, log])
        pid = None if answer is None else answer.get("pid")
        return None if pid is None else ServedProcess(self, pid)

    def exit_code(self, pid: int) -> int:
        """The exit code of a process that has ended, once. Raises OSError if the server has died."""
        answer = self._ask({"ended": pid}, [])
        if answer is None:
            raise ConnectionError("the process that made this one has ended")
        return int(answer["code"])

    def _ask(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        """The answer; None if the server did not get the question. Raises OSError if it has, and does not answer."""
        with self._lock:
            if self.is_dead:
                return None
            try:
                socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
            except OSError:
                self._end()
                return None
            try:
                if answer := self._socket.recv(MAX_BYTES):
                    return dict(json.loads(answer))
                raise ConnectionError("it has closed its socket")
            except OSError as error:
                self._end()
                raise OSError(f"the process that makes worker processes has ended: {error}") from error

    def _end(self) -> None:
        """Make sure that it does nothing any more; answers that come too late would be taken for later ones."""
        self.is_dead = True
        self._socket.close()
        self._process.kill()

    def close(self) -> None:
        """End the server. The processes that it has made go on."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


class ForkServers:
    """The servers of a pool of worker processes. Threads may share it."""

    def __init__(self, num_threads: int, *, may_copy: bool = False) -> None:
        """With `may_copy`, workers without functions are copies of this process, where that is safe."""
        self._num_threads, self._lock = num_threads, threading.Lock()
        self._copy: ForkServer | None = None
        self._new: ForkServer | None = None
        self._replaced: list[ForkServer] = []
        self._packages = _times_of_packages()
        if may_copy and can_fork():
            with suppress(OSError):
                self._copy = ForkServer.copy(num_threads)

    def of(self, plan: Plan) -> ForkServer | None:
        """The server for workers of this plan, which may still load. None if there is none.

        One that died is replaced, and so is one that has loaded packages which are not the newest any more. One that
        could not load is not: workers that are new Pythons tell what is wrong.
        """
        if not plan.has_functions:
            return self._copy
        with self._lock:
            packages = _times_of_packages()
            old = self._new
            if old is None or packages != self._packages or (old.is_dead and old.is_ready):
                if old is not None:
                    self._replaced.append(old)  # it is asked for exit codes
                self._new, self._packages = None, packages
                with suppress(OSError):
                    self._new = ForkServer.new(self._num_threads)
            return self._new

    def close(self) -> None:
        """End the servers. The processes that they have made go on."""
        for server in (self._copy, self._new, *self._replaced):
            if server is not None:
                server.close()


def _times_of_packages() -> dict[str, int]:
    """When something was last installed in each place that packages are installed in."""
    times = {}
    for place in sys.path:
        if place.endswith("-packages"):
            with suppress(OSError):
                times[place] = os.stat(place).st_mtime_ns  # noqa: PTH116 - asked for each process
    return times


class ServedProcess:
    """A process that a server has made. It can be used as a `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        """Raises OSError if no descriptor is left."""
        self._server, self._lock = server, threading.Lock()
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)  # the server keeps its number until we have asked for the exit code
        weakref.finalize(self, os.close, self._pidfd)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and is_readable(self._pidfd, 0):
                self._note_end()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            is_readable(self._pidfd, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(["worker"], timeout or 0.0)
        return code

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _note_end(self) -> None:
        try:
            self.returncode = self._server.exit_code(self.pid)
        except OSError:
            # what ended the server, such as a lack of memory, has ended it, too
            self.returncode = -signal.SIGKILL


ProcessHandle = subprocess.Popen[bytes] | ForkedProcess | ServedProcess


def _load(num_threads: int) -> None:
    """Load what worker processes need."""
    from merlin.execution import runner, worker

    worker.load_numpy(num_threads)
    assert runner


def _serve_on(fd: int, greeting: bytes) -> int:
    """Serve, then run what a copied process has to run; return the exit code."""
    gc.freeze()  # looking for garbage in this memory would copy it
    run = _serve(fd, greeting)
    return 0 if run is None else run()


def _serve(fd: int, greeting: bytes) -> Callable[[], int] | None:
    """Start processes until the other side closes the socket, then return None.

    In each process that was made it returns what that process has to run.
    """
    for number in _NOT_OURS:
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: the copies must not inherit it
    made: dict[int, ForkedProcess] = {}
    asker = socket.socket(fileno=fd)
    with suppress(BrokenPipeError):
        asker.send(greeting)
    while True:
        try:
            text, fds, _, _ = socket.recv_fds(asker, MAX_BYTES, 2)
        except ConnectionResetError:  # the other side has closed it, and left the greeting unread
            return None
        if not text:
            return None
        message, answer = json.loads(text), dict[str, int]()
        if "argv" in message:
            channel, log = fds
            with suppress(OSError):
                process = ForkedProcess.fork(log=log, keep=channel)
                if process is None:
                    asker.detach()  # it was closed
                    return partial(_work, [*message["argv"], "--fd", str(channel)])
                made[process.pid] = process
                answer = {"pid": process.pid}
        else:
            answer = {"code": made.pop(message["ended"]).wait()}
        for received in fds:
            os.close(received)
        with suppress(BrokenPipeError):
            asker.send(json.dumps(answer).encode())


def _work(argv: list[str]) -> int:
    """Run a worker in this copy; return its exit code."""
    from merlin.execution import worker

    if "numpy.random" in sys.modules:  # else it is loaded when it is used, and is new then
        sys.modules["numpy.random"].seed()  # or functions would draw the same numbers in all copies
    return worker.main(argv)


def main(argv: Sequence[str]) -> int:
    """Run the server, which `python -m merlin.execution.fork_server SOCKET THREADS` starts."""
    fd, num_threads = map(int, argv)
    os.set_inheritable(fd, False)
    # a program that ignores it hands that on, and exit codes are lost
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _load(num_threads)
    # what the site loads at start-up may have threads
    return _serve_on(fd, READY if can_fork() else NOT_READY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
