"""Starts workers in the background and waits until they have registered."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from merlin.base.files import end_of
from merlin.base.text import short_name
from merlin.errors import ExecutionError
from merlin.execution.distributed.node_workers import PASSED_ON
from merlin.execution.shell import TAIL_BYTES

if TYPE_CHECKING:
    from merlin.execution.distributed.registry import WorkerInfo

LOGS_DIR = "merlin_logs"  # in the current directory
POLL_S = 0.1
MAX_NAME = 100  # characters of a log's name


class Launch(Struct, frozen=True, kw_only=True):
    """A command that starts workers: one of them here, or all of them on each of some nodes.

    `note` explains a decision to the user.
    """

    argv: tuple[str, ...]
    queues: Mapping[str, tuple[str, ...]]  # by the name of a worker
    num_nodes: int = 1
    is_local: bool = True  # the process is the worker itself, not a launcher
    note: str = ""

    @property
    def name(self) -> str:
        return "+".join(self.queues)

    @property
    def num_workers(self) -> int:
        return len(self.queues) * self.num_nodes


class StartedWorker(Struct, kw_only=True):
    """A worker that was started, or some by a launcher: the process, and the workers that have registered so far."""

    launch: Launch
    process: subprocess.Popen[Any]
    log: Path
    log_start: int
    before: frozenset[tuple[str, int]] = frozenset()  # name and process id of other workers
    job: str = ""  # that they are started in
    alive: list[WorkerInfo] = field(default_factory=list)
    died: str = ""  # how, with the end of the log; "" while it lives

    @property
    def is_settled(self) -> bool:
        return bool(self.died) or len(self.alive) >= self.launch.num_workers


def start(
    launch: Launch,
    *,
    logs: Path,
    environment: Mapping[str, str],
    known: Sequence[WorkerInfo] = (),
    job: str = "",
) -> StartedWorker:
    """Start workers in a session of their own, so that they outlive the terminal; their output goes to a log.

    `known` are the workers that already run, `job` is the allocation that we are in. Raises ExecutionError if the
    machine cannot start them.
    """
    path = logs / f"{launch.name[:MAX_NAME]}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
    except OSError as error:
        raise ExecutionError(f"cannot start the worker {launch.name} ({launch.argv[0]}): {error}") from error
    before = frozenset((w.name, w.pid) for w in known)
    return StartedWorker(
        launch=launch, process=process, log=path, log_start=log_start, before=before, job=job
    )


def wait_until_alive(
    started: Sequence[StartedWorker],
    workers: Callable[[], Sequence[WorkerInfo]],
    *,
    timeout_s: float,
) -> bool:
    """Wait until each has registered or died; fills in `alive` and `died`. Returns False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        reported = workers()
        for entry in started:
            entry.alive = reports_of(entry, reported)
            if entry.process.poll() is not None and not entry.is_settled:
                entry.died = describe_exit(entry)
        if all(entry.is_settled for entry in started):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def reports_of(entry: StartedWorker, reported: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """The workers of an entry: found by process id on this machine, by name if a launcher placed them."""
    if entry.launch.is_local:
        host = socket.gethostname()
        return [w for w in reported if w.pid == entry.process.pid and w.host == host]
    starts = tuple(f"{name}." for name in entry.launch.queues)
    return [
        w
        for w in reported
        if short_name(w.name).startswith(starts)
        and (w.name, w.pid) not in entry.before
        and (not entry.job or w.job == entry.job)
    ]


def describe_exit(entry: StartedWorker) -> str:
    """How the process ended, as in "exit code 1", and the end of its log."""
    code = entry.process.returncode
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    last = "\n    ".join(end_of(entry.log, TAIL_BYTES, start=entry.log_start).strip().splitlines())
    return f"{how}; its log {entry.log} " + (f"ends with:\n    {last}" if last else "is empty")


def pass_signals_on(started: list[StartedWorker]) -> Callable[[int], int]:
    """From now on pass SIGTERM and Ctrl-C on to the workers as SIGTERM, which lets them finish their chunks.

    SIGUSR1, the warning of a scheduler, is passed on, too. Returns a function that waits for the workers: it returns
    the exit code that it is given, or, if this is 0, one that says whether a worker failed.
    """
    passed: list[signal.Signals] = []

    def send(number: signal.Signals) -> None:
        for entry in started:
            with suppress(ProcessLookupError):
                entry.process.send_signal(number)

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(PASSED_ON[signal.Signals(number)])
        send(passed[-1])

    def stay(code: int) -> int:
        for number in dict.fromkeys(passed):  # signals may have come before all workers had started
            send(number)
        codes = [entry.process.wait() for entry in started]
        return code or int(any(codes))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    return stay
