"""Run every task in a new shell process. This defines what a step means."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from merlin.execution.processes import kill_group, kill_group_at_once
from merlin.execution.shell import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    ShellExit,
    ShellTask,
    machine_error,
    may_leave_processes,
    signalled,
    timeout_cause,
)
from merlin.execution.waiting import Waiter


class FreshShell:
    """Runs ``<shell> <script>`` per task, in its directory and in a process group of its own."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], waiter: Waiter, timeout_s: float | None
    ) -> None:
        self._argv = list(argv)
        self._env = env
        self._waiter = waiter
        self._timeout_s = timeout_s
        self._running: subprocess.Popen[bytes] | None = None

    def run(self, batches: Iterator[list[ShellTask]]) -> Iterator[ShellExit]:
        for batch in batches:
            for task in batch:
                if self._waiter.stopped:
                    return
                yield self._run_one(task)

    def close(self) -> None:
        process, self._running = self._running, None
        if process is not None and process.poll() is None:
            kill_group(process.pid)
            process.wait()

    def _run_one(self, task: ShellTask) -> ShellExit:
        started, clock = time.time(), time.perf_counter()
        try:
            process = self._running = self._start(task)
        except OSError as error:
            return self._not_started(task, error, started)
        cause, is_interrupted = "", False
        if not self._ends(process):
            is_interrupted = self._waiter.stopped
            kill_group(process.pid)
            if not is_interrupted and self._timeout_s is not None:
                cause = timeout_cause(self._timeout_s)
        # until the process is reaped, no other group can get its number
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_code != os.CLD_EXITED or not may_leave_processes(ended.si_status):
            kill_group_at_once(process.pid)
        code = process.wait()
        self._running = None
        seconds = time.perf_counter() - clock
        return ShellExit(task, signalled(code), started, seconds, cause, interrupted=is_interrupted)

    def _start(self, task: ShellTask) -> subprocess.Popen[bytes]:
        stem = f"{task.directory}/{task.stem}"
        with open(f"{stem}.out", "ab", 0) as out, open(f"{stem}.err", "ab", 0) as err:
            return subprocess.Popen(
                [*self._argv, task.script],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=task.directory,
                env={**self._env, **dict(task.variables)},
                process_group=0,
            )

    def _ends(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the shell. Returns False if it must be killed."""
        fd = os.pidfd_open(process.pid)
        try:
            return self._waiter.wait(fd, self._timeout_s)
        finally:
            os.close(fd)

    def _not_started(self, task: ShellTask, error: OSError, started: float) -> ShellExit:
        if (fatal := machine_error(error)) is not None:
            raise fatal from error
        if error.filename != self._argv[0]:
            cause = f"cannot prepare its files: {error.strerror}: {error.filename}"
            return ShellExit(task, NOT_EXECUTABLE, started, 0.0, cause)
        shell = " ".join(self._argv)
        if isinstance(error, FileNotFoundError):
            return ShellExit(task, NOT_FOUND, started, 0.0, f"shell not found: {shell}")
        if isinstance(error, PermissionError):
            return ShellExit(task, NOT_EXECUTABLE, started, 0.0, f"shell cannot be executed: {shell}")
        return ShellExit(task, NOT_EXECUTABLE, started, 0.0, f"cannot start {shell}: {error.strerror}")
