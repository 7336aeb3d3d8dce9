"""Follows tickets: claims a chunk, runs it in a worker process, reports, and publishes what became ready."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from merlin import __version__
from merlin.config.seal import unseal
from merlin.errors import (
    ExecutionError,
    ForgedMessageError,
    MerlinError,
    ProgressFullError,
    ProgressGoneError,
    ProgressUnreachableError,
    StaleTicketError,
)
from merlin.execution.distributed.connect import make_client, server_time
from merlin.execution.distributed.crew import Crew, Run, dismiss
from merlin.execution.distributed.publish import VERSION, Publisher
from merlin.execution.distributed.registry import Registry, RunningChunk, WorkerInfo
from merlin.execution.distributed.study import Studies, Study
from merlin.execution.wire import result_from_json
from merlin.study.schedule import LEASE_S
from merlin.study.tasks import Chunk, ChunkResult

if TYPE_CHECKING:
    from celery import Celery

    from merlin.config.model import Config

log = logging.getLogger("merlin.worker")

T = TypeVar("T")
SLICE_S = 10.0  # a message leads to work for so long; then others have their turn
RETRY_S = 1.0  # between two tries to reach Redis
STOP_GRACE_S = 10.0  # after SIGTERM, for chunks to end by themselves; then they are interrupted,
INTERRUPT_S = 10.0  # and after this killed
SLOTS_S = 5.0  # for so long the number of slots of all workers is not asked again


def lease_s() -> float:
    """Seconds of a lease: 60, or MERLIN_LEASE_S."""
    text = os.environ.get("MERLIN_LEASE_S", "")
    try:
        return max(1.0, float(text)) if text else LEASE_S
    except ValueError:
        raise ExecutionError(f"MERLIN_LEASE_S must be seconds, not {text!r}") from None


class Engine:
    """The work of one Celery worker; its threads call `handle`."""

    def __init__(
        self, config: Config, app: Celery, *, name: str, concurrency: int, queues: Sequence[str]
    ) -> None:
        from merlin.execution.distributed.maintenance import Maintenance

        self.config, self.name, self.concurrency, self.queues = config, name, concurrency, list(queues)
        self.client = make_client(config.backend)
        self.registry = Registry(self.client, config)
        self.publisher = Publisher(config, app)
        self.lease_s = lease_s()
        self.studies = Studies(self.client, config.namespace, lease_s=self.lease_s)
        self.is_leaving = False  # takes nothing more
        self.is_patient = False  # waits for what runs, however long it takes
        self._crew = Crew(name.replace("/", "_"), concurrency)
        self._lock = threading.Lock()
        self._runs: set[Run] = set()
        self._slots, self._slots_at = concurrency, 0.0
        self._started = 0.0
        self._maintenance = Maintenance(self)

    # -------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Report for work. Called when Celery is ready."""
        try:
            self._started = server_time(self.client)
            self.registry.beat(self.info())
        except Exception as error:  # noqa: BLE001  whatever it is, housekeeping goes on trying
            log.warning("cannot report for work yet: %s", error)
        self._maintenance.start()

    def shut_down(self) -> None:
        """SIGTERM, or a command to stop: nothing new; what runs ends, or is given back after a grace."""
        if self.is_leaving:
            return
        self.is_leaving = True
        if not self.is_patient:
            threading.Thread(target=self._hurry, name="hurry", daemon=True).start()

    def _hurry(self) -> None:
        grace = float(os.environ.get("MERLIN_STOP_GRACE_S", STOP_GRACE_S))
        deadline = time.monotonic() + grace
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.interrupt_all()
        deadline = time.monotonic() + INTERRUPT_S
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.1)
        for run in self.runs():
            run.process.kill()

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
            started=self._started,
            version=__version__,
            is_stopping=self.is_leaving,
            running=[
                RunningChunk(
                    study=r.study.id, instance=r.chunk.instance, lo=r.chunk.lo, hi=r.chunk.hi, since=r.since
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
        body = self._open(envelope)
        if body is None:
            return
        try:
            study = self.studies.get(body["study"], body["workspace"], body["plan"])
            if self.is_leaving:
                self.publisher.forward(study.workspace, body["instance"], envelope)
                return
            chunk = study.progress.take_ticket(body["ticket"], worker=self.name, num_workers=self.num_slots())
            self.publish(study)
            self._work(study, chunk)
        except StaleTicketError:
            log.info("dropped a message that was handled before (%s)", body["instance"])
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

    def _open(self, envelope: object) -> dict[str, Any] | None:
        try:
            body = unseal(envelope, self.config.key)
            if body.get("v") != VERSION:
                raise ForgedMessageError(
                    f"a message of version {body.get('v')!r}; this worker knows {VERSION}"
                )
            for name in ("study", "workspace", "plan", "instance", "ticket"):
                if not isinstance(body.get(name), str):
                    raise ForgedMessageError(f"a message without {name}")
        except ForgedMessageError as error:
            log.error("refused: %s", error)
            self._count_refused()
            return None
        return body

    def _count_refused(self) -> None:
        try:
            self.registry.count("refused")
        except ExecutionError as error:
            log.warning("%s", error)

    def publish(self, study: Study) -> int:
        """Publish tickets for whatever is ready and has none."""
        slots = self.num_slots()
        tickets = study.progress.tickets(max(4, 2 * slots), slots)
        return self.publisher.send(study.workspace, study.digest, tickets) if tickets else 0

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
        session = study.progress.session
        try:
            process = self._crew.acquire(study, session)
        except ExecutionError:
            study.progress.give_back(chunk)
            raise
        run = Run(study, chunk, process)
        with self._lock:
            self._runs.add(run)
        try:
            process.run(chunk)
            result = self._converse(run)
        finally:
            with self._lock:
                self._runs.discard(run)
            run.close()
        if result is None:
            self._bury(run)
        else:
            self._report(study, result)
            if run.is_interrupted or process.channel.is_closed:
                dismiss(process)
            else:
                self._crew.release(study, session, process)

    def _converse(self, run: Run) -> ChunkResult | None:
        """Listen until the chunk's result; None when the process ends without one."""
        process, is_told = run.process, False
        while True:
            has_ended = run.wait()
            if run.is_void:
                process.kill()
                return None
            if run.is_interrupted and not is_told:
                is_told = True
                process.channel.send({"op": "stop"})
            for message in process.channel.receive():
                match message["op"]:
                    case "ready":
                        process.is_ready = True
                    case "progress":
                        process.ended, process.failed = message["ended"], message["failed"]
                    case "commit":
                        process.channel.send({"op": "go" if self._may_commit(run) else "void"})
                    case "result":
                        return result_from_json(run.chunk, message)
                    case "error":
                        run.error = message["message"]
                    case "crash":
                        process.crash = message["message"]
            if has_ended:
                return None

    def _may_commit(self, run: Run) -> bool:
        """Whether the lease is still held; waits while Redis does not answer."""
        try:
            lost = self.insist(lambda: run.study.progress.beat([run.chunk], 0.0), lambda: not run.is_void)
        except ProgressGoneError:
            lost = [run.chunk]
        if lost:
            run.is_void = True
        return not lost

    def insist(self, ask: Callable[[], T], is_wanted: Callable[[], bool] = lambda: True) -> T:
        """Ask Redis until it answers. Raises ProgressGoneError, and what it raised last when nobody wants it."""
        while True:
            try:
                return ask()
            except (ProgressUnreachableError, ProgressFullError) as error:
                if not is_wanted():
                    raise
                log.warning("%s", error)
                time.sleep(RETRY_S)

    def _report(self, study: Study, result: ChunkResult) -> None:
        chunk = result.chunk
        what = f"tasks [{chunk.lo}, {chunk.hi}) of {chunk.instance}"
        if not self.insist(lambda: study.progress.finished(result, 0.0)):
            log.warning("%s were taken over by another worker", what)
            return
        log.info("%s ended after %.3g s%s", what, result.busy_s, f": {result.note}" if result.note else "")
        self.follow_up(study)
        if result.stop == "stop_workers":
            queues = {self.config.queue_name(i.queue) for i in study.workspace.plan.instances}
            names = [w.name for w in self.registry.workers() if queues & set(w.queues)]
            self.registry.send(names, "stop")

    def _bury(self, run: Run) -> None:
        """The process has ended without a result."""
        process, study, chunk = run.process, run.study, run.chunk
        died = process.how_it_died()
        process.kill()
        process.close()
        what = f"tasks [{chunk.lo}, {chunk.hi}) of {chunk.instance}"
        if run.is_void:
            log.warning("%s were taken over by another worker, or their study has ended", what)
            return
        if run.error:
            log.error("%s", run.error)
            study.progress.stop(run.error, now=True)
        done = study.done(chunk)
        if run.error or run.is_interrupted:
            result = ChunkResult(chunk=chunk, runs=tuple(done))
            self.insist(lambda: study.progress.finished(result, 0.0))
        elif not process.is_ready:
            log.error("a worker process died at its start (%s): %s", died, process.log_tail())
            self.insist(lambda: study.progress.lost(chunk, done, 0.0, infrastructure=True))
            time.sleep(RETRY_S)
        else:
            log.warning("a worker process was lost with %s (%s); log: %s", what, died, process.log)
            study.event("worker_lost", worker=process.name, pid=process.process.pid, died=died)
            self.insist(lambda: study.progress.lost(chunk, done, 0.0, signal=died))
        self.follow_up(study)

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
            study.event(event, reason=reason, host=socket.gethostname(), pid=os.getpid())
            log.info(
                "study %s: %s%s",
                study.workspace.path,
                event.replace("_", " "),
                f": {reason}" if reason else "",
            )
        if event == "run_finished":
            self._crew.dismiss_idle(study)

    def interrupt(
        self, study: Study, *, void: bool = False, instances: Mapping[str, object] | None = None
    ) -> None:
        """End what runs of a study (of some instances); with `void`, at once and without committing."""
        for run in self.runs():
            if run.study.id == study.id and (instances is None or run.chunk.instance in instances):
                run.void() if void else run.interrupt()
