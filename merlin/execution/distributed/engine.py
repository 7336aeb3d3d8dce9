"""The work of one Celery worker: it takes the offers that messages announce, and runs their chunks."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from merlin import __version__
from merlin.batch.here import Here
from merlin.errors import ExecutionError, ForgedMessageError, MerlinError, StudyGoneError
from merlin.execution.distributed.admission import Admission, Admitted, Arrival
from merlin.execution.distributed.chunk_runs import ChunkRuns
from merlin.execution.distributed.contracts import Backend, Carrier
from merlin.execution.distributed.idle_watch import IdleWatch
from merlin.execution.distributed.leaving import Leaving, lease_s
from merlin.execution.distributed.messages import open_chunk, open_notice
from merlin.execution.distributed.owners import Owners
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.registry import RunningChunk, WorkerInfo
from merlin.execution.distributed.slots import Slots
from merlin.execution.distributed.study import Studies
from merlin.execution.distributed.tools import Tools
from merlin.execution.distributed.upkeep import Upkeep
from merlin.execution.distributed.worker_pool import StartProcess, WorkerPool
from merlin.execution.machine import Machine, this_machine
from merlin.execution.places import Places
from merlin.execution.pool import WorkerProcess
from merlin.execution.walltime import Walltime

if TYPE_CHECKING:
    from merlin.config.model import Config

log = logging.getLogger("merlin.worker")

T = TypeVar("T")


class Engine:
    """The work of one Celery worker; its threads call `handle`."""

    def __init__(
        self,
        config: Config,
        backend: Backend,
        carrier: Carrier,
        *,
        name: str,
        concurrency: int,
        queues: Sequence[str],
        refusals: Refusals | None = None,
        leaving: Leaving | None = None,
        walltime: Walltime | None = None,
        here: Here | None = None,
        first_wait_s: float | None = None,
        start_process: StartProcess = WorkerProcess,
        machine: Machine | None = None,
        slots: Slots | None = None,
    ) -> None:
        """`here`: where it runs; `first_wait_s`: how long it waits for a first study, None if it does not leave."""
        self._config, self._backend, self._carrier = config, backend, carrier
        self._name, self._concurrency, self._queues = name, concurrency, list(queues)
        self._here = here or Here(host=socket.gethostname(), cores=0)
        self._registry = backend.registry
        self._refusals = refusals or Refusals()
        self._walltime = walltime or Walltime()
        self.leaving = leaving or Leaving(self._walltime)
        self._studies = Studies()
        self._pool = WorkerPool(name.replace("/", "_"), concurrency, start_process, self._walltime)
        self._machine = machine or this_machine(os.environ)
        self._admission = Admission(Places(self._machine, concurrency), concurrency, slots)
        self._runs = ChunkRuns(name, self._pool, self.leaving, config.key, self._here.host)
        self._upkeep = Upkeep(
            name, self._runs, self._registry, self._refusals, self.leaving,
            lease_s=lease_s(), report=self.report, is_useless=self._is_useless,
            sort_out=self._return_waiting,
        )  # fmt: skip
        self._idle_watch = None if first_wait_s is None else self._watch_for_idleness(first_wait_s)
        tools = Tools(config=config, backend=backend, carrier=carrier, lease_s=lease_s())
        self._owners = Owners(tools, self._studies, self._runs)
        self._started = time.monotonic()
        # server time minus `monotonic`; our own clock until the server has answered
        self._clock = time.time() - self._started

    def _watch_for_idleness(self, first_wait_s: float) -> IdleWatch:
        return IdleWatch(
            self._registry, self._config, self.info, self.report, self._server_time, first_wait_s
        )

    # -------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Register, and start the background threads. Called when Celery is ready."""
        try:
            self._clock = self._backend.time() - time.monotonic()
            self._registry.leave(self._name)  # commands to a dead worker of this name are not for this one
            self.report()
        except Exception as error:  # noqa: BLE001  `upkeep` tries again
            log.warning("cannot report for work yet: %s", error)
        self._upkeep.start()
        self._owners.start()

    def report(self) -> None:
        """Report to the registry that this worker is alive, and what it runs."""
        self._clock = self._registry.beat(self.info()) - time.monotonic()

    def shut_down(self) -> None:
        """Shut down after SIGTERM or a command to stop."""
        self.leaving.begin(lambda: bool(self._runs.all()), self._runs.interrupt, self._runs.kill)

    def close(self) -> None:
        """Release the studies, end the processes and leave the registry. The last call."""
        self._owners.stop()
        self._upkeep.stop()
        self._pool.dismiss_idle()
        try:
            self._return_waiting()
            self._registry.leave(self._name)
            self._upkeep.count_refused()
        except ExecutionError as error:
            log.warning("%s", error)

    def info(self) -> WorkerInfo:
        """The description of this worker for the registry."""
        is_announced = self._idle_watch is not None and self._idle_watch.is_announced
        return WorkerInfo(
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            concurrency=self._concurrency,
            started=self._started + self._clock,
            version=__version__,
            cores=len(self._machine.cores),
            gpus=list(self._machine.gpus),
            ends=self._ends(),
            node=self._here.host if self._here.job else "",
            scheduler=self._here.scheduler,
            job=self._here.job,
            num_nodes=self._here.num_nodes,
            is_stopping=self.leaving.is_leaving or is_announced,
            running=[
                RunningChunk(
                    study=r.study.id,
                    instance=r.chunk.instance,
                    lo=r.chunk.lo,
                    hi=r.chunk.hi,
                    since=r.since + self._clock,
                )
                for r in self._runs.all()
            ],
        )

    def _server_time(self) -> float:
        return time.monotonic() + self._clock

    def _is_useless(self, now: float) -> bool:
        """Whether it has no reason to stay."""
        return self._idle_watch is not None and self._idle_watch.is_useless(now)

    def _ends(self) -> float | None:
        """When the walltime is over, by the server's clock."""
        ends = self._walltime.ends
        return None if ends is None else max(0.0, ends - time.time() + self._server_time())

    # ---------------------------------------------------------------- messages

    def handle(self, envelope: dict[str, str]) -> None:
        """Take the offer that a message announces, and run it. Never raises, so that the worker continues."""
        admitted = self._guarded(lambda: self._enter(envelope))
        while admitted is not None:
            current = admitted
            self._guarded(lambda: self._take_and_run(current))  # noqa: B023
            admitted = self._admission.left(current)

    def _guarded(self, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except ForgedMessageError as error:
            self._refusals.note(str(error))
        except StudyGoneError as error:
            log.warning("%s", error)
        except MerlinError as error:
            log.error("%s", error)
        except Exception:
            log.exception("a message led to an error that nobody foresaw")
        return None

    def _enter(self, envelope: dict[str, str]) -> Admitted | None:
        """Check a message, and find room for its chunk; None if there is nothing to do now."""
        notice = open_notice(envelope, self._config.key)
        study = self._studies.get(notice.study, notice.workspace, notice.plan)
        arrival = Arrival(notice=notice, study=study, envelope=envelope)
        is_elsewhere = self._config.queue_name(arrival.instance.queue) not in self._queues
        if is_elsewhere:
            self._refusals.note("a message in a queue of other steps; it was put into its own")
        if is_elsewhere or self.leaving.is_leaving:
            self._send_back(arrival)
            return None
        self._owners.note_session(notice.study, notice.session)
        entered = self._admission.enter(arrival)
        if isinstance(entered, Arrival):
            self._send_back(entered)
            return None
        return entered

    def _send_back(self, arrival: Arrival) -> None:
        self._carrier.send(arrival.instance.queue, [arrival.envelope])

    def _return_waiting(self) -> None:
        """Put messages back that find no room here; all of them when this worker ends."""
        if self.leaving.is_leaving:
            arrivals = self._admission.close()
        else:
            arrivals = self._admission.to_return(time.monotonic())
        for arrival in arrivals:
            self._send_back(arrival)

    def _take_and_run(self, admitted: Admitted) -> None:
        notice, study = admitted.arrival.notice, admitted.arrival.study
        if self.leaving.is_leaving:
            self._send_back(admitted.arrival)
            return
        leases = self._backend.leases(notice.study)
        text = leases.take(notice.lease, self._name)
        if text is None:
            log.info("dropped a message that was handled before (%s)", notice.instance)
            return
        chunk = open_chunk(text, notice.study, notice.lease, self._config.key)
        if not self._walltime.has_time_for(chunk.need_s) or self._here.host in chunk.avoid:
            self._runs.decline(study, leases, chunk)
            return
        if self._idle_watch is not None:
            self._idle_watch.note_work()
        self._runs.run(study, notice.session, leases, chunk, admitted.assignment)
