"""The work of a study's owner: read the mailbox, let the scheduler decide, offer chunks, write the ledger.

One of the processes that serve a study is its owner (see `owners`). A command that changes a study becomes its owner
for a moment. A new owner starts from the ledger, from the offers and leases, and from the letters that the previous
owner has not handled. So an owner may be killed, suspended or disconnected at any moment. If it is unclear what Redis
has received, the ownership starts again. What the last owner has left is read in `legacy`, the workers are counted in
`workforce`, and messages are sent in `offer_messages`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

from merlin.base.ranges import Range, merged
from merlin.errors import (
    ExecutionError,
    LedgerError,
    OwnershipLostError,
    RedisFullError,
    RedisUnreachableError,
    StudyGoneError,
)
from merlin.execution.conductor import QUARANTINED, Conductor, next_attempt
from merlin.execution.distributed.contracts import MAX_LETTERS, Letter, Mailbox, Standing
from merlin.execution.distributed.legacy import all_letters, handouts_in, legacy_of, report_in
from merlin.execution.distributed.messages import seal_chunk
from merlin.execution.distributed.offer_messages import OfferMessages
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.execution.distributed.workforce import Workforce
from merlin.execution.notices import Notices
from merlin.execution.recorded import described
from merlin.execution.step_jobs import StepJobs
from merlin.ledger.session import session_start
from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.owner import Handout
from merlin.plan.pieces import Run, pieces_of
from merlin.plan.reports import ChunkReport
from merlin.plan.take_over import take_over
from merlin.plan.tasks import Chunk, Outcome

log = logging.getLogger("merlin.worker")

TARGET_S = 3.0  # work per chunk, or more with many workers
MAX_OFFERS = 300  # per round; then letters are read again
RENEW_S = 0.8  # between two renewals of the ownership
EXPIRE_S = 0.5  # between two checks for expired leases
REISSUE_S = 5.0  # an offer that nobody has taken gets a new message after this time, if its queue is empty
RETRY_S = 1.0  # after an error of the disk
TELL_S = 0.2  # for letters, while notifications are sent
MAX_TROUBLE_S = 10.0  # of such errors; then somebody else may own the study
MAX_TAKE_OVER_S = 600.0  # to read the ledger; a process that takes longer hangs, and does not stay the owner
ENDS = ("run_stopped", "run_finished")  # events
INTERRUPT_AGAIN_S = 5.0  # between two interrupts of a stopped study: a process may have been starting
# errors that the next letter would raise, too
_NOT_LETTER_ERRORS = (LedgerError, OwnershipLostError, StudyGoneError, RedisFullError, RedisUnreachableError)
HAND_ON_S = 30.0  # after so long an owner that cannot submit the study's jobs lets others try


class Ownership:
    """One ownership of one study. The caller has become the owner through `mailbox`. Only one thread uses it."""

    def __init__(
        self, study: Study, session: str, mailbox: Mailbox, standing: Standing, tools: Tools
    ) -> None:
        """Take over. Raises OwnershipLostError, StudyGoneError, LedgerError, or another ExecutionError."""
        self._study, self._mailbox, self._tools = study, mailbox, tools
        self._began = self._renewed = self._wrote = time.monotonic()
        self._clock = standing.now - self._began  # server time minus `monotonic`
        self._read = standing.read or "0"
        self._is_read = True  # the server knows `_read`
        self._offered = 0.0  # server time of the last offers
        self._has_more = False  # there is more to offer or to read: the next round does not wait
        self._workforce = Workforce(study, tools)
        self._look_for_late = self._look_for_overdue = self._look_for_survivors = 0.0
        self._look_for_lost = self._began
        self._missing: set[str] = set()  # leases that the server did not know at the last check
        self._is_stopped = False  # the end of the run is recorded
        self._has_reset = False  # tasks that had ended run again
        self.end = ""  # how the run has ended, if this process recorded it
        self.is_over = False
        self.is_out_of_sync = False  # our state and the server's do not match: start again
        self._messages = OfferMessages(study, session, tools)
        self._conductor = Conductor(study.workspace, session)
        self._jobs = StepJobs(study.workspace, session, recorded=self._done, guard=self._renew)
        say = partial(log.warning, "%s: %s", study.workspace.path)
        self._notices = Notices(study.workspace, self._conductor.note, self._conductor.read, say)
        try:
            with self._renewing():
                self._take_over()
            self._write()
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------- take over

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Stay the owner while a large ledger is read."""
        is_done = threading.Event()

        def renew() -> None:
            with suppress(ExecutionError):  # the next step will raise it, too
                while not is_done.wait(RENEW_S) and time.monotonic() - self._began < MAX_TAKE_OVER_S:
                    self._mailbox.renew()

        thread = threading.Thread(target=renew, name="renew", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()

    def _take_over(self) -> None:
        study, mailbox, session = self._study, self._mailbox, self._conductor.session
        key = self._tools.config.key
        # before the letters: a chunk that ends in between is in both
        handouts, forged = handouts_in(mailbox, study.id, key)
        handouts += [
            Handout(chunk=job.chunk, since=0.0, worker=f"job {job.id}") for job in self._jobs.adopt()
        ]
        found = self._conductor.read()  # also before the letters, which say who took the chunks
        if found.has_later_run(session):  # for example with --local, while the servers were down
            self._tools.backend.registry.withdraw(study.id, session)
            mailbox.close()
            raise StudyGoneError(f"another run of {study.workspace.path} has begun; this one is over")
        legacy = legacy_of(study, session, found, handouts, all_letters(mailbox), self._read, key)
        self.owner, void = take_over(
            study.workspace.plan,
            legacy,
            first_attempt=next_attempt(found, session),
            name=f"{secrets.token_hex(4)}.",
            min_chunk_s=TARGET_S,
        )
        scheduler = self._conductor.scheduler = self.owner.scheduler
        self._notices.start(since=session_start(session, time.time()))
        mailbox.void([*forged, *void])
        ends = [event for event in found.events(session) if event.kind in ENDS]
        if ends and not scheduler.is_complete:  # the process that recorded it could not update the servers
            self._is_stopped = True
            end = ends[-1].data
            scheduler.stop(str(end.get("reason", "")) or "stopped", now=bool(end.get("now")))
            self._tools.backend.registry.withdraw(study.id, session)

    # ------------------------------------------------------------------- rounds

    def work(self, wait_s: float) -> None:
        """Do one round: handle the letters that arrive within `wait_s`, and offer chunks.

        Raises LedgerError if the ledger could not be written for a while; another machine may be able to.
        """
        retry = self.owner.scheduler.next_wakeup()
        if retry is not None and retry > self._offered:  # one that is due waits for a free slot
            wait_s = min(wait_s, max(0.0, retry - self._now()))
        try:
            self.settle(wait_s)
        except LedgerError as error:  # its records are kept, and nothing is offered meanwhile
            if time.monotonic() - self._wrote >= MAX_TROUBLE_S:
                self.release()
                raise
            log.warning("%s", error)
            time.sleep(RETRY_S)
            return
        self._wrote = time.monotonic()
        if not (self.is_over or self.is_out_of_sync):
            self._look_after_jobs()
            before, self._messages.error = str(self._messages.error or ""), None
            self.offer()
            if str(self._messages.error or "") not in ("", before):
                log.warning("%s", self._messages.error)

    def settle(self, wait_s: float = 0.0) -> None:
        """Handle the letters that have arrived, and record the decisions that follow."""
        now = time.monotonic()
        if now - self._renewed >= RENEW_S:
            self._renew()
        if now >= self._workforce.next_count:
            self._workforce.count(self.owner)
        wait_s = min(wait_s, max(0.0, self._workforce.next_count - now))
        letters = self._mailbox.letters(self._read, 0.0 if self._has_more else wait_s)
        # no matter who wrote these letters, the holders commit nothing from now on
        self._mailbox.void([letter.lease for letter in letters if letter.kind == "expired"])
        self._is_ledger_read = False  # since these letters arrived
        for letter in letters:
            if time.monotonic() - self._renewed >= RENEW_S:
                self._renew()
            try:
                self._handle(letter)
            except _NOT_LETTER_ERRORS:
                raise
            except Exception:
                log.exception("a letter that cannot be dealt with; its study goes on without it")
                self._write()
                self._mailbox.offer({}, letter.id)
                self.is_out_of_sync = True
                return
            self._read, self._is_read = letter.id, False
        self._has_more = len(letters) == MAX_LETTERS
        if self._has_reset:  # what the scheduler knows does not hold any more
            self._write()
            self._mailbox.void(self.owner.withdraw())
            self._mailbox.offer({}, self._read)
            self.is_out_of_sync = True
            return
        self._check_leases()
        if self._notices.is_due:
            self._notices.step(self.owner.scheduler.counts(), self._jobs.refusal)
        self._write()
        self._finish_if_done()

    def _look_after_jobs(self, *, may_submit: bool = True) -> None:
        """Submit chunks of the steps that have batch jobs of their own, and handle how such jobs ended.

        Raises ExecutionError if jobs cannot be submitted here; another owner may be able to.
        """
        self._is_ledger_read = False
        for report in self._jobs.step(self.owner.scheduler, self._now(), may_submit=may_submit):
            self._handle_report(report)
        for note in self._jobs.notes():
            log.warning("%s", note)
        lacking = self._jobs.lacking(self.owner.scheduler) if may_submit else ""
        if lacking and time.monotonic() - self._began >= HAND_ON_S:
            self.release()
            raise ExecutionError(lacking)

    def wait_for_notices(self, limit_s: float = inf) -> None:
        """Wait for the notifications that are on their way, before somebody else may become the owner."""
        until = time.monotonic() + limit_s
        while self._notices.is_sending and not (
            self.is_over or self.is_out_of_sync or time.monotonic() >= until
        ):
            self.settle(TELL_S)

    def _now(self) -> float:
        """The server's time."""
        return time.monotonic() + self._clock

    def _renew(self) -> None:
        asked = time.monotonic()
        self._clock = self._mailbox.renew() - asked
        self._renewed = asked

    def _handle(self, letter: Letter) -> None:
        match letter.kind:
            case "taken":
                self.owner.taken(letter.lease)
            case "expired":
                self._handle_expired(letter.lease)
            case "report":
                if (report := report_in(letter, self._study.id, self._tools.config.key)) is not None:
                    self._handle_report(report)

    def _handle_report(self, report: ChunkReport) -> None:
        is_cut_off = report.died or report.is_interrupted or report.trouble
        done = self._done(report.chunk) if is_cut_off else ()
        known = set(self.owner.bad_nodes.quarantined)
        if not self.owner.reported(report, done, self._now()):
            return
        for node in set(self.owner.bad_nodes.quarantined) - known:
            self._quarantine(node)
        if report.node in known:
            runs = report.result.runs if report.result is not None else (*report.done, *done)
            failed = merged((lo, hi) for lo, hi, outcome in runs if outcome == Outcome.FAILED)
            if failed:
                self._run_again({report.chunk.instance: failed}, {})
        if report.died and not (report.is_infrastructure or report.is_interrupted or report.trouble):
            self._conductor.note("worker_lost", worker=report.worker, died=report.died)
        if report.result and report.result.stop == "stop_workers":
            is_over = self.owner.scheduler.is_complete or self.owner.scheduler.stop_reason
            self._workforce.stop(now=bool(is_over))

    def _quarantine(self, node: str) -> None:
        """Take everything from the workers of a node. What failed there runs again.

        They may take what nobody has taken yet at this very moment, so that is taken back, too.
        """
        names = self._workforce.names_on(node)
        held = [offer.lease for offer in self._mailbox.offers() if not offer.worker or offer.worker in names]
        self._mailbox.void(held)
        taken: dict[str, list[Range]] = {}
        for chunk in filter(None, map(self.owner.scheduler.held, held)):
            taken.setdefault(chunk.instance, []).extend(pieces_of(chunk))
        bad = self.owner.bad_nodes
        self._run_again(bad.failed_on(node), taken)
        self._conductor.note(QUARANTINED, node=node, step=bad.quarantined[node])
        why = why_quarantined(node, bad.quarantined[node])
        log.error("%s: %s; they run again on other nodes", self._study.workspace.path, why)

    def _run_again(self, failed: dict[str, list[Range]], taken: dict[str, list[Range]]) -> None:
        self._write()  # what was skipped because of these failures is to be found in the ledger
        self._conductor.run_again(failed, taken)
        self._has_reset = True

    def _handle_expired(self, lease: str) -> None:
        chunk = self.owner.scheduler.held(lease)
        if chunk is None:
            return
        log.warning(
            "the worker of %s has not been heard of for %g s; they run again",
            described(chunk),
            self._tools.lease_s,
        )
        self.owner.expired(lease, self._done(chunk))

    def _done(self, chunk: Chunk) -> tuple[Run, ...]:
        """The recorded outcomes of a chunk. One read of the ledger is enough for all letters of a round."""
        if not self._is_ledger_read:
            self._conductor.read()
            self._is_ledger_read = True
        return self._conductor.known(chunk)

    def _check_leases(self) -> None:
        """End the leases that have expired after their holders had time to renew them, and detect lost leases."""
        now = time.monotonic()
        if now - self._began >= self._tools.lease_s / 2 and now >= self._look_for_late:
            self._look_for_late = now + EXPIRE_S
            self._mailbox.expire()
        if now >= self._look_for_lost and not self._has_more:
            self._look_for_lost = now + max(RENEW_S, self._tools.lease_s / 4)
            missing = self.owner.scheduler.leases() - self._jobs.leases() - self._mailbox.names()
            if twice := missing & self._missing:  # two checks, and no letter in between: they are lost
                log.warning("%d chunks are neither offered, held nor reported", len(twice))
                self.is_out_of_sync = True
            self._missing = missing

    def _write(self) -> None:
        """Write the decisions into the ledger, if we are still the owner. A suspended owner may have been replaced."""
        if self._conductor.has_unwritten():
            self._renew()
            self._conductor.flush()

    # --------------------------------------------------------------- offering

    def offer(self) -> int:
        """Offer chunks for the free slots, and send their messages; returns the number of messages."""
        chunks = self._add_offers()
        if time.monotonic() >= self._look_for_overdue:
            self._look_for_overdue = time.monotonic() + RENEW_S
            chunks += self._messages.overdue(self.owner, self._now, REISSUE_S)
        self._messages.send(chunks, self.owner)
        return len(chunks)

    def offer_and_release(self) -> int:
        """Offer chunks and release the ownership, so that workers that get a message can become the owner.

        Raises ExecutionError if the broker does not accept the messages; a later owner sends them.
        """
        if self.is_over:
            return 0
        chunks = self._add_offers()
        chunks += [
            chunk for chunk in self._messages.overdue(self.owner, self._now, 0.0) if chunk not in chunks
        ]
        self._mailbox.release()
        self._messages.send(chunks, self.owner)
        if self._messages.error:
            raise self._messages.error
        return len(chunks)

    def _add_offers(self) -> list[Chunk]:
        study, key = self._study, self._tools.config.key
        now = self._offered = self._now()
        slots, machines, times = self._workforce.slots, self._workforce.machines, self._workforce.times(now)
        self._mailbox.void(self.owner.withdraw_unfit(times, machines))
        chunks = self.owner.offers(slots, now, MAX_OFFERS, times, machines)
        self._workforce.note_waiting(self.owner.why_waiting(times, machines))
        self._has_more = self._has_more or len(chunks) == MAX_OFFERS
        if chunks or not self._is_read:
            self._mailbox.offer({c.lease: seal_chunk(c, study.id, key) for c in chunks}, self._read)
            self._is_read = True
        return chunks

    # ------------------------------------------------------------------ the end

    def stop(self, reason: str) -> None:
        """Stop the study: no further chunk starts."""
        self.owner.scheduler.stop(reason)
        self._look_after_jobs(may_submit=False)
        self._finish_if_done()

    def fail(self, instances: Collection[str], cause: str) -> None:
        """Record all unfinished tasks of these step instances as failed, and end their leases."""
        chunks = self.owner.fail(instances, cause)
        self._write()
        self._mailbox.void(chunk.lease for chunk in chunks)
        self._look_after_jobs(may_submit=False)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        """Record that the study has stopped or ended. It is over when no chunk runs any more."""
        scheduler = self.owner.scheduler
        if scheduler.is_complete:
            if not self._is_stopped:
                self._end("run_finished", "")
        elif scheduler.stop_reason:
            self._mailbox.void(self.owner.withdraw())
            if not self._is_stopped:
                more = {"now": True} if scheduler.stop_now else {}
                self._end("run_stopped", scheduler.stop_reason, **more)
            if self.owner.running():
                if scheduler.stop_now and time.monotonic() >= self._look_for_survivors:
                    self._look_for_survivors = time.monotonic() + INTERRUPT_AGAIN_S
                    self._interrupt()
                return
        else:
            return
        self._notices.end(scheduler.counts(), scheduler.stop_reason)
        if not self._notices.is_sending:  # if this owner dies before, the next one sends what is left
            self._mailbox.close()
            self.is_over = True

    def _end(self, event: str, reason: str, **more: bool) -> None:
        self._conductor.note(event, reason=reason, host=socket.gethostname(), pid=os.getpid(), **more)
        self._write()
        self._is_stopped = True
        self._tools.backend.registry.withdraw(self._study.id, self._conductor.session)
        self.end = f"{event.replace('_', ' ')}{f': {reason}' if reason else ''}"

    def _interrupt(self) -> None:
        holders = {offer.worker for offer in self._mailbox.offers() if offer.worker}
        self._tools.backend.registry.send(sorted(holders), "interrupt", study=self._study.id)

    def release(self) -> None:
        """Release the ownership, so that somebody else can continue."""
        if not self.is_over:
            self._mailbox.release()

    def close(self) -> None:
        self._notices.leave()
        self._jobs.close()
        self._conductor.close()
