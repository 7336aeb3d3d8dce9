"""Follows tickets: claims a chunk, runs it in a worker process, reports, and publishes what became ready."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from merlin import __version__
from merlin.errors import (
    ExecutionError,
    ForgedMessageError,
    LedgerError,
    MerlinError,
    ProgressFullError,
    ProgressGoneError,
    ProgressUnreachableError,
    StaleTicketError,
)
from merlin.execution.distributed.connect import make_client, server_time
from merlin.execution.distributed.crew import REAP_S, Crew, Run, dismiss, reap
from merlin.execution.distributed.incoming import open_ticket
from merlin.execution.distributed.publish import Publisher
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.registry import Registry, RunningChunk, WorkerInfo
from merlin.execution.distributed.study import Studies, Study
from merlin.execution.wire import Message, result_from_json
from merlin.study.schedule import LEASE_S
from merlin.study.tasks import Chunk, ChunkResult

if TYPE_CHECKING:
    from celery import Celery

    from merlin.config.model import Config
    from merlin.execution.pool import WorkerProcess

log = logging.getLogger("merlin.worker")

T = TypeVar("T")
SLICE_S = 10.0  # a message leads to work for so long; then others have their turn
RETRY_S = 1.0  # between two tries to reach Redis
TELL_S = 30.0  # between two complaints that it does not answer
STOP_GRACE_S = 10.0  # after SIGTERM, for chunks to end by themselves; then they are interrupted,
INTERRUPT_S = 10.0  # and after this killed
LAST_S = 4.0  # then, for everything else; a worker that still hangs ends without further ado
ENDING_S = 5.0  # for a process to end that has said its last words
STOP_WORKERS_S = 60.0  # after a task that asked the workers to stop, as upstream
MAX_STILLBORN = 5  # processes in a row that end by themselves at their start; then this worker is of no use
SLOTS_S = 5.0  # for so long the number of slots of all workers is not asked again


def lease_s() -> float:
    """Seconds of a lease: 60, or MERLIN_LEASE_S."""
    return max(1.0, _seconds("MERLIN_LEASE_S", LEASE_S))


def _seconds(variable: str, default: float) -> float:
    """Raises ExecutionError unless the environment variable is a number of seconds, or not there."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ExecutionError(f"{variable} must be seconds, not {text!r}")
    return value


