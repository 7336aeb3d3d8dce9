"""One bash for many tasks. Each runs in a forked subshell, which saves the start of a shell per task.

The warm shell gets a batch of tasks as its program. With job control on (``set -m``) every subshell leads
its own process group. After each task the shell writes the exit code and the time to its standard output, a
pipe. If the worker was killed, nobody reads the pipe, and that write ends the shell. `warm_rules` decides which
scripts may run this way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from shlex import quote

from msgspec import Struct, field

from merlin.base.processes import children
from merlin.execution.processes import kill_group, kill_group_at_once
from merlin.execution.shell import (
    ShellExit,
    ShellTask,
    machine_error,
    may_leave_processes,
    signalled,
    timeout_cause,
)
from merlin.execution.waiting import Waiter, is_readable
from merlin.plan.tasks import ReturnCode

_PROGRAM_BYTES = 100_000  # the kernel takes at most 128 KiB per argument
_STOP_CODE = int(ReturnCode.HARD_FAIL)
_SUSPENDING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SUSPENDED_PATTERN = "|".join(str(128 + number) for number in _SUSPENDING)
_ODD_PATTERN = f"{_STOP_CODE}|{_SUSPENDED_PATTERN}"
# Once per shell. `cd` makes the value of PWD that of OLDPWD: without one, OLDPWD stays exported and unset, as in a
# fresh shell. After an exit code that stops the study no further task begins, because nobody would record it. With
# job control a task that a batch system suspends looks ended, with the signal's number in its exit code: the shell
# waits for it. If it has continued and ended in the meantime, bash may not know its exit code any more; then the shell
# ends with the code of the suspension.
_HEAD = (
    "set -m;unset PWD OLDPWD;export PWD OLDPWD\n"
    f"merlin:odd(){{ case $1 in {_SUSPENDED_PATTERN})wait -f %%;set -- $1 $?;"
    f"case $2 in 127|{_SUSPENDED_PATTERN})exit $1;esac;shift;esac;"
    f"echo $1 $EPOCHREALTIME;case $1 in {_STOP_CODE})exit 0;esac; }}"
)
_WAIT_FOR_MORE_S = 0.02  # the longest wait for more short tasks to end, so that their exits are read together
_FAST_TASK_S = 0.005
_REPORT_TRIES, _REPORT_WAIT_S = 20, 0.05


class _Driver(Struct):
    """A running warm shell and its tasks."""

    process: subprocess.Popen[bytes]
    status_fd: int
    waiting: deque[ShellTask]  # the first one runs, or starts next
    since: float  # epoch seconds: when the first one began
    partial: bytes = b""
    group: int | None = None  # the process group of the first one, once it runs
    closed: bool = False
    has_quit: bool = False  # it exited by itself, after a task that stops the study
    timed_out: set[int] = field(default_factory=set)


class WarmShell:
    """Runs scripts in subshells of one bash per batch."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        waiter: Waiter,
        timeout_s: float | None,
        home: str,
        prepare_retry: Callable[[ShellTask], None],
    ) -> None:
        """`prepare_retry` is called before a task runs for a second time."""
        self._argv = list(argv)
        self._env = env
        self._waiter = waiter
        self._timeout_s = timeout_s
        self._prepare_retry = prepare_retry
        self._home = home  # the shell's own directory, by which the search for orphans finds it
        self._own_session = _has_terminal()
        self._driver: _Driver | None = None
        self._moved_to_new_shell: set[int] = set()  # tasks whose shell died once

    def run(self, batches: Iterator[list[ShellTask]]) -> Iterator[ShellExit]:
        """Run the batches. The next batch is prepared while the shell runs the current one."""
        rest, upcoming = deque(next(batches, [])), list[ShellTask]()
        while rest and not self._waiter.stopped:
            driver = self._driver = self._start(rest)
            upcoming = upcoming or next(batches, [])
            yield from self._collect(driver)
            self.close()
            rest.extendleft(reversed(driver.waiting))
            if not rest:
                rest, upcoming = deque(upcoming), []

    def close(self) -> None:
        """Kill the shell and its running task."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        if driver.waiting and driver.process.poll() is None:
            _kill(driver, _suspend(driver))
        driver.process.wait()
        os.close(driver.status_fd)

    def _start(self, rest: deque[ShellTask]) -> _Driver:
        """Start a shell on as many of the tasks as its program can hold."""
        program, taken = _program(rest)
        receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        began = time.time()  # before the start: the shell may run many tasks before this process continues
        try:
            os.set_blocking(sender, True)
            process = subprocess.Popen(
                [*self._argv, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=sender,
                stderr=subprocess.DEVNULL,
                cwd=self._home,
                env=self._env,
                process_group=None if self._own_session else 0,
                start_new_session=self._own_session,
            )
        except OSError as error:
            os.close(receiver)
            raise machine_error(error) or error from error
        finally:
            os.close(sender)
        return _Driver(process, receiver, taken, began)

    def _collect(self, driver: _Driver) -> Iterator[ShellExit]:
        """Yield the exits that the shell reports, until all tasks or the shell have ended, or work must stop."""
        while driver.waiting:
            if not self._waiter.wait(driver.status_fd, self._time_left(driver)):
                yield from self._handle_timeout_or_stop(driver)
                if self._waiter.stopped:
                    return
                continue
            ended = list(self._read(driver))
            yield from ended
            if driver.closed:
                if driver.waiting and not driver.has_quit:
                    yield from self._shell_died(driver)
                return
            self._wait_for_more(driver, ended)

    def _wait_for_more(self, driver: _Driver, ended: list[ShellExit]) -> None:
        """Wait until several short tasks have ended: one wake-up per task could cost more than the task."""
        if ended and len(driver.waiting) > 1:
            each = sum(e.seconds for e in ended) / len(ended)
            if each < _FAST_TASK_S:
                self._waiter.wait(driver.status_fd, min(_WAIT_FOR_MORE_S, each * len(driver.waiting)), 0)

    def _time_left(self, driver: _Driver) -> float | None:
        if self._timeout_s is None:
            return None
        return max(0.0, driver.since + self._timeout_s - time.time())

    def _read(self, driver: _Driver) -> Iterator[ShellExit]:
        """Yield the exits that the shell has reported since the last call; does not block."""
        try:
            data = os.read(driver.status_fd, 1 << 16)
        except BlockingIOError:
            return
        driver.closed = not data
        *lines, driver.partial = (driver.partial + data).split(b"\n")
        for line in lines:
            first, *rest = line.split()
            if not rest:
                driver.group = int(first)
                continue
            code = int(first)
            if driver.group is not None and not may_leave_processes(code):
                kill_group_at_once(driver.group)
            driver.has_quit = code == _STOP_CODE
            yield self._exit(driver, signalled(code), float(rest[0].replace(b",", b".")))

    def _exit(self, driver: _Driver, code: int, now: float) -> ShellExit:
        task = driver.waiting.popleft()
        cause = ""
        if task.task in driver.timed_out and self._timeout_s is not None:
            cause = timeout_cause(self._timeout_s)
        ended = ShellExit(task, code, driver.since, max(0.0, now - driver.since), cause)
        driver.since, driver.group = now, None
        return ended

    def _handle_timeout_or_stop(self, driver: _Driver) -> Iterator[ShellExit]:
        """Kill the running task, because its time is over or work must stop."""
        running = _suspend(driver)
        # it may have just ended; no other task begins while the shell is suspended
        yield from self._read(driver)
        if self._waiter.stopped:
            yield from self._interrupt(driver, running)
            return
        if running and driver.waiting and self._time_left(driver) == 0.0:
            driver.timed_out.add(driver.waiting[0].task)
            for group in running:
                kill_group(group)
        _resume(driver)

    def _interrupt(self, driver: _Driver, running: list[int]) -> Iterator[ShellExit]:
        """Kill the shell and its running task, but not between a task's end and its report."""
        tries = _REPORT_TRIES
        while not running and driver.waiting and not driver.closed and tries:
            tries -= 1
            _resume(driver)
            is_readable(driver.status_fd, _REPORT_WAIT_S)
            running = _suspend(driver)
            yield from self._read(driver)
        _kill(driver, running)
        if running and driver.waiting:
            seconds = time.time() - driver.since
            yield ShellExit(driver.waiting[0], -signal.SIGTERM, driver.since, seconds, interrupted=True)

    def _shell_died(self, driver: _Driver) -> Iterator[ShellExit]:
        """Handle a shell that ended without a report on its running task.

        The task may have killed the shell, somebody else may have killed it, or the task was suspended and its exit
        code is unknown. The rest of the task is killed, and the task gets another shell, once. A task that ends two
        shells has failed. A task that exits with a code that looks like a suspension is treated as one.
        """
        code = driver.process.wait()
        if driver.group is not None:
            kill_group(driver.group)
        task = driver.waiting[0]
        if task.task not in self._moved_to_new_shell:
            self._moved_to_new_shell.add(task.task)
            self._prepare_retry(task)
            return
        yield self._exit(driver, signalled(code) if code else 1, time.time())


