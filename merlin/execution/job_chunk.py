"""The program in a batch job: ``python -m merlin.execution.job_chunk --workspace W --plan D --job LEASE``.

It runs one chunk in a worker process, which writes its own segment of the ledger, and then reports what has become of
the chunk, in a file (see `job_folder`). Shortly before its walltime ends, or when it gets a signal, it ends its task
and reports what has ended.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from merlin.base.ranges import merged
from merlin.batch.here import client_here, find_end
from merlin.errors import ExecutionError, LeaseLostError, MerlinError
from merlin.execution import wire
from merlin.execution.interrupts import Interrupts
from merlin.execution.job_folder import WORKER_PREFIX, JobFolder, StepJob
from merlin.execution.job_reports import first_left
from merlin.execution.pool import WorkerProcess
from merlin.execution.recorded import described, recorded_outcomes
from merlin.execution.walltime import Walltime
from merlin.ledger.writer import prefix_of
from merlin.plan.pieces import Run, part_of
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace, open_same

log = logging.getLogger("merlin.job")

LOOK_S = 10.0  # between two looks whether the job was given up, while a task runs
STOP_S = 10.0  # for a task to end after a signal; then it is killed
ENDING_S = 5.0  # for the process to end after it has reported an error
TROUBLE_S = 60.0  # the folder may be unreadable for so long


def main(argv: list[str] | None = None) -> int:
    """Run the chunk; the exit code is 0 if the outcome of the job is known to those who submitted it."""
    parser = argparse.ArgumentParser(prog="merlin.execution.job_chunk")
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--plan", required=True, help="digest of the plan")
    parser.add_argument("--job", required=True, help="lease of the chunk")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signals = _catch_signals()
    try:
        workspace = open_same(args.workspace, args.plan)
        folder = JobFolder(workspace, args.job)
        job = folder.read()
        _JobRun(workspace, folder, job, signals).run()
    except LeaseLostError as error:
        log.warning("%s", error)
    except MerlinError as error:
        log.error("%s", error)
        return 1
    return 0


_OUT_OF_TIME = frozenset({signal.SIGUSR1, signal.SIGXCPU})  # how schedulers say that the walltime is over


def _catch_signals() -> Interrupts:
    """Catch the signals that end the job, from now on."""
    signals = Interrupts()
    for number in _OUT_OF_TIME | {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        signal.signal(number, signals.handle)
    signal.set_wakeup_fd(signals.inner.fileno(), warn_on_full_buffer=False)
    return signals


class _JobRun:
    """One start of the job."""

    def __init__(self, workspace: Workspace, folder: JobFolder, job: StepJob, signals: Interrupts) -> None:
        self._workspace, self._folder, self._job, self._signals = workspace, folder, job, signals
        self._name = WORKER_PREFIX + job.lease
        self._walltime = Walltime(_end_of(job))
        self._must_end = False  # by a signal, or because the walltime is over
        self._is_void = False

    def run(self) -> None:
        """Run what is left of the chunk, and report. Raises LeaseLostError if the chunk was given to somebody else."""
        self._claim = self._folder.claim()
        job = self._job
        log.info("job %s runs %s", job.id or job.name, described(job.chunk))
        before = self._recorded("") if self._claim > 1 else ()  # the scheduler has started it again
        left = _without(job.chunk, before)
        if left:
            report = self._report_of(left, before)
        else:
            report = self._ended(before, ChunkResult(chunk=job.chunk, runs=()))
        if self._is_void or not self._may_commit():
            raise LeaseLostError("the chunk was given to somebody else")
        self._folder.write_report(report)

    def _recorded(self, prefix: str) -> tuple[Run, ...]:
        job = self._job
        return recorded_outcomes(
            self._workspace, job.chunk, log, session=job.session, worker=self._name, prefix=prefix
        )

    # ------------------------------------------------------------------ the process

    def _report_of(self, left: Chunk, before: tuple[Run, ...]) -> ChunkReport:
        process = WorkerProcess(
            self._workspace,
            self._name,
            session=self._job.session,
            num_threads=len(os.sched_getaffinity(0)),
            is_fenced=True,
            ends=self._walltime.ends,
        )
        try:
            # the job is for these tasks alone: each may begin while there is time at all
            process.run(replace(left, need_s=0.0))
            result = self._serve(process)
            return self._lost(process, before) if result is None else self._ended(before, result)
        finally:
            process.kill()
            process.process.wait()
            process.close()
            with suppress(OSError):
                if process.log.stat().st_size == 0:  # many jobs must not leave many empty files
                    process.log.unlink()

    def _serve(self, process: WorkerProcess) -> ChunkResult | None:
        """Wait for the result; None if the process ends, or is killed, without one."""
        kill_at: float | None = None
        looked = time.monotonic()
        while True:
            has_ended = self._wait(process, LOOK_S if kill_at is None else kill_at - time.monotonic())
            self._must_end = self._must_end or bool(self._signals.first) or self._is_out_of_time()
            if self._must_end and not process.is_leaving:
                log.warning("the job ends: %s", self._why_it_ends())
                process.leave(now=True)
                kill_at = time.monotonic() + STOP_S
            for message in process.channel.receive():
                if isinstance(message, wire.Result):
                    return message.result
                self._on_message(process, message)
            if time.monotonic() - looked >= LOOK_S:
                looked = time.monotonic()
                self._is_void = self._is_void or not self._may_commit()
            if has_ended or self._is_void:
                return None
            if kill_at is None and (process.error or process.crash or process.channel.is_closed):
                kill_at = time.monotonic() + ENDING_S
            if kill_at is not None and time.monotonic() >= kill_at:
                return None

    def _wait(self, process: WorkerProcess, limit_s: float) -> bool:
        """Wait for a message, a signal, or the end of the process; returns whether it has ended."""
        if not self._must_end:
            limit_s = min(limit_s, self._walltime.left_s())
        has_ended = process.wait(self._signals.wake.fileno(), limit_s)
        self._signals.drain()
        return has_ended

    def _on_message(self, process: WorkerProcess, message: wire.Message) -> None:
        process.note(message)
        if isinstance(message, wire.Commit):
            self._is_void = self._is_void or not self._may_commit()
            process.channel.send(wire.Void() if self._is_void else wire.Go())

    def _may_commit(self) -> bool:
        return _patiently(lambda: self._folder.may_commit(self._claim))

    # ------------------------------------------------------------------ reports

    def _ended(self, before: tuple[Run, ...], result: ChunkResult) -> ChunkReport:
        job = self._job
        runs = tuple(sorted((*before, *result.runs)))
        if not self._must_end:
            whole = replace(result, chunk=job.chunk, runs=runs)
            return ChunkReport(chunk=job.chunk, worker=self._name, result=whole)
        cut_off = [
            task for a, b, value in result.runs if value == Outcome.INTERRUPTED for task in range(a, b)
        ]
        return self._interrupted(runs, tuple(cut_off))

    def _lost(self, process: WorkerProcess, before: tuple[Run, ...]) -> ChunkReport:
        """The report on a process that has ended without a result."""
        process.kill()  # the rest of its session, if it has ended by itself
        died = process.describe_exit()
        recorded = self._recorded(prefix_of(socket.gethostname(), process.process.pid))
        done = tuple(sorted({*before, *recorded}))
        if self._must_end:
            return self._interrupted(done, ())
        return ChunkReport(
            chunk=self._job.chunk,
            worker=self._name,
            done=done,
            died=died,
            tail=process.crash_report(),
            is_infrastructure=not process.is_ready,
            trouble=process.error,
        )

    def _interrupted(self, done: tuple[Run, ...], cut_off: tuple[int, ...]) -> ChunkReport:
        """The report after a signal. If the walltime is over, it blames a task, so that this cannot repeat forever."""
        job = self._job
        report = ChunkReport(chunk=job.chunk, worker=self._name, done=done, is_interrupted=True)
        if not self._is_out_of_time():
            return report
        return replace(report, cut_off=cut_off or first_left(job.chunk, done), walltime=job.walltime)

    def _is_out_of_time(self) -> bool:
        return self._signals.first in _OUT_OF_TIME or self._walltime.left_s() <= 0

    def _why_it_ends(self) -> str:
        return "its walltime is over" if self._is_out_of_time() else signal.Signals(self._signals.first).name


def _end_of(job: StepJob) -> float | None:
    """When the walltime is over, in epoch seconds; None: not known. Without one in the spec, the scheduler is asked."""
    ends = find_end(os.environ, client=client_here(os.environ) if job.walltime_s is None else None)
    return ends if ends is not None or job.walltime_s is None else time.time() + job.walltime_s


def _without(chunk: Chunk, done: tuple[Run, ...]) -> Chunk | None:
    """The part of a chunk that has not ended; None if all of it has."""
    ended = {task for a, b, value in done if value != Outcome.INTERRUPTED for task in range(a, b)}
    left = [task for task in chunk.task_ids() if task not in ended]
    return part_of(chunk, merged((task, task + 1) for task in left)) if left else None


def _patiently(ask: Callable[[], bool]) -> bool:
    """Ask a file system that may be unavailable for a while. Raises ExecutionError."""
    deadline = time.monotonic() + TROUBLE_S
    while True:
        try:
            return ask()
        except ExecutionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