class Engine:
    """The work of one Celery worker; its threads call `handle`."""

    def __init__(
        self,
        config: Config,
        app: Celery,
        *,
        name: str,
        concurrency: int,
        queues: Sequence[str],
        refusals: Refusals | None = None,
    ) -> None:
        from merlin.execution.distributed.maintenance import Maintenance

        self.config, self.name, self.concurrency, self.queues = config, name, concurrency, list(queues)
        self.client = make_client(config.backend)
        self.registry = Registry(self.client, config)
        self.publisher = Publisher(config, app)
        self.refusals = refusals or Refusals()
        self.lease_s = lease_s()
        self.studies = Studies(self.client, config.namespace, lease_s=self.lease_s)
        self.is_leaving = False  # takes nothing more
        self.is_patient = False  # waits for what runs, however long it takes
        self._grace_s = _seconds("MERLIN_STOP_GRACE_S", STOP_GRACE_S)
        self._is_hurrying = False
        self._is_out_of_time = threading.Event()  # nobody waits for Redis any more
        self._crew = Crew(name.replace("/", "_"), concurrency)
        self._lock = threading.Lock()
        self._runs: set[Run] = set()
        self._slots, self._slots_at = concurrency, 0.0
        self._num_stillborn = 0  # in a row
        self._started = time.monotonic()
        # the server's, ahead of `monotonic`; ours until it is asked
        self._clock = time.time() - self._started
        self._maintenance = Maintenance(self)

    # -------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Report for work. Called when Celery is ready."""
        try:
            self._clock = server_time(self.client) - time.monotonic()
            self.report()
        except Exception as error:  # noqa: BLE001  whatever it is, housekeeping goes on trying
            log.warning("cannot report for work yet: %s", error)
        self._maintenance.start()

    def report(self) -> None:
        """Tell the registry that this worker lives, and what it does."""
        self._clock = self.registry.beat(self.info()) - time.monotonic()

    def shut_down(self) -> None:
        """SIGTERM, or a command to stop: nothing new; what runs ends, or is given back after a grace.

        Who is told again has no more time than that, however patient it was told to be at first.
        """
        if self.is_leaving:
            self.is_patient = False
        self.is_leaving = True
        if not (self.is_patient or self._is_hurrying):
            self._is_hurrying = True
            threading.Thread(target=self._hurry, name="hurry", daemon=True).start()

    def _hurry(self) -> None:
        """See to it that the worker is gone in time, whatever hangs: Redis, the broker, a file system, a task."""
        interrupt_at = time.monotonic() + self._grace_s
        kill_at = interrupt_at + INTERRUPT_S
        self._wait_for_runs(interrupt_at)
        self.interrupt_all()
        self._wait_for_runs(kill_at)
        for run in self.runs():
            run.is_interrupted = True  # it was us who killed it
            run.process.kill()
        time.sleep(max(0.0, kill_at - time.monotonic()))
        self._is_out_of_time.set()
        time.sleep(LAST_S)
        log.critical("the worker hangs; it ends now, and others take over what it held; it was here:")
        faulthandler.dump_traceback(file=2)  # standard error itself; Celery has put its log in its place
        os._exit(os.EX_TEMPFAIL)

    def _wait_for_runs(self, deadline: float) -> None:
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.1)

    def interrupt_all(self) -> None:
        for run in self.runs():
            run.interrupt()

    def close(self) -> None:
        """The last thing a worker does."""
        self._maintenance.stop()
        self._crew.dismiss_idle()
        self.studies.close()
        try:
            self.registry.leave(self.name)
            self.count_refused()
        except ExecutionError as error:
            log.warning("%s", error)

    def info(self) -> WorkerInfo:
        """This worker, for the registry."""
        return WorkerInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            concurrency=self.concurrency,
            started=self._started + self._clock,
            version=__version__,
            is_stopping=self.is_leaving,
            running=[
                RunningChunk(
                    study=r.study.id,
                    instance=r.chunk.instance,
                    lo=r.chunk.lo,
                    hi=r.chunk.hi,
                    since=r.since + self._clock,
                )
                for r in self.runs()
            ],
        )

    def runs(self) -> list[Run]:
        """What runs now."""
        with self._lock:
            return list(self._runs)

    # ----------------------------------------------------------------- tickets

    def handle(self, envelope: object) -> None:
        """Follow one ticket to its end. Never raises: whatever is wrong, the worker lives on."""
        try:
            ticket = open_ticket(envelope, self.config.key)
            study = self.studies.get(ticket["study"], ticket["workspace"], ticket["plan"])
            is_elsewhere = not study.is_served(ticket["instance"], self.queues, self.config)
            if is_elsewhere:
                self.refusals.note("a message in a queue of other steps; it was put into its own")
            if is_elsewhere or self.is_leaving:
                self.publisher.forward(study.workspace, ticket["instance"], envelope)
                return
            chunk = study.progress.take_ticket(
                ticket["ticket"], worker=self.name, num_workers=self.num_slots()
            )
            self._offer(study)
            self._work(study, chunk)
        except ForgedMessageError as error:
            self.refusals.note(str(error))
        except StaleTicketError:
            log.info("dropped a message that was handled before (%s)", ticket["instance"])
        except ProgressGoneError as error:
            log.warning("%s", error)
        except MerlinError as error:
            log.error("%s", error)
        except Exception:
            log.exception("a message led to an error that nobody foresaw")

    def _work(self, study: Study, chunk: Chunk | None) -> None:
        """Run a chunk, and what follows it, until it is another message's turn."""
        deadline = time.monotonic() + SLICE_S
        while chunk is not None:
            self._run(study, chunk)
            if self.is_leaving or time.monotonic() > deadline:
                return
            chunk = study.progress.take_among(
                study.served(self.queues, self.config), worker=self.name, num_workers=self.num_slots()
            )

    def count_refused(self) -> None:
        """Let `merlin doctor` know what was refused. Raises ExecutionError, and it is counted later."""
        if num := self.refusals.take():
            try:
                self.registry.count("refused", num)
            except ExecutionError:
                self.refusals.put_back(num)
                raise

    def publish(self, study: Study) -> int:
        """Publish tickets for whatever is ready and has none."""
        slots = self.num_slots()
        tickets = study.progress.tickets(max(4, 2 * slots), slots)
        return self.publisher.send(study.workspace, study.digest, tickets) if tickets else 0

    def _offer(self, study: Study) -> None:
        """Publish, if it can be done; if not, the sweep will, and what we have taken runs all the same."""
        try:
            self.publish(study)
        except ExecutionError as error:
            log.warning("%s", error)

    def num_slots(self) -> int:
        """Chunks that all workers run at a time, as of some seconds ago."""
        now = time.monotonic()
        if now - self._slots_at > SLOTS_S:
            self._slots_at = now
            try:
                self._slots = max(self.concurrency, self.registry.num_slots())
            except ExecutionError as error:
                log.warning("%s", error)
        return self._slots

    # ------------------------------------------------------------------ chunks

    def _run(self, study: Study, chunk: Chunk) -> None:
        run = self._begin(study, chunk)
        if run is None:
            return
        try:
            run.process.run(chunk)
            result = self._converse(run)
        except BaseException:
            run.process.kill()
            reap(run.process)
            raise
        finally:
            self._forget(run)
        if result is None:
            self._bury(run)
            return
        try:
            self._report(study, result)
        finally:
            self._let_go(run)

    def _begin(self, study: Study, chunk: Chunk) -> Run | None:
        """A process for the chunk; None when we are leaving, and the chunk is given back.

        Raises ExecutionError if the machine cannot start one (the chunk is given back), or Redis has lost the study.
        """
        session = self.insist(lambda: study.progress.session)
        try:
            run = self._crew.assign(study, chunk, session)
        except ExecutionError:
            self._is_out_of_time.wait(RETRY_S)  # or the same chunk is here again at once
            self._give_back(study, chunk)
            raise
        with self._lock:
            self._runs.add(run)
        if not self.is_leaving:
            return run
        self._forget(run)
        self._let_go(run)
        self._give_back(study, chunk)
        return None

    def _forget(self, run: Run) -> None:
        with self._lock:
            self._runs.discard(run)
        run.close()

    def _give_back(self, study: Study, chunk: Chunk) -> None:
        self.insist(lambda: study.progress.give_back(chunk))

    def _let_go(self, run: Run) -> None:
        """The process may run another chunk, if it was not told to end."""
        if run.is_interrupted or run.is_void or run.process.channel.is_closed:
            dismiss([run.process])
        else:
            self._crew.release(run)

    def _converse(self, run: Run) -> ChunkResult | None:
        """Listen until the chunk's result; None when the process ends, or is killed, without one."""
        process, kill_at = run.process, math.inf
        is_told = False
        while True:
            left_s = max(0.0, kill_at - time.monotonic())
            has_ended = run.wait(None if kill_at == math.inf else left_s)
            if run.is_void:
                process.kill()
                return None
            if run.is_interrupted and not is_told:
                is_told, kill_at = True, min(kill_at, time.monotonic() + INTERRUPT_S)
                process.channel.send({"op": "stop"})
            try:
                for message in process.channel.receive():
                    if message["op"] == "result":
                        return result_from_json(run.chunk, message)
                    self._heed(run, message)
            except ExecutionError as error:  # it is not sane any more
                process.is_ready, process.crash = True, str(error)
                process.kill()
                return None
            if has_ended:
                return None
            if run.error or process.crash or process.channel.is_closed:
                kill_at = min(kill_at, time.monotonic() + ENDING_S)
            if time.monotonic() >= kill_at:
                process.kill()
                kill_at = time.monotonic() + REAP_S

    def _heed(self, run: Run, message: Message) -> None:
        match message["op"]:
            case "ready":
                run.process.is_ready, self._num_stillborn = True, 0
            case "progress":
                run.process.ended, run.process.failed = message["ended"], message["failed"]
            case "commit":
                run.process.channel.send({"op": "go" if self._may_commit(run) else "void"})
            case "error":
                run.error = message["message"]
            case "crash":
                run.process.crash = message["message"]

    def _may_commit(self, run: Run) -> bool:
        """Whether the lease is still held; waits while Redis does not answer."""
        try:
            lost = self.insist(lambda: run.study.progress.beat([run.chunk], 0.0), lambda: not run.is_void)
        except ProgressGoneError:
            lost = [run.chunk]
        except ExecutionError as error:
            log.warning("%s", error)
            lost = [run.chunk]
        if lost:
            run.void()
        return not lost

    def insist(self, ask: Callable[[], T], is_wanted: Callable[[], bool] = lambda: True) -> T:
        """Ask Redis until it answers.

        Raises ProgressGoneError, and what it raised last when nobody wants it, or the worker must end.
        """
        told = -math.inf
        while True:
            try:
                return ask()
            except (ProgressUnreachableError, ProgressFullError) as error:
                if not is_wanted() or self._is_out_of_time.is_set():
                    raise
                if time.monotonic() - told >= TELL_S:
                    told = time.monotonic()
                    log.warning("%s", error)
                self._is_out_of_time.wait(RETRY_S)

    def _report(self, study: Study, result: ChunkResult) -> None:
        chunk = result.chunk
        what = f"tasks [{chunk.lo}, {chunk.hi}) of {chunk.instance}"
        if not self.insist(lambda: study.progress.finished(result, 0.0)):
            log.warning("%s were taken over by another worker", what)
            return
        log.info("%s ended after %.3g s%s", what, result.busy_s, f": {result.note}" if result.note else "")
        if result.stop == "stop_workers":
            self._stop_workers(study)
        self.follow_up(study)

    def _stop_workers(self, study: Study) -> None:
        """A task has asked for it: at once if its study is over, else after a while, in which more of it may end.

        The study is not stopped: what is left runs as soon as there are workers again.
        """
        is_over = self.insist(study.progress.state).state != "running"
        queues = {self.config.queue_name(i.queue) for i in study.workspace.plan.instances}
        names = [w.name for w in self.registry.workers() if queues & set(w.queues)]
        self.registry.send(names, "stop", in_s=0.0 if is_over else STOP_WORKERS_S)

    def _bury(self, run: Run) -> None:
        """The process has ended without a result."""
        process, study, chunk = run.process, run.study, run.chunk
        what = f"tasks [{chunk.lo}, {chunk.hi}) of {chunk.instance}"
        if run.is_void:
            reap(process)
            log.warning("%s were taken over by another worker, or their study has ended", what)
            return
        how = process.how_it_died()
        died = process.crash or how
        process.kill()  # what it has left behind
        process.close()
        if run.error:
            log.error("%s", run.error)
            self.insist(lambda: study.progress.stop(run.error, now=True))
        done = study.done(chunk)
        if run.error or run.is_interrupted:
            result = ChunkResult(chunk=chunk, runs=tuple(done))
            self.insist(lambda: study.progress.finished(result, 0.0))
        elif not process.is_ready:
            log.error("a worker process died at its start (%s): %s", died, process.log_tail())
            self.insist(lambda: study.progress.lost(chunk, done, 0.0, infrastructure=True))
            self._count_stillborn(process)
            self._is_out_of_time.wait(RETRY_S)
        else:
            log.warning("a worker process was lost with %s (%s); log: %s", what, died, process.log)
            self.insist(lambda: study.progress.lost(chunk, done, 0.0, signal=died))
            study.event("worker_lost", worker=process.name, pid=process.process.pid, died=died)
        self.follow_up(study)

    def _count_stillborn(self, process: WorkerProcess) -> None:
        """A machine on which no process can start would lose one chunk after the other: leave them to others."""
        self._num_stillborn += process.process.returncode >= 0
        if self._num_stillborn >= MAX_STILLBORN and not self.is_leaving:
            log.critical(
                "%d worker processes in a row ended at their start; this worker leaves. The last one said:\n%s",
                self._num_stillborn,
                process.log_tail(),
            )
            self.leave()

    def leave(self) -> None:
        """End this worker in Celery's own way, as SIGTERM does."""
        os.kill(os.getpid(), signal.SIGTERM)

    def recover(self, study: Study, chunk: Chunk) -> None:
        """A chunk whose lease ran out, now ours: settle what its worker wrote, put the rest back."""
        done = study.done(chunk)
        log.warning(
            "the worker of tasks [%d, %d) of %s has not been heard of for %g s; they run again",
            chunk.lo, chunk.hi, chunk.instance, self.lease_s,
        )  # fmt: skip
        study.progress.lost(chunk, done, 0.0, signal="its worker was lost", infrastructure=True)

    # --------------------------------------------------------------- the study

    def follow_up(self, study: Study) -> None:
        """After anything has ended: verdicts, new tickets, the end of the study."""
        study.flush()
        state = study.progress.state()
        if state.state == "complete":
            self.end(study, "run_finished", "")
        elif state.state == "stopped":
            self.end(study, "run_stopped", state.reason)
            if state.stop_now:
                self.interrupt(study)
        elif state.state == "running":
            self.publish(study)

    def end(self, study: Study, event: str, reason: str) -> None:
        """The study is over; one worker writes it down."""
        if self.registry.withdraw(study.id):
            try:
                study.event(event, reason=reason, host=socket.gethostname(), pid=os.getpid())
            except LedgerError:  # perhaps somebody else can write it down, or we later
                self.registry.advertise(study.info(study.progress.session, server_time(self.client)))
                raise
            log.info(
                "study %s: %s%s",
                study.workspace.path,
                event.replace("_", " "),
                f": {reason}" if reason else "",
            )
        if event == "run_finished":
            self.dismiss_idle(study)

    def dismiss_idle(self, study: Study) -> None:
        """End the idle processes of a study."""
        self._crew.dismiss_idle(study)

    def interrupt(
        self, study: Study, *, void: bool = False, instances: Mapping[str, object] | None = None
    ) -> None:
        """End what runs of a study (of some instances); with `void`, at once and without committing."""
        for run in self.runs():
            if run.study.id == study.id and (instances is None or run.chunk.instance in instances):
                run.void() if void else run.interrupt()
