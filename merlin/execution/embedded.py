"""The embedded executor: the command runs the study itself, with worker processes and no server."""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import closing
from math import inf

from merlin.batch.here import client_here, find_end
from merlin.errors import ExecutionError
from merlin.execution import wire
from merlin.execution.conductor import Conductor, RunOptions
from merlin.execution.events import Observer, Progress, RunSummary
from merlin.execution.fork_server import ForkServers
from merlin.execution.interrupts import Interrupts, caught_signals
from merlin.execution.job_schedulers import require_schedulers
from merlin.execution.notices import Notices, recorder
from merlin.execution.orphans import kill_orphans
from merlin.execution.places import places_for
from merlin.execution.pool import WorkerProcess
from merlin.execution.recorded import described
from merlin.execution.step_jobs import StepJobs
from merlin.execution.walltime import Walltime
from merlin.plan.durations import too_short
from merlin.plan.job_policy import job_policy
from merlin.plan.outcome_counts import summed
from merlin.plan.reports import settle_report
from merlin.plan.tasks import Chunk, ReturnCode
from merlin.workspace.directory import Workspace
from merlin.workspace.holding import lock

INTERRUPTED = "interrupted"  # the stop reason after Ctrl-C or SIGTERM
PROGRESS_S = 0.2
MAX_WAIT_S = 86_400.0  # the system refuses to wait for a month, and an allocation may have a year
MAX_FAILED_STARTS = 3  # workers in a row that die before they are ready


def run_embedded(workspace: Workspace, options: RunOptions, observer: Observer) -> RunSummary:
    """Run all tasks that the ledger does not have yet, to the end or to the first stop.

    Raises:
        WorkspaceError: another run holds the workspace.
        LedgerError, ExecutionError: the run itself failed; the outcomes so far are in the ledger.
    """
    began, run = time.monotonic(), None
    try:
        with lock(workspace):
            kill_orphans(workspace)
            with closing(Conductor(workspace)) as conductor, caught_signals() as interrupts:
                run = _Run(workspace, options, observer, conductor, interrupts, began)
                try:
                    summary = run.run()
                finally:
                    run.close()
    finally:
        if run is not None:
            run.tell()  # after the workspace is released: people who are notified may use it
    run.observer.finished(summary)
    return summary


