"""The chunks that a worker runs: the messages to and from the process of each, and the report on it."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Collection

from msgspec.structs import replace

from merlin.errors import ExecutionError, StudyGoneError
from merlin.execution import wire
from merlin.execution.assignment import Assignment
from merlin.execution.distributed.contracts import Leases
from merlin.execution.distributed.leaving import INTERRUPT_S, RETRY_S, Leaving
from merlin.execution.distributed.messages import seal_report
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.worker_pool import REAP_S, ChunkRun, WorkerPool, dismiss, reap
from merlin.execution.pool import WorkerProcess
from merlin.execution.recorded import described, recorded_outcomes
from merlin.ledger.writer import prefix_of
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk, ChunkResult

log = logging.getLogger("merlin.worker")

ENDING_S = 5.0  # for a process to end after it has reported an error
DECLINE_S = 0.5  # after a chunk that does not fit: it comes back at once if no other worker is free
MAX_FAILED_STARTS = 5  # processes in a row that end by themselves at their start; then this worker leaves


class ChunkRuns:
    """The running chunks of one worker. Its threads call `run`; other threads interrupt."""

    def __init__(self, name: str, pool: WorkerPool, leaving: Leaving, key: bytes, node: str) -> None:
        self._name, self._pool, self._leaving, self._key, self._node = name, pool, leaving, key, node
        self._lock = threading.Lock()
        self._runs: set[ChunkRun] = set()
        self._num_failed_starts = 0  # in a row

    def all(self) -> list[ChunkRun]:
        """The chunks that run now."""
        with self._lock:
            return list(self._runs)

    def run(
        self, study: Study, session: str, leases: Leases, chunk: Chunk, assignment: Assignment | None = None
    ) -> None:
        """Run a chunk to its end, and send its report.

        Raises ExecutionError if the machine cannot start a process (the chunk is given back), or if the study is gone.
        """
        run = self._begin(study, session, leases, chunk, assignment)
        if run is None:
            return
        try:
            run.process.run(chunk, assignment)
            result = self._serve_process(run)
        except BaseException:
            run.process.kill()
            reap(run.process)
            raise
        finally:
            self._forget(run)
        if result is None:
            self._handle_lost_process(run)
            return
        try:
            self._report_result(run, result)
        finally:
            self._release_process(run)

    def decline(self, study: Study, leases: Leases, chunk: Chunk) -> None:
        """Give back a chunk that must not start here, and leave the next offer to others for a moment."""
        log.info("%s are left to others: too long for this walltime, or this node is bad", described(chunk))
        self._report(study, leases, ChunkReport(chunk=chunk, worker=self._name))
        self._leaving.out_of_time.wait(DECLINE_S)

    # ------------------------------------------------------------- other threads

    def interrupt(self, study_id: str | None = None) -> None:
        """Interrupt all chunks, or those of a study. Finished tasks count."""
        for run in self.all():
            if study_id in (None, run.study.id):
                run.interrupt()

    def void(self, study_id: str, instances: Collection[str] | None = None) -> None:
        """Kill all chunks of a study, or of some of its instances. Nothing of them is committed."""
        for run in self.all():
            if run.study.id == study_id and (not instances or run.chunk.instance in instances):
                run.void()

    def kill(self) -> None:
        """Kill all chunks. Tasks that are already committed count."""
        for run in self.all():
            run.is_interrupted = True  # the process did not crash: we killed it
            run.process.kill()

    def forget(self, study_id: str) -> bool:
        """Forget a study that is over. Returns False if one of its chunks still runs."""
        if any(run.study.id == study_id for run in self.all()):
            return False
        self._pool.dismiss_idle(study_id)
        return True

    # ------------------------------------------------------------- messages

    def _begin(
        self, study: Study, session: str, leases: Leases, chunk: Chunk, assignment: Assignment | None
    ) -> ChunkRun | None:
        """Assign a process to the chunk. When this worker is leaving, give the chunk back and return None."""
        try:
            run = self._pool.assign(study, session, leases, chunk, assignment)
        except ExecutionError:
            self._leaving.out_of_time.wait(RETRY_S)  # otherwise the same chunk would come back at once
            self._report(study, leases, ChunkReport(chunk=chunk, worker=self._name))
            raise
        with self._lock:
            self._runs.add(run)
        if not self._leaving.is_leaving:
            return run
        self._forget(run)
        self._release_process(run)
        self._report(study, leases, ChunkReport(chunk=chunk, worker=self._name))
        return None

    def _forget(self, run: ChunkRun) -> None:
        with self._lock:
            self._runs.discard(run)
        run.close()

    def _release_process(self, run: ChunkRun) -> None:
        """Make the process available for another chunk, unless it was stopped."""
        if run.is_interrupted or run.is_void or run.process.channel.is_closed:
            dismiss([run.process])
        else:
            self._pool.release(run)

    def _serve_process(self, run: ChunkRun) -> ChunkResult | None:
        """Wait for the chunk's result. Returns None if the process ends, or is killed, without one."""
        process, kill_at = run.process, math.inf
        stop_sent = False
        while True:
            has_ended = run.wait(None if kill_at == math.inf else kill_at - time.monotonic())
            if run.is_void:
                process.kill()
                return None
            if run.is_interrupted and not stop_sent:
                stop_sent, kill_at = True, min(kill_at, time.monotonic() + INTERRUPT_S)
                process.channel.send(wire.Stop())
            try:
                for message in process.channel.receive():
                    if isinstance(message, wire.Result):
                        return message.result
                    self._on_message(run, message)
            except ExecutionError as error:  # it sends invalid messages
                process.is_ready, process.crash = True, str(error)
                process.kill()
                return None
            if has_ended:
                return None
            if process.error or process.crash or process.channel.is_closed:
                kill_at = min(kill_at, time.monotonic() + ENDING_S)
            if time.monotonic() >= kill_at:
                process.kill()
                kill_at = time.monotonic() + REAP_S

    def _on_message(self, run: ChunkRun, message: wire.Message) -> None:
        run.process.note(message)
        if isinstance(message, wire.Ready):
            self._num_failed_starts = 0
        elif isinstance(message, wire.Commit):
            run.process.channel.send(wire.Go() if self._may_commit(run) else wire.Void())

    def _may_commit(self, run: ChunkRun) -> bool:
        """Return whether the lease is still held. Waits while Redis does not answer."""
        lease = run.chunk.lease
        try:
            is_held = not self._leaving.retry_until(
                lambda: run.leases.renew([lease]), lambda: not run.is_void
            )
        except StudyGoneError:
            is_held = False
        except ExecutionError as error:
            log.warning("%s", error)
            is_held = False
        if not is_held:
            run.void()
        return is_held

    # ------------------------------------------------------------------- reports

    def _report(self, study: Study, leases: Leases, report: ChunkReport) -> bool:
        text = seal_report(replace(report, node=self._node), study.id, self._key)
        return self._leaving.retry_until(lambda: leases.settle(report.chunk.lease, text))

    def _report_result(self, run: ChunkRun, result: ChunkResult) -> None:
        report = ChunkReport(chunk=run.chunk, worker=self._name, result=result)
        if self._report(run.study, run.leases, report):
            note = f": {result.note}" if result.note else ""
            log.info("%s ended after %.3g s%s", described(run.chunk), result.busy_s, note)
        else:
            log.warning("%s were taken over by another worker", described(run.chunk))

    def _handle_lost_process(self, run: ChunkRun) -> None:
        """Report on a process that has ended without a result."""
        process, chunk = run.process, run.chunk
        if run.is_void:
            reap(process)
            log.warning("%s were taken over by another worker, or their study has ended", described(chunk))
            return
        died = process.describe_exit()
        process.kill()  # the rest of its session
        process.close()
        failed_at_start = not (process.error or run.is_interrupted or process.is_ready)
        if process.error:
            log.error("%s", process.error)
        elif failed_at_start:
            log.error("a worker process died at its start (%s): %s", died, process.log_tail())
        elif not run.is_interrupted:
            log.warning(
                "a worker process was lost with %s (%s); log: %s", described(chunk), died, process.log
            )
        prefix = prefix_of(socket.gethostname(), process.process.pid)
        done = recorded_outcomes(
            run.study.workspace, chunk, log, session=run.session, worker=process.name, prefix=prefix
        )
        report = ChunkReport(
            chunk=chunk,
            worker=process.name,
            done=done,
            died=died,
            tail=process.crash_report(),
            is_infrastructure=failed_at_start,
            is_interrupted=run.is_interrupted,
            trouble=process.error,
        )
        self._report(run.study, run.leases, report)
        if failed_at_start:
            self._count_failed_start(process)
            self._leaving.out_of_time.wait(RETRY_S)

    def _count_failed_start(self, process: WorkerProcess) -> None:
        """Leave when no process can start here: this worker would lose one chunk after the other."""
        self._num_failed_starts += (process.process.returncode or 0) >= 0
        if self._num_failed_starts >= MAX_FAILED_STARTS and not self._leaving.is_leaving:
            log.critical(
                "%d worker processes in a row ended at their start; this worker leaves. The last one said:\n%s",
                self._num_failed_starts,
                process.log_tail(),
            )
            self._leaving.leave()
