"""A worker process, as the process that started it uses it."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from merlin.base.files import end_of
from merlin.errors import ExecutionError
from merlin.execution.assignment import Assignment
from merlin.execution.fork_server import ForkServer, ForkServers, ProcessHandle
from merlin.execution.forked import can_fork, start_copy
from merlin.execution.sessions import kill_session
from merlin.execution.shell import TAIL_BYTES, signal_name
from merlin.execution.wire import Crash, Error, Exit, Message, MessageChannel, Progress, Ready, Run, Stop
from merlin.ledger.records import MAX_TAIL_CHARS
from merlin.plan.tasks import Chunk
from merlin.workspace.directory import Workspace

LOGS_DIR = "logs"  # in merlin_info

_REPORT_BYTES = 1 << 16
_MAX_CALLS = 16  # of a crash report
# at which Python writes its stack to the log
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def crash_report(text: str, log: str) -> str:
    """What Python said last in `text` when a signal killed it: the innermost calls of the thread that was hit and the
    error, in the order of a traceback, then the line `log`. It fits into the ledger. "" if Python said nothing."""
    lines = text.splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error: ")][-1:]
    error = [lines[i] for i in begins]
    lines = lines[sum(begins) :]
    hit = max((i for i, line in enumerate(lines) if line.startswith("Current thread ")), default=len(lines))
    calls = list(itertools.takewhile(str.strip, lines[hit + 1 :]))[:_MAX_CALLS]
    while calls:
        report = "\n".join(["Calls (the last one last):", *reversed(calls), *error, log])
        if len(report) <= MAX_TAIL_CHARS:
            return report
        calls.pop()  # the outermost
    return "\n".join([*error, log]) if error else ""


class WorkerProcess:
    """One worker: its process, the socket to it, and the chunk it runs."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        *,
        session: str,
        num_threads: int,
        is_fenced: bool = False,
        may_fork: bool = False,
        servers: ForkServers | None = None,
        ends: float | None = None,
    ) -> None:
        """Start the process. Raises ExecutionError if the machine cannot start it.

        With `is_fenced` it asks before each commit. It is a copy of one of the `servers`, if there is one for its
        plan; else, with `may_fork` and if no function of the user runs in it, of this process if that is safe;
        `num_threads` has no effect then. It starts no task that would not end before `ends` (epoch seconds).
        """
        self.name = name
        self.is_ready = False  # it has sent "ready"
        self.is_leaving = False  # it was asked to exit, or killed
        self.chunk: Chunk | None = None
        self.ended = self.failed = 0  # tasks of the chunk, by its last report
        self._gpus: tuple[str, ...] = ()  # that functions in this process have used
        self.error = self.crash = ""  # as it has reported them: no task is to blame; or why it dies
        self.log = workspace.info / LOGS_DIR / f"{name}.err"
        self._log_name = workspace.below_root(f"{workspace.info.name}/{LOGS_DIR}/{self.log.name}")
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise ExecutionError(f"cannot start a worker process: {error}") from error
        argv = _arguments(workspace, name, session, num_threads, is_fenced=is_fenced, ends=ends)
        server = None if servers is None else servers.of(workspace.plan)
        may_fork = may_fork and not workspace.plan.has_functions
        try:
            self.log.parent.mkdir(exist_ok=True)
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self.process = _start(argv, theirs.fileno(), log.fileno(), may_fork=may_fork, server=server)
        except OSError as error:
            ours.close()
            raise ExecutionError(f"cannot start a worker process: {error}") from error
        finally:
            theirs.close()
        self.channel = MessageChannel(ours)
        self.pidfd = self._watched()

    def _watched(self) -> int:
        try:
            return os.pidfd_open(self.process.pid)
        except OSError as error:  # no descriptor is left
            self.channel.close()
            self.process.kill()
            self.process.wait()
            raise ExecutionError(f"cannot watch a worker process: {error}") from error

    def run(self, chunk: Chunk, assignment: Assignment | None = None) -> None:
        self.chunk, self.ended, self.failed = chunk, 0, 0
        if assignment is not None and assignment.keeps_gpus:
            self._gpus = assignment.gpus
        self.channel.send(Run(chunk, assignment))

    def suits(self, assignment: Assignment | None) -> bool:
        """Return whether the process may run a chunk with this assignment: functions never change their GPUs."""
        if assignment is None or not assignment.keeps_gpus:
            return True
        return self._gpus in ((), assignment.gpus)

    def note(self, message: Message) -> None:
        """Take in what the process says about itself."""
        match message:
            case Ready():
                self.is_ready = True
            case Progress(ended, failed):
                self.ended, self.failed = ended, failed
            case Error(why):
                self.error = why
            case Crash(why):
                self.crash = why

    def wait(self, wake_fd: int, timeout_s: float | None) -> bool:
        """Wait for a message, the end of the process, or for `wake_fd`. Returns True if the process has ended."""
        poll = select.poll()
        for fd in (wake_fd, self.pidfd):
            poll.register(fd, select.POLLIN)
        if not self.channel.is_closed:
            poll.register(self.channel.fileno(), select.POLLIN)
        ready = poll.poll(None if timeout_s is None else 1000 * max(0.0, timeout_s))
        return any(fd == self.pidfd for fd, _ in ready)

    def leave(self, *, now: bool) -> None:
        """Ask it to exit; with `now` it interrupts its chunk."""
        self.is_leaving = True
        self.channel.send(Stop() if now else Exit())

    def kill(self) -> None:
        """Kill the process and everything in its session."""
        self.is_leaving = True
        kill_session(self.process.pid)

    def describe_exit(self) -> str:
        """How the process ended: "SIGSEGV", "exit code 1", or the error that it reported. Waits for its end."""
        code = self.process.wait()
        return self.crash or (signal_name(-code) if code < 0 else f"exit code {code}")

    def log_tail(self) -> str:
        """The end of its output to stderr."""
        return end_of(self.log, TAIL_BYTES, start=self._log_start).strip()

    def crash_report(self) -> str:
        """What Python said in its log when a fault killed it; "" if it said nothing, or if it ended otherwise: what a
        process that it has started said is in the log, too."""
        if -self.process.wait() not in _FAULTS:
            return ""
        return crash_report(end_of(self.log, _REPORT_BYTES, start=self._log_start), f"log: {self._log_name}")

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


def _arguments(
    workspace: Workspace, name: str, session: str, num_threads: int, *, is_fenced: bool, ends: float | None
) -> list[str]:
    argv = ["--workspace", str(workspace.path), "--plan", workspace.digest]
    argv += ["--name", name, "--session", session, "--threads", str(num_threads)]
    argv += ["--fenced"] if is_fenced else []
    return argv + ([] if ends is None else ["--ends", repr(ends)])


def _start(argv: list[str], fd: int, log: int, *, may_fork: bool, server: ForkServer | None) -> ProcessHandle:
    """Start the process as a copy or as a new Python. Raises OSError."""
    if server is not None and (served := server.start(argv, fd, log)) is not None:
        return served
    argv += ["--fd", str(fd)]
    if may_fork and can_fork():
        from merlin.execution import runner, worker

        assert runner  # loaded once, before the copies are made
        with suppress(OSError):  # a new Python may need less memory than a copy
            return start_copy(lambda: worker.main(argv), log=log, keep=fd)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "merlin.execution.worker", *argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[fd],
        start_new_session=True,
    )
