"""A small process that makes worker processes: each is a copy of it, so what they need is loaded once per worker.

The process that starts it may have threads later, and then cannot be copied itself. It asks for one process after
another over a socket. When that socket closes, the server ends. The processes that it has made know by sockets of
their own when to end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from merlin.execution.forked import ForkedProcess, can_fork
from merlin.execution.waiting import is_readable

MAX_BYTES = 65_536  # of a message
# a terminal or a scheduler sends them to all processes at once; what follows is decided by the process that asks
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class ForkServer:
    """The server, as the process that started it uses it. Threads may share it."""

    def __init__(self, num_threads: int) -> None:
        """Load what worker processes need, and start the server. Raises OSError if the machine cannot start it.

        `num_threads` is for the numerical libraries in each worker process.
        """
        from merlin.execution import runner, worker

        worker.load_numpy(num_threads)
        assert runner
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._lock, self._is_dead = ours, threading.Lock(), False
        with theirs:
            self._process = ForkedProcess(lambda: _serve(theirs.fileno()), log=2, keep=theirs.fileno())

    def start(self, argv: Sequence[str], fd: int, log: int) -> ServedProcess | None:
        """Start a worker process with the socket `fd`, and its output in `log`.

        None if the server has died before, or the machine cannot make a copy. Raises OSError if it is not known whether
        the process has started, so that nobody starts a second one with this socket.
        """
        if self._is_dead:
            return None
        pid = self._ask({"argv": list(argv)}, [fd, log]).get("pid")
        return None if pid is None else ServedProcess(self, pid)

    def exit_code(self, pid: int) -> int:
        """The exit code of a process that has ended, once. Raises OSError if the server has died."""
        return int(self._ask({"ended": pid}, [])["code"])

    def _ask(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
                if answer := self._socket.recv(MAX_BYTES):
                    return dict(json.loads(answer))
                raise ConnectionError("the server of worker processes has ended")
            except OSError:
                self._is_dead = True
                raise

    def close(self) -> None:
        """End the server. The processes that it has made go on."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


def fork_server(num_threads: int) -> ForkServer | None:
    """A server, or None where copies of this process are not safe or the machine cannot start one."""
    if not can_fork():
        return None
    try:
        return ForkServer(num_threads)
    except OSError:
        return None


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
            self.returncode = (
                -signal.SIGKILL
            )  # what ended the server, such as a lack of memory, has ended it, too


def _serve(fd: int) -> int:
    """Start processes until the other side closes the socket. Returns the exit code."""
    for number in _NOT_OURS:
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: the copies must not inherit it
    made: dict[int, ForkedProcess] = {}
    with socket.socket(fileno=fd) as asker:
        while True:
            text, fds, _, _ = socket.recv_fds(asker, MAX_BYTES, 2)
            if not text:
                return 0
            message = json.loads(text)
            try:
                answer = (
                    _start(message["argv"], fds, made)
                    if "argv" in message
                    else {"code": made.pop(message["ended"]).wait()}
                )
            finally:
                for received in fds:
                    os.close(received)
            with suppress(BrokenPipeError):
                asker.send(json.dumps(answer).encode())


def _start(argv: list[str], fds: list[int], made: dict[int, ForkedProcess]) -> dict[str, int]:
    from merlin.execution import worker

    channel, log = fds
    argv = [*argv, "--fd", str(channel)]
    try:
        process = ForkedProcess(lambda: worker.main(argv), log=log, keep=channel)
    except OSError:
        return {}
    made[process.pid] = process
    return {"pid": process.pid}
