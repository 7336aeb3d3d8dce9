"""Makes this worker the owner of studies without one, and publishes studies again that Redis has lost."""

from __future__ import annotations

import logging
import math
import random
import threading
import time

from merlin.base.files import was_removed
from merlin.errors import (
    MerlinError,
    OwnershipLostError,
    RedisFullError,
    RedisUnreachableError,
    StudyGoneError,
)
from merlin.execution.distributed.chunk_runs import ChunkRuns
from merlin.execution.distributed.contracts import Mailbox, Standing
from merlin.execution.distributed.open_study import publish_again
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.registry import StudyInfo
from merlin.execution.distributed.study import Studies, Study
from merlin.execution.distributed.tools import Tools

log = logging.getLogger("merlin.worker")

WAIT_S = 0.5  # for letters, in one round
TICK_S = 0.1  # between two checks of what is due
LIST_S = 3.0  # between two searches for new studies
ASK_S = 1.0  # between two requests of one worker for the ownership of a study, or longer with many workers:
ASKS_PER_S = 50.0  # requests of all workers together
NOTICE_S = 2.0  # after a beat of the workers; by then they have noticed that Redis lost a study
POSTPONE_S = 10.0  # before the next try with a study that had an error
RETRY_S = 1.0  # between two tries to reach Redis
STOP_S = 3.0  # for the last round of each study
TELL_S = 2.0  # of these for the notifications that are on their way


