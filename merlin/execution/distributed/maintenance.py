"""A worker's housekeeping, in one thread: beats of leases, commands, and the sweep of studies.

Any worker may sweep any study of its user; a lock in Redis with a time limit lets one of them do it at a time.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
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
STUDIES_S = 3.0  # between two looks for new studies
REISSUE_S = 5.0  # work that nobody has taken for so long gets new tickets, if the queue is empty


class Maintenance:
    """The thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="maintenance", daemon=True)
        self._beat_every = engine.lease_s / 4
        self._beaten = self._registered = self._listed = self._answered = time.monotonic()
        self._sweep_from = 0.0  # no lease is taken over before: its owner could not renew it
        self._advertised: dict[str, StudyInfo] = {}
        self._obeyed: dict[
            str, float
        ] = {}  # ids of commands, until when a copy of them could be taken for new

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._tick()
                self._answered = time.monotonic()
            except MerlinError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("housekeeping failed")

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._answered > self._engine.lease_s / 2:  # Redis was away, or we were stopped
            self._engine.registry.count("outages")  # raises while Redis is still away
            log.warning("back after %.0f s without Redis", now - self._answered)
            self._sweep_from = now + 2 * self._beat_every
            self._beaten = 0.0
        if now - self._beaten >= self._beat_every:
            self._beat_leases()
            self._beaten = now
        self._follow_stops()
        self._obey()
        if now - self._registered >= BEAT_S:
            self._engine.registry.beat(self._engine.info())
            self._registered = now
        if not self._engine.is_leaving:
            self._sweep_all(now)

    # ------------------------------------------------------------------ leases

    def _beat_leases(self) -> None:
        """Renew the leases of what really runs; what is not ours any more is killed."""
        by_study: dict[Study, list[Run]] = {}
        for run in self._engine.runs():
            if not run.is_stopped():
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
            log.error("refused %d commands that were not sealed with this user's key", num_refused)
            self._engine.registry.count("refused", num_refused)
        now = time.monotonic()
        self._obeyed = {id: until for id, until in self._obeyed.items() if until > now}
        for command in commands:
            if command["id"] in self._obeyed:
                log.error("refused a command that was sent before")
                self._engine.registry.count("refused")
                continue
            self._obeyed[command["id"]] = now + 2 * COMMAND_S
            log.info("command: %s", command["op"])
            self._do(command)

    def _do(self, command: dict[str, Any]) -> None:
        engine = self._engine
        match command["op"]:
            case "stop" | "stop_now":
                engine.is_patient = command["op"] == "stop"
                if command["op"] == "stop_now":
                    engine.interrupt_all()
                engine.registry.beat(engine.info())
                os.kill(os.getpid(), signal.SIGTERM)  # Celery's own way to end
            case "drop":
                instances = command.get("instances")
                for run in engine.runs():
                    if run.study.id == command["study"] and (
                        not instances or run.chunk.instance in instances
                    ):
                        run.void()

    # ------------------------------------------------------------------ sweeps

    def _sweep_all(self, now: float) -> None:
        if now - self._listed >= STUDIES_S or not self._advertised:
            self._listed = now
            found = {s.study_id: s for s in self._engine.registry.studies()}
            # one that is not advertised any more may be over, or Redis has lost its memory: its state tells
            self._advertised = {s.id: self._advertised[s.id] for s in self._known_open()} | found
        for info in list(self._advertised.values()):
            try:
                study = self._engine.studies.get(info.study_id, info.workspace, info.plan)
            except ExecutionError as error:
                log.debug("%s", error)
                continue
            if self._engine.registry.sweep_lock(study.id, 2 * TICK_S):
                self._sweep(study, now)

    def _known_open(self) -> list[Study]:
        return [s for s in self._engine.studies.known() if s.id in self._advertised]

    def _sweep(self, study: Study, now: float) -> None:
        state = study.progress.state()
        match state.state:
            case "gone":
                self._follow_loss(study, now)
            case "complete":
                study.flush()
                self._engine.end(study, "run_finished", "")
                self._forget(study)
            case "stopped":
                study.flush()
                self._engine.end(study, "run_stopped", state.reason)
                if not state.num_running:
                    self._forget(study)
            case "dropped":
                self._engine.registry.withdraw(study.id)
                self._forget(study)
            case "running":
                study.gone_since = None
                self._sweep_running(study, now)

    def _sweep_running(self, study: Study, now: float) -> None:
        if now >= self._sweep_from:
            for chunk in study.progress.expired(0.0):
                self._engine.recover(study, chunk)
        study.flush()
        if now - study.reissued >= REISSUE_S:
            study.reissued = now
            self._reissue(study)
        self._engine.publish(study)

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
        if now - study.gone_since >= self._beat_every + 2:
            study.gone_since = None
            if publish_again(study, self._engine):
                log.warning("published %s again from its ledger", study.workspace.path)

    def _forget(self, study: Study) -> None:
        self._advertised.pop(study.id, None)
        if not any(run.study is study for run in self._engine.runs()):
            self._engine.studies.forget(study)