class _Run:
    """The event loop of one run."""

    def __init__(
        self,
        workspace: Workspace,
        options: RunOptions,
        observer: Observer,
        conductor: Conductor,
        interrupts: Interrupts,
        began: float,
    ) -> None:
        self._workspace, self._options, self.observer = workspace, options, observer
        self._conductor, self._interrupts, self._began = conductor, interrupts, began
        cores = len(os.sched_getaffinity(0))
        num_tasks = sum(i.num_tasks for i in workspace.plan.instances if job_policy(i) is None)
        wanted = options.workers or cores
        self._num_workers = max(1, min(wanted, num_tasks))
        self._num_threads = max(1, cores // wanted)
        self._places = places_for(workspace.plan, os.environ, wanted)
        self._jobs = StepJobs(workspace, conductor.session, recorded=conductor.done)
        self._notices = Notices(
            workspace,
            recorder(workspace, conductor.session),
            conductor.read,
            lambda note: self.observer.note(note),
        )
        self._failure = ""  # why the run itself broke
        self._servers: ForkServers | None = None
        if workspace.plan.has_functions and self._num_workers > 1:
            self._servers = ForkServers(self._num_threads)
        self._workers: list[WorkerProcess] = []
        self._num_started = 0
        self._num_failed_starts = 0
        self._num_interrupts = 0  # handled so far
        self._is_stopping = False  # the stop was announced
        self._has_noted_stop_workers = False
        self._kill_at: float | None = None
        self._walltime = Walltime(find_end(os.environ, client=client_here(os.environ)))
        self._asked = self._next_progress = 0.0  # when this round asked for chunks; when to show progress
        self._is_changed = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(interrupts.wake, selectors.EVENT_READ, None)

    # ------------------------------------------------------------------- loop

    def run(self) -> RunSummary:
        # either loads while the ledger is read
        if self._servers is None:
            self._start_workers()
        else:
            self._servers.of(self._workspace.plan)
        about_ledger = self._conductor.open(self._options, self._num_workers)
        if self._servers is not None:
            self._start_workers()
        self._scheduler = self._conductor.scheduler
        require_schedulers(self._scheduler)
        self._jobs.adopt_all(self._scheduler)
        self._check_needs()
        self._conductor.event(
            "run_started", workers=self._num_workers, pid=os.getpid(), host=socket.gethostname()
        )
        self._notices.start(since=time.time())
        self.observer.started(self._workspace.plan, self._progress())
        if about_ledger:
            self.observer.note(about_ledger)
        try:
            while self._workers or not self._is_over():
                self._step()
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._conductor.event("run_failed", reason=self._failure)
            raise
        return self._finish()

    def _step(self) -> None:
        """Hand out chunks, wait, and handle what has arrived."""
        self._asked = time.monotonic()
        self._handle_interrupts()
        self._look_after_jobs()
        self._hand_out()
        for key, _ in self._selector.select(self._timeout()):
            if key.data is None:
                self._interrupts.drain()
            elif key.data in self._workers:
                self._receive(key.data, is_dead=key.fd == key.data.pidfd)
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all()
        wakeup = self._notices.next_wakeup()
        if (self._is_changed and now >= self._next_progress) or (wakeup is not None and now >= wakeup):
            progress = self._progress()
            self.observer.progress(progress)
            self._is_changed, self._next_progress = False, now + PROGRESS_S
            self._notices.step(progress.per_step, self._jobs.refusal)

    def _is_over(self) -> bool:
        """Return whether nothing runs and nothing more will."""
        scheduler = self._scheduler
        return not scheduler.num_running and bool(scheduler.is_complete or scheduler.stop_reason)

    def _timeout(self) -> float | None:
        now, retry = time.monotonic(), self._scheduler.next_wakeup()
        if retry is not None and retry <= self._asked:
            retry = None  # it is due, and waits for a free worker
        wakeups = (retry, self._kill_at, self._jobs.next_wakeup(now), self._notices.next_wakeup())
        times = [t for t in wakeups if t is not None]
        if self._walltime.left_s() < inf and not self._scheduler.stop_now:
            times.append(now + max(0.0, self._walltime.left_s()))
        if self._is_changed:
            times.append(self._next_progress)
        return min(max(0.0, min(times) - now), MAX_WAIT_S) if times else None

    # -------------------------------------------------------------- hand out

    def _hand_out(self) -> None:
        """Give every idle worker a chunk, or end it when there will be no more."""
        idle = [w for w in self._workers if w.chunk is None and not w.is_leaving]
        if self._is_over():
            for worker in idle:
                worker.leave(now=False)
            return
        num_live = sum(not w.is_leaving for w in self._workers)
        while idle or num_live < self._num_workers:
            room = self._places.room if self._places else None
            chunk = self._scheduler.take(self._asked, left_s=self._walltime.left_s(), room=room)
            if chunk is None:
                break
            if not idle:
                idle.append(self._start_worker())
                num_live += 1
            self._start_chunk(chunk, idle)
        self._stop_in_time()
        self._require_progress()

    def _stop_in_time(self) -> None:
        """Stop when the walltime is over, or when nothing that could start would end before."""
        scheduler, left_s = self._scheduler, self._walltime.left_s()
        if left_s <= 0 and not scheduler.stop_now:
            self._stop("the walltime is over; merlin restart goes on where it ended", now=True)
        elif left_s < inf and not (scheduler.num_running or self._is_over()):
            reasons = [too_short(*need, left_s) for need in scheduler.needs().items() if need[1] > left_s]
            if reasons and scheduler.next_wakeup() is None:
                self._stop(f"the walltime is too short: {reasons[0]}", now=False)
                for worker in self._workers:
                    worker.leave(now=False)

    def _start_chunk(self, chunk: Chunk, idle: list[WorkerProcess]) -> None:
        """Give the chunk its cores and GPUs, and to one of the idle workers, or a new one in the place of one."""
        assignment = None
        if self._places is not None:
            assignment = self._places.assign(chunk.lease, self._workspace.instance(chunk.instance))
        worker = next((w for w in idle if w.suits(assignment)), None)
        if worker is None:
            idle.pop(0).leave(now=False)
            worker = self._start_worker()
        else:
            idle.remove(worker)
        worker.run(chunk, assignment)

    def _take_back(self, worker: WorkerProcess) -> Chunk | None:
        """Take the worker's chunk away from it, and free the cores and GPUs of the chunk."""
        chunk, worker.chunk = worker.chunk, None
        if self._places is not None and chunk is not None:
            self._places.release(chunk.lease)
        return chunk

    def _check_needs(self) -> None:
        """Warn of tasks that get fewer cores than they ask for. Raises ExecutionError for GPUs that are not here."""
        if self._places is not None:
            counts = self._scheduler.counts()
            left = [i for i in self._scheduler.plan.instances if counts[i.id].missing]
            for note in self._places.check(left):
                self.observer.note(note)

    def _require_progress(self) -> None:
        """Raise ExecutionError if the study neither runs nor ends: that is a bug, and this loop would wait forever."""
        scheduler = self._scheduler
        wakeups = (scheduler.next_wakeup(), self._jobs.next_wakeup(time.monotonic()))
        if not (scheduler.num_running or self._is_over() or any(wakeup is not None for wakeup in wakeups)):
            raise ExecutionError(f"nothing can run, and tasks are missing: {scheduler.counts()}")

    def _look_after_jobs(self) -> None:
        """Submit chunks of the steps that have jobs of their own, and handle how such jobs ended."""
        for report in self._jobs.step(self._scheduler, time.monotonic()):
            self._is_changed = True
            done = () if report.result is not None else self._conductor.done(report.chunk)
            settle_report(self._scheduler, report, done, time.monotonic())
            self._conductor.flush()
        for note in self._jobs.notes():
            self.observer.note(note)
        self._announce_stop()

    def _start_workers(self) -> None:
        for _ in range(self._num_workers):
            self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        name = f"w{self._num_started}"
        worker = WorkerProcess(
            self._workspace,
            name,
            session=self._conductor.session,
            num_threads=self._num_threads,
            may_fork=self._options.may_fork,
            servers=self._servers,
            ends=self._walltime.ends,
        )
        self._num_started += 1
        self._workers.append(worker)
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        return worker

    # -------------------------------------------------------------- messages

    def _receive(self, worker: WorkerProcess, *, is_dead: bool) -> None:
        for message in worker.channel.receive():
            self._on_message(worker, message)
        if is_dead:
            self._on_worker_death(worker)
        elif worker.channel.is_closed and worker.channel in self._selector.get_map():
            self._selector.unregister(worker.channel)  # its process follows

    def _on_message(self, worker: WorkerProcess, message: wire.Message) -> None:
        self._is_changed = True
        worker.note(message)
        match message:
            case wire.Ready():
                self._num_failed_starts = 0
            case wire.Result(result):
                chunk = self._take_back(worker)
                assert chunk is not None
                self._conductor.finished(result, time.monotonic())
                if result.stop == "stop_workers":
                    self._note_stop_workers(chunk)
                self._announce_stop()
            case wire.Error(why):  # no task's fault: the disk is full, the plan is unreadable
                self._stop(why)

    def _on_worker_death(self, worker: WorkerProcess) -> None:
        """Handle the end of a process: its chunk, its remaining processes and a failed start."""
        self._is_changed = True
        if worker.channel in self._selector.get_map():
            self._selector.unregister(worker.channel)
        self._selector.unregister(worker.pidfd)
        self._workers.remove(worker)
        died = worker.describe_exit()
        chunk = self._take_back(worker)
        if chunk is not None or not worker.is_leaving:
            worker.kill()
            self._handle_loss(worker, chunk, died)
        worker.close()

    def _handle_loss(self, worker: WorkerProcess, chunk: Chunk | None, died: str) -> None:
        now = time.monotonic()
        if chunk is not None and self._scheduler.stop_now:
            self._conductor.lost(chunk, now)
        elif chunk is not None and not worker.is_ready:
            self._scheduler.give_back(chunk)
        elif chunk is not None:
            self._conductor.lost(chunk, now, crash=died, tail=worker.crash_report())
        if self._scheduler.stop_now:
            return
        what = f" with {described(chunk)}" if chunk is not None else ""
        self._conductor.event("worker_lost", worker=worker.name, pid=worker.process.pid, died=died)
        self.observer.note(f"worker {worker.name} was lost{what} ({died}); log: {worker.log}")
        self._announce_stop()
        self._num_failed_starts += not worker.is_ready
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            raise ExecutionError(
                f"{self._num_failed_starts} workers in a row died at their start ({died}); the last one said:\n"
                f"{worker.log_tail()}\nlog: {worker.log}"
            )

    # -------------------------------------------------------------- stopping

    def _handle_interrupts(self) -> None:
        """Stop cleanly at the first signal, and kill the workers at the second."""
        while self._num_interrupts < self._interrupts.count:
            self._num_interrupts += 1
            if self._interrupts.is_hung_up:
                self.observer = Observer()
            if self._num_interrupts == 1:
                self._stop(INTERRUPTED)
            else:
                self._kill_all()

    def _stop(self, reason: str, *, now: bool = True) -> None:
        self._scheduler.stop(reason, now=now)
        self._announce_stop()

    def _note_stop_workers(self, chunk: Chunk) -> None:
        """Report once that a task asked the workers to stop. Workers of this run end with the run anyway."""
        if not self._has_noted_stop_workers:
            self._has_noted_stop_workers = True
            self.observer.note(
                f"a task of step '{chunk.instance}' asked the workers to stop (exit code {ReturnCode.STOP_WORKERS:d}); "
                "on one machine the study goes on to its end"
            )

    def _announce_stop(self) -> None:
        """If the scheduler has just stopped the study, report it and stop the workers."""
        scheduler = self._scheduler
        if scheduler.stop_reason and not self._is_stopping:
            self._is_stopping = True
            self.observer.note(f"stopping: {scheduler.stop_reason}")
        if scheduler.stop_now and self._kill_at is None:
            self._kill_at = time.monotonic() + self._options.grace_s
            for worker in self._workers:
                worker.leave(now=True)

    def _kill_all(self) -> None:
        self._jobs.hurry(time.monotonic())
        self._kill_at = None if not self._workers else time.monotonic() + self._options.grace_s
        for worker in self._workers:
            worker.kill()

    def _finish(self) -> RunSummary:
        scheduler, per_step = self._scheduler, self._conductor.per_step()
        summary = RunSummary(
            **summed(per_step.values()),
            stop_reason=scheduler.stop_reason,
            seconds=time.monotonic() - self._began,
            per_step=per_step,
        )
        kind = "run_stopped" if scheduler.stop_reason else "run_finished"
        refused = {} if self._jobs.refusal in scheduler.stop_reason else {"refused": self._jobs.refusal}
        self._conductor.event(kind, reason=scheduler.stop_reason, seconds=summary.seconds, **refused)
        self.observer.progress(self._progress())
        return summary

    def tell(self) -> None:
        """Tell people how the run has ended; wait for that, but not beyond the next Ctrl-C."""
        if not self._notices.is_active:
            return
        reason = self._failure or self._scheduler.stop_reason
        try:
            self._notices.end(self._conductor.per_step(), reason, is_broken=bool(self._failure))
            self._notices.wait()
        except KeyboardInterrupt:
            self._notices.kill()

    def _progress(self) -> Progress:
        in_flight: dict[str, tuple[int, int]] = {}
        for worker in self._workers:
            if worker.chunk is not None:
                ended, failed = in_flight.get(worker.chunk.instance, (0, 0))
                in_flight[worker.chunk.instance] = (ended + worker.ended, failed + worker.failed)
        return Progress(
            seconds=time.monotonic() - self._began,
            per_step=self._conductor.per_step(in_flight),
            num_workers=len(self._workers),
        )

    def close(self) -> None:
        """End every process, whatever happened."""
        for worker in self._workers:
            worker.kill()
            worker.process.wait()
            worker.close()
        if self._servers is not None:
            self._servers.close()
        self._jobs.close()
        self._selector.close()