class Owners:
    """The ownerships of one worker, each with a thread, and one thread that searches for more."""

    def __init__(self, tools: Tools, studies: Studies, runs: ChunkRuns) -> None:
        self._tools, self._studies, self._runs = tools, studies, runs
        self._stop, self._wake = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._known: dict[str, StudyInfo] = {}  # studies that are not over, as far as we know
        self._sessions: dict[str, str] = {}  # study -> the run of the last message
        self._due: dict[str, float] = {}  # study -> when to ask for its ownership again
        self._gone_since: dict[str, float] = {}
        self._listed = -math.inf
        self._thread = threading.Thread(target=self._loop, name="owners", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Release the studies. Threads that hang are not waited for."""
        self._stop.set()
        self._wake.set()
        with self._lock:
            threads = [self._thread, *self._threads.values()]
        for thread in threads:
            if thread.is_alive():
                thread.join(timeout=STOP_S)

    def note_session(self, study_id: str, session: str) -> None:
        """Note that a message of this run came. With the first one, check at once whether the study has an owner."""
        if self._sessions.get(study_id) != session:
            self._sessions[study_id] = session
            self._listed = -math.inf
            self._due.pop(study_id, None)
            self._wake.set()

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self._check_studies(time.monotonic())
            except MerlinError as error:
                log.debug("%s", error)
            except Exception:
                log.exception("the search for studies failed")
            self._wake.wait(TICK_S if self._known else ASK_S)
            self._wake.clear()

    def _check_studies(self, now: float) -> None:
        if now - self._listed >= LIST_S:
            self._listed = now
            self._list()
        for info in list(self._known.values()):
            is_due = now >= self._due.get(info.study_id, 0.0)
            if self._stop.is_set() or info.study_id in self._threads or not is_due:
                continue
            try:
                self._ask_for_ownership(info, now)
            except (RedisFullError, RedisUnreachableError):
                raise
            except MerlinError as error:  # an error of one study, as a full disk, must not affect others
                self._due[info.study_id] = now + POSTPONE_S
                log.warning("cannot look after %s: %s", info.workspace, error)

    def _list(self) -> None:
        """List the studies. One that is not advertised may be over, or lost by Redis: its owner key shows which."""
        found = {info.study_id: info for info in self._tools.backend.registry.studies()}
        for study in self._studies.known():
            if study.id not in found and study.id not in self._known:
                self._forget(study.id)
        for info in list(self._known.values()):
            if info.study_id not in found and was_removed(info.workspace):  # so nobody can publish it again
                self._known.pop(info.study_id)
        self._known |= found

    def _ask_for_ownership(self, info: StudyInfo, now: float) -> None:
        study = self._studies.get(info.study_id, info.workspace, info.plan)
        mailbox = self._tools.backend.mailbox(info.study_id)
        try:
            standing = mailbox.own(info.session)
        except StudyGoneError:
            self._handle_loss(study, info, now)
            return
        self._gone_since.pop(info.study_id, None)
        if standing.is_over:
            self._forget(info.study_id)
        elif standing.is_ours:
            self._own(study, info, mailbox, standing)
        else:
            self._due[info.study_id] = now + self._ask_interval_s(standing.now)

    def _ask_interval_s(self, server_time: float) -> float:
        """The time between two requests of one worker for one study."""
        num_workers = self._tools.backend.registry.num_workers(server_time)
        return random.uniform(0.5, 1.0) * max(ASK_S, num_workers / ASKS_PER_S)

    def _forget(self, study_id: str) -> None:
        self._due[study_id] = time.monotonic() + ASK_S  # until its chunks here have ended
        if self._runs.forget(study_id):
            self._known.pop(study_id, None)
            self._due.pop(study_id, None)
            self._gone_since.pop(study_id, None)
            self._sessions.pop(study_id, None)
            self._studies.forget(study_id)

    # ------------------------------------------------------------- ownerships

    def _own(self, study: Study, info: StudyInfo, mailbox: Mailbox, standing: Standing) -> None:
        thread = threading.Thread(
            target=self._serve, args=(study, info, mailbox, standing), name=f"owner-{info.name}", daemon=True
        )
        with self._lock:
            self._threads[info.study_id] = thread
        log.info("this worker owns %s now", info.workspace)
        thread.start()

    def _serve(self, study: Study, info: StudyInfo, mailbox: Mailbox, standing: Standing) -> None:
        """Own a study until it is over or has another owner."""
        try:
            while not self._serve_while_connected(study, info, mailbox, standing):
                standing = self._reconnect(info, mailbox)
                if not standing.is_ours:
                    return
        except (OwnershipLostError, StudyGoneError) as error:
            log.warning("%s", error)
        except MerlinError as error:
            self._due[info.study_id] = time.monotonic() + POSTPONE_S
            log.warning("cannot look after %s: %s", info.workspace, error)
        except Exception:
            self._due[info.study_id] = time.monotonic() + POSTPONE_S
            log.exception("the owner of %s met an error that nobody foresaw", info.workspace)
        finally:
            with self._lock:
                self._threads.pop(info.study_id, None)
            self._wake.set()

    def _serve_while_connected(
        self, study: Study, info: StudyInfo, mailbox: Mailbox, standing: Standing
    ) -> bool:
        """Returns False if it is unknown what Redis has received: it did not answer, or has lost something."""
        try:
            ownership = Ownership(study, info.session, mailbox, standing, self._tools)
            try:
                while not (ownership.is_over or ownership.is_out_of_sync or self._stop.is_set()):
                    ownership.work(WAIT_S)
                if ownership.end:
                    log.info("study %s: %s", study.workspace.path, ownership.end)
                if ownership.is_out_of_sync:
                    return False
                if not ownership.is_over:
                    ownership.work(0.0)
                    ownership.wait_for_notices(TELL_S)
                    ownership.release()
                return True
            finally:
                ownership.close()
        except (RedisFullError, RedisUnreachableError) as error:
            log.warning("%s", error)
            return False

    def _reconnect(self, info: StudyInfo, mailbox: Mailbox) -> Standing:
        while not self._stop.wait(RETRY_S):
            try:
                return mailbox.own(info.session)
            except (RedisFullError, RedisUnreachableError):
                continue
        return Standing(is_ours=False, now=0.0)

    # ------------------------------------------------------------------- losses

    def _handle_loss(self, study: Study, info: StudyInfo, now: float) -> None:
        """Handle a study that Redis has lost. When its workers had time to notice, publish it from the ledger."""
        since = self._gone_since.setdefault(info.study_id, now)
        if since == now:
            log.warning("Redis has lost %s", info.workspace)
            self._runs.void(info.study_id)
        self._due[info.study_id] = now + ASK_S / 2
        if now - since < self._tools.lease_s / 4 + NOTICE_S:
            return
        self._gone_since.pop(info.study_id, None)
        match publish_again(study, self._tools):
            case "over":
                log.warning("%s is over, says its ledger; it is not published again", info.workspace)
                self._forget(info.study_id)
            case "published":
                log.warning("published %s again from its ledger", info.workspace)
                self._known.pop(info.study_id, None)  # its session is another one
                self._listed = -math.inf
                self._wake.set()
