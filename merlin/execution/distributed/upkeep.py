"""A worker's background thread: it renews leases, reports to the registry, and executes commands."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from merlin.errors import MerlinError, RedisFullError, RedisUnreachableError, StudyGoneError
from merlin.execution.distributed.chunk_runs import ChunkRuns
from merlin.execution.distributed.contracts import Registry
from merlin.execution.distributed.leaving import Leaving
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.registry import BEAT_S, COMMAND_S, Command
from merlin.execution.distributed.worker_pool import ChunkRun

log = logging.getLogger("merlin.worker")

TICK_S = 0.5
# just after the last chunk a command to leave is likely, and an allocation costs money until it is received
JUST_IDLE_S = 3.0
IDLE_TICK_S = 0.1
WATCH_S = 10.0  # after a command to drop, every tick reports the running chunks for this time
LOG_AGAIN_S = 30.0  # between two log lines with the same text
STOP_S = 2.0  # for the thread to end


class Upkeep:
    """The background thread.

    `report` reports the state of this worker to the registry; `is_useless` says whether it has no reason to stay;
    `sort_out` returns messages that find no room here.
    """

    def __init__(
        self,
        name: str,
        runs: ChunkRuns,
        registry: Registry,
        refusals: Refusals,
        leaving: Leaving,
        *,
        lease_s: float,
        report: Callable[[], None],
        is_useless: Callable[[float], bool],
        sort_out: Callable[[], None],
    ) -> None:
        self._name, self._runs, self._registry, self._refusals = name, runs, registry, refusals
        self._leaving, self._lease_s, self._report = leaving, lease_s, report
        self._is_useless, self._sort_out = is_useless, sort_out
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="upkeep", daemon=True)
        self._beat_every = lease_s / 4
        self._renewed = self._registered = self._answered = time.monotonic()
        self._watch_until = -math.inf
        self._leave_at = math.inf  # when this worker ends, by a command
        self._ran_at = -math.inf  # when a chunk was last seen to run
        self._logged: dict[str, float] = {}
        self._handled: dict[str, float] = {}  # id -> until when to refuse a copy of it

    def start(self) -> None:
        self._renewed = self._registered = self._answered = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; do not wait longer than `STOP_S`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_S)

    def _loop(self) -> None:
        ticked = time.monotonic()
        while not self._stop.wait(min(IDLE_TICK_S, TICK_S)):
            now = time.monotonic()
            if not self._is_due(now, ticked):
                continue
            try:
                self.tick(now)
            except MerlinError as error:
                self._log(error)
            except Exception:
                log.exception("housekeeping failed")
            ticked = time.monotonic()

    def _is_due(self, now: float, ticked: float) -> bool:
        """Whether the next tick is due. Ticks ask Redis, so they are less frequent than this look at running chunks."""
        if self._runs.all():
            self._ran_at = now
        elif now - self._ran_at < JUST_IDLE_S:
            return True
        return now - ticked >= TICK_S

    def _log(self, error: MerlinError) -> None:
        """Log an error, but not the same text again within `LOG_AGAIN_S`."""
        now, text = time.monotonic(), str(error)
        self._logged = {logged: when for logged, when in self._logged.items() if now - when < LOG_AGAIN_S}
        if text not in self._logged:
            self._logged[text] = now
            log.warning("%s", error)

    def tick(self, now: float) -> None:
        """Do everything that is due."""
        if now - self._answered > self._lease_s / 2:  # Redis did not answer, or this process was suspended
            self._registry.count("outages")  # raises while Redis still does not answer
            log.warning("back after %.0f s without Redis", now - self._answered)
            self._renewed = -math.inf
        is_watched = now < self._watch_until
        if is_watched or now - self._renewed >= self._beat_every:
            self._renew_leases(now)
            self._renewed = now
        self._run_commands()
        self._sort_out()
        if not self._leaving.is_leaving and self._leaving.must_leave():
            log.warning("the walltime is over in a few seconds; this worker leaves")
            self._leaving.warn()
            self._registered = -math.inf
        if time.monotonic() >= self._leave_at:
            self._leave_at = math.inf
            self._end(at_once=False)
        self.count_refused()
        self._answered = time.monotonic()
        if not self._leaving.is_leaving and self._is_useless(now):
            log.info("no open study needs this worker any more; it leaves")
            self._leaving.leave()
        if is_watched or now - self._registered >= BEAT_S:
            self._report()
            self._registered = now

    def count_refused(self) -> None:
        """Count refused messages in Redis, for `merlin doctor`. After an ExecutionError they are counted later."""
        if num := self._refusals.take():
            try:
                self._registry.count("refused", num)
            except MerlinError:
                self._refusals.put_back(num)
                raise

    # ------------------------------------------------------------------ leases

    def _renew_leases(self, now: float) -> None:
        """Renew the leases of chunks whose processes run; kill chunks whose lease is lost."""
        by_study: dict[str, list[ChunkRun]] = {}
        for run in self._runs.all():
            if run.is_stopped():
                self._let_lease_expire(run, now)
            else:
                run.stopped_since = None
                by_study.setdefault(run.study.id, []).append(run)
        for runs in by_study.values():
            leases = [run.chunk.lease for run in runs]
            try:
                lost = runs[0].leases.renew(leases)
            except StudyGoneError:
                lost = set(leases)
            except (RedisFullError, RedisUnreachableError):
                raise
            except MerlinError as error:  # damage affects only its own study
                self._log(error)
                continue
            for run in runs:
                if run.chunk.lease in lost:
                    run.void()

    def _let_lease_expire(self, run: ChunkRun, now: float) -> None:
        """Do not renew the lease of a suspended process; kill the process some time after it has expired."""
        if run.stopped_since is None:
            run.stopped_since = now
        elif now - run.stopped_since > 2 * self._lease_s:
            run.void()

    # ---------------------------------------------------------------- commands

    def _run_commands(self) -> None:
        commands, num_refused = self._registry.receive(self._name)
        if num_refused:
            self._refusals.note("a command that was not sealed with this user's key", num=num_refused)
        now = time.monotonic()
        self._handled = {id: until for id, until in self._handled.items() if until > now}
        for command in commands:
            if command.id in self._handled:
                self._refusals.note("a command that was sent before")
                continue
            self._handled[command.id] = now + 2 * COMMAND_S
            log.info("command: %s", command.op)
            self.execute(command)

    def execute(self, command: Command) -> None:
        """Execute a command."""
        match command.op:
            case "stop" if command.in_s:
                self._leave_at = min(self._leave_at, time.monotonic() + command.in_s)
            case "stop" | "stop_now":
                self._end(at_once=command.op == "stop_now")
            case "interrupt":
                self._runs.interrupt(command.study)
            case "drop":
                self._watch_until = time.monotonic() + WATCH_S
                self._runs.void(command.study, command.instances)

    def _end(self, *, at_once: bool) -> None:
        """End this worker in Celery's own way; with `at_once`, its chunks are interrupted."""
        if at_once:
            self._runs.interrupt()
        elif self._leaving.is_leaving:
            return  # a second signal would set a time limit
        else:
            self._leaving.is_patient = True
        self._leaving.leave()
        self._registered = -math.inf  # the next tick reports that we are leaving