def _suspend(driver: _Driver) -> list[int]:
    """Suspend the shell, so that no further task begins. Returns the process groups of the running task."""
    with suppress(ProcessLookupError):
        os.kill(driver.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, driver.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return children(driver.process.pid)


def _resume(driver: _Driver) -> None:
    with suppress(ProcessLookupError):
        os.kill(driver.process.pid, signal.SIGCONT)


def _kill(driver: _Driver, running: list[int]) -> None:
    driver.process.kill()
    for group in running:
        kill_group(group)


def _program(rest: deque[ShellTask]) -> tuple[str, deque[ShellTask]]:
    """The program of a warm shell, and the tasks that it runs. They are removed from `rest`."""
    lines = [_HEAD]
    size, taken = len(_HEAD), deque[ShellTask]()
    while rest and size < _PROGRAM_BYTES:
        task = rest.popleft()
        line = _line(task)
        size += len(os.fsencode(line)) + 1
        if taken and size > _PROGRAM_BYTES:
            rest.appendleft(task)
            break
        taken.append(task)
        lines.append(line)
    lines.append(":")  # so that no task is the last command, which bash may run without a fork
    return "\n".join(lines), taken


def _line(task: ShellTask) -> str:
    """The commands for one task.

    The task first reports its process group. The script must not notice the surrounding commands: bash itself ends job
    control at the parenthesis, $0 and the name in error messages are the script's path, and there is no ``&&`` after
    the parentheses, which would switch off the script's ``set -e``. Every word costs time, above all inside the
    parentheses, where the first write to a page copies it.
    """
    stem = quote(task.stem)
    values = "".join(f"export {name}={quote(value)};" for name, value in task.variables)
    return (
        f"BASH_ARGV0={quote(task.script)}\n"
        f"(echo $BASHPID;cd -P -- {quote(task.directory)}||exit 126;"
        f'exec >>{stem}.out 2>>{stem}.err;{values}. "$0")\n'
        f"case $? in {_ODD_PATTERN})merlin:odd $?;;*)echo $? $EPOCHREALTIME;esac"
    )


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal. A shell with job control would take it over."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
