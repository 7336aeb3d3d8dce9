"""The worker processes of one Celery worker: each runs the chunks of one study, one at a time."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct, field

from merlin.base.processes import read_process
from merlin.errors import ExecutionError
from merlin.execution.assignment import Assignment
from merlin.execution.distributed.contracts import Leases
from merlin.execution.distributed.study import Study
from merlin.execution.pool import WorkerProcess
from merlin.execution.waiting import is_readable
from merlin.execution.walltime import Walltime
from merlin.plan.tasks import Chunk

LEAVE_S = 2.0  # for idle processes to exit when asked; then they are killed
MIN_IDLE = 8  # processes are kept even where fewer run at once: several small studies take turns
REAP_S = 10.0  # for a killed process to end; one that hangs in the kernel is not waited for


def num_threads(size: int) -> int:
    """The number of threads of the numerical libraries in each of `size` worker processes."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, size))


StartProcess = Callable[..., WorkerProcess]


class ChunkRun(Struct, eq=False):
    """A chunk that runs in a worker process. Other threads set its flags, then `wake` it."""

    study: Study
    chunk: Chunk
    process: WorkerProcess
    session: str  # of the run that the process writes records for
    leases: Leases  # of the study
    since: float = field(default_factory=time.monotonic)
    is_void: bool = False  # the lease is lost: kill the process, commit nothing
    is_interrupted: bool = False  # stop the chunk; finished tasks count
    stopped_since: float | None = None  # monotonic: when its process was first seen suspended
    _fd: int = field(default_factory=lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def void(self) -> None:
        self.is_void = True
        self.wake()

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.wake()

    def wake(self) -> None:
        with self._lock:  # a closed descriptor may have been reused
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a message, the end of the process, or `wake`. Returns True if the process has ended."""
        has_ended = self.process.wait(self._fd, timeout_s)
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        return has_ended

    def is_stopped(self) -> bool:
        """Return whether the process is suspended (SIGSTOP, a debugger). It must not keep its lease then."""
        process = read_process(self.process.process.pid)
        return process is not None and process.is_stopped

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)
            self._fd = -1


class WorkerPool:
    """Worker processes. They start when needed and are kept for the next chunk of their study."""

    def __init__(self, name: str, size: int, start: StartProcess, walltime: Walltime) -> None:
        self._name, self._size, self._start, self._walltime = name, size, start, walltime
        self._threads = num_threads(size)
        self._lock = threading.Lock()
        # study, session, process; the one used last is last
        self._idle: list[tuple[str, str, WorkerProcess]] = []
        self._numbers = itertools.count()

    def assign(
        self, study: Study, session: str, leases: Leases, chunk: Chunk, assignment: Assignment | None = None
    ) -> ChunkRun:
        """Assign a process to the chunk. Raises ExecutionError if the machine cannot start one."""
        process = self._acquire(study, session, assignment)
        try:
            return ChunkRun(study, chunk, process, session, leases)
        except OSError as error:  # no descriptor is left
            dismiss([process])
            raise ExecutionError(f"cannot watch a worker process: {error}") from error

    def _acquire(self, study: Study, session: str, assignment: Assignment | None) -> WorkerProcess:
        """An idle process of the study, or a new one."""
        with self._lock:
            ours = [entry for entry in self._idle if entry[0] == study.id]
            fit = [entry for entry in ours if entry[1] == session and entry[2].process.poll() is None]
            leaving = [entry for entry in ours if entry not in fit]
            fit = [entry for entry in fit if entry[2].suits(assignment)]
            others = [entry for entry in self._idle if entry not in leaving]
            if not fit and len(others) >= max(self._size, MIN_IDLE):
                # not the oldest, which is the next one needed when studies take turns
                leaving.append(random.choice(others))
            self._idle = [entry for entry in others if entry not in (*leaving, *fit[-1:])]
            number = next(self._numbers)
        dismiss([process for _, _, process in leaving])
        if fit:
            return fit[-1][2]
        name = f"{self._name}.{number}"
        return self._start(
            study.workspace,
            name,
            session=session,
            num_threads=self._threads,
            is_fenced=True,
            ends=self._walltime.ends,
        )

    def release(self, run: ChunkRun) -> None:
        """Make the run's process available for another chunk."""
        with self._lock:
            self._idle.append((run.study.id, run.session, run.process))

    def dismiss_idle(self, study_id: str | None = None) -> None:
        """End all idle processes, or those of one study."""
        with self._lock:
            leaving = [p for s, _, p in self._idle if study_id in (None, s)]
            self._idle = [entry for entry in self._idle if entry[2] not in leaving]
        dismiss(leaving)


def dismiss(processes: Sequence[WorkerProcess]) -> None:
    """Ask idle processes to exit, kill those that do not, and free their resources."""
    for process in processes:
        process.leave(now=False)
        process.channel.close()
    deadline = time.monotonic() + LEAVE_S
    for process in processes:
        if not is_readable(process.pidfd, deadline - time.monotonic()):
            process.kill()
        reap(process)


def reap(process: WorkerProcess) -> None:
    """Free the resources of a process that has ended or was killed."""
    with suppress(subprocess.TimeoutExpired):
        process.process.wait(REAP_S)
    process.close()
