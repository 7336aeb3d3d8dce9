"""A worker's housekeeping: one thread beats leases and obeys commands, another one sweeps the studies.

A sweep may have to read a large ledger or wait for a broker, and the leases must not wait for that. Any worker may
sweep any study of its user; a lock in Redis with a time limit lets one of them do it at a time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from merlin.errors import ExecutionError, MerlinError, ProgressGoneError
from merlin.execution.distributed.crew import Run
from merlin.execution.distributed.open_study import publish_again
from merlin.execution.distributed.queues import queue_depths
from merlin.execution.distributed.registry import BEAT_S, COMMAND_S, StudyInfo
from merlin.execution.distributed.study import Study

if TYPE_CHECKING:
    from merlin.execution.distributed.engine import Engine

log = logging.getLogger("merlin.worker")

TICK_S = 0.5
WATCH_S = 10.0  # after a command to drop: for so long we tell at every tick what we run
POSTPONE_S = 10.0  # a study with which something is wrong is left alone for so long
TELL_S = 30.0  # between two complaints about the same
STOP_S = 2.0  # for each thread to end
STUDIES_S = 3.0  # between two looks for new studies
REISSUE_S = 5.0  # work that nobody has taken for so long gets new tickets, if the queue is empty


class Maintenance:
    """The threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(tick,), name=name, daemon=True)
            for name, tick in (("beats", self._beat), ("sweeps", self._sweep_all))
        ]
        self._beat_every = engine.lease_s / 4
        self._beaten = self._registered = self._answered = time.monotonic()
        self._listed = -math.inf
        self._watch_until = -math.inf
        self._leave_at = math.inf  # when this worker ends, because a command says so
        self._sweep_from = -math.inf  # no lease is taken over before: its owner could not renew it
        self._advertised: dict[str, StudyInfo] = {}
        self._postponed: dict[str, float] = {}  # study -> until when
        self._obeyed: dict[str, float] = {}  # ids of commands, until when a copy could be taken for new

    def start(self) -> None:
        self._beaten = self._registered = self._answered = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The threads end; one that hangs is left alone."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=STOP_S)

    def _loop(self, tick: Callable[[float], None]) -> None:
        told: dict[str, float] = {}
        while not self._stop.wait(TICK_S):
            now = time.monotonic()
            try:
                tick(now)
            except MerlinError as error:
                told = {text: when for text, when in told.items() if now - when < TELL_S}
                if str(error) not in told:
                    told[str(error)] = now
                    log.warning("%s", error)
            except Exception:
                log.exception("housekeeping failed")

    # ------------------------------------------------------------------ leases

    def _beat(self, now: float) -> None:
        if now - self._answered > self._engine.lease_s / 2:  # Redis was away, or we were stopped
            self._engine.registry.count("outages")  # raises while Redis is still away
            log.warning("back after %.0f s without Redis", now - self._answered)
            self._sweep_from = now + 2 * self._beat_every
            self._beaten = -math.inf
        is_watched = now < self._watch_until
        if is_watched or now - self._beaten >= self._beat_every:
            self._beat_leases(now)
            self._beaten = now
        self._obey()
        if time.monotonic() >= self._leave_at:
            self._leave_at = math.inf
            self._end(at_once=False)
        self._engine.count_refused()
        self._answered = time.monotonic()
        if is_watched or now - self._registered >= BEAT_S:
            self._engine.report()
            self._registered = now
        self._follow_stops()

    def _beat_leases(self, now: float) -> None:
        """Renew the leases of what really runs; what is not ours any more is killed."""
        by_study: dict[Study, list[Run]] = {}
        for run in self._engine.runs():
            if run.is_stopped():
                self._let_run_out(run, now)
            else:
                run.stopped_since = None
                by_study.setdefault(run.study, []).append(run)
        for study, runs in by_study.items():
            try:
                lost = study.progress.beat([r.chunk for r in runs], 0.0)
            except ProgressGoneError:
                lost = [r.chunk for r in runs]
            leases = {chunk.lease for chunk in lost}
            for run in runs:
                if run.chunk.lease in leases:
                    run.void()

    def _let_run_out(self, run: Run, now: float) -> None:
        """The lease of a process that is stopped is not renewed; once it has run out, the process is in the way."""
        if run.stopped_since is None:
            run.stopped_since = now
        elif now - run.stopped_since > 2 * self._engine.lease_s:
            run.void()

    def _follow_stops(self) -> None:
        """A study that was stopped hard, or dropped: interrupt what runs of it here."""
        for study in {run.study for run in self._engine.runs()}:
            state = study.progress.state()
            if state.state == "dropped":
                self._engine.interrupt(study, void=True)
            elif state.stop_now:
                self._engine.interrupt(study)

    # ---------------------------------------------------------------- commands

    def _obey(self) -> None:
        commands, num_refused = self._engine.registry.receive(self._engine.name)
        if num_refused:
            self._engine.refusals.note("a command that was not sealed with this user's key", num=num_refused)
        now = time.monotonic()
        self._obeyed = {id: until for id, until in self._obeyed.items() if until > now}
        for command in commands:
            if command["id"] in self._obeyed:
                self._engine.refusals.note("a command that was sent before")
                continue
            self._obeyed[command["id"]] = now + 2 * COMMAND_S
            log.info("command: %s", command["op"])
            self._do(command)

    def _do(self, command: dict[str, Any]) -> None:
        match command["op"]:
            case "stop" if command.get("in_s"):
                self._leave_at = min(self._leave_at, time.monotonic() + command["in_s"])
            case "stop" | "stop_now":
                self._end(at_once=command["op"] == "stop_now")
            case "drop":
                self._watch_until = time.monotonic() + WATCH_S
                instances = command.get("instances")
                for run in self._engine.runs():
                    if run.study.id == command["study"] and (
                        not instances or run.chunk.instance in instances
                    ):
                        run.void()

    def _end(self, *, at_once: bool) -> None:
        """End this worker, in Celery's own way; with `at_once`, what runs is interrupted."""
        engine = self._engine
        if at_once:
            engine.interrupt_all()
        elif engine.is_leaving:
            return  # a second signal would say that there is a hurry
        else:
            engine.is_patient = True
        engine.leave()
        self._registered = -math.inf  # the next tick says that we are leaving

    # ------------------------------------------------------------------ sweeps

    def _sweep_all(self, now: float) -> None:
        if self._engine.is_leaving:
            return
        if now - self._listed >= STUDIES_S:
            self._listed = now
            found = {s.study_id: s for s in self._engine.registry.studies()}
            # one that is not advertised any more may be over, or Redis has lost its memory: its state tells
            self._advertised = {s.id: self._advertised[s.id] for s in self._known_open()} | found
        for info in list(self._advertised.values()):
            if now < self._postponed.get(info.study_id, -math.inf):
                continue
            try:
                self._attend(info, now)
            except MerlinError as error:  # its workspace is gone, its disk is full: the others go on
                self._postponed[info.study_id] = time.monotonic() + POSTPONE_S
                log.warning("cannot look after %s: %s", info.workspace, error)

    def _attend(self, info: StudyInfo, now: float) -> None:
        try:
            study = self._engine.studies.get(info.study_id, info.workspace, info.plan)
        except ExecutionError as error:
            log.debug("%s", error)
            return
        if self._engine.registry.sweep_lock(study.id, 2 * TICK_S):
            self._sweep(study, now)

    def _known_open(self) -> list[Study]:
        return [s for s in self._engine.studies.known() if s.id in self._advertised]

    def _sweep(self, study: Study, now: float) -> None:
        state = study.progress.state()
        if state.state != "gone":
            study.gone_since = None
        match state.state:
            case "gone":
                self._follow_loss(study, now)
            case "complete":
                study.flush()
                self._engine.end(study, "run_finished", "")
                self._forget(study)
            case "stopped":
                self._take_over(study, now)
                study.flush()
                self._engine.end(study, "run_stopped", state.reason)
                if not state.num_running:
                    self._forget(study)
            case "dropped":
                self._engine.registry.withdraw(study.id)
                self._forget(study)
            case "running":
                self._sweep_running(study, now)

    def _sweep_running(self, study: Study, now: float) -> None:
        self._take_over(study, now)
        study.flush()
        if now - study.reissued >= REISSUE_S:
            study.reissued = now
            self._reissue(study)
        self._engine.publish(study)

    def _take_over(self, study: Study, now: float) -> None:
        """Chunks whose workers have let their leases run out, though Redis was there to renew them."""
        is_in_touch = time.monotonic() - self._answered <= self._engine.lease_s / 2
        if is_in_touch and now >= self._sweep_from:
            for chunk in study.progress.expired(0.0, worker=self._engine.name):
                self._engine.recover(study, chunk)

    def _reissue(self, study: Study) -> None:
        """New tickets for ready work of which no message can be left."""
        instances = study.workspace.plan.instances
        depths = queue_depths(self._engine.config, sorted({i.queue for i in instances}))
        empty = [i.id for i in instances if not depths[i.queue].depth]
        if empty:
            study.progress.reissue(REISSUE_S, empty)

    def _follow_loss(self, study: Study, now: float) -> None:
        """Redis has lost the study's progress. Once its owners had time to notice, publish it from the ledger."""
        if study.gone_since is None:
            log.warning("Redis has lost the progress of %s", study.workspace.path)
            study.gone_since = now
            self._engine.interrupt(study, void=True)
        if now - study.gone_since < self._beat_every + 2:
            return
        study.gone_since = None
        match publish_again(study, self._engine):
            case "published":
                log.warning("published %s again from its ledger", study.workspace.path)
            case "over":
                log.warning("%s is over, says its ledger; it is not published again", study.workspace.path)
                self._forget(study)

    def _forget(self, study: Study) -> None:
        """The study is over; once nothing of it runs here, nothing is left of it."""
        if any(run.study.id == study.id for run in self._engine.runs()):
            return
        self._advertised.pop(study.id, None)
        self._engine.dismiss_idle(study)
        self._engine.studies.forget(study)
