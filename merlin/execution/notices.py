"""Notifies people about a study while it runs, as `notify` in its spec asks for.

The process that decides for the study calls this: the command of a local run, or the owner. Notifications are recorded
in the ledger, so that a later owner does not repeat them. Messages are sent by processes of their own; the study
neither waits for them nor fails with them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from merlin.errors import LedgerError
from merlin.execution.conductor import append_records
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.session import next_session
from merlin.notify.notice import Notice
from merlin.notify.occasions import Occasion, Occasions
from merlin.notify.outbox import Outbox, Sent
from merlin.notify.told import NOTIFIED, record_of, told_of
from merlin.plan.task_states import TaskCounts, all_tasks
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import Workspace

LOOK_S = 0.5  # between two looks at what is being sent

Counts = Mapping[str, TaskCounts]  # by step, or by step instance
Recorder = Callable[..., None]  # kind of the event, and its data as keywords


class Notices:
    """The messages of one run of a study. One thread calls this; without rules every call does nothing."""

    def __init__(
        self,
        workspace: Workspace,
        record: Recorder,
        read: Callable[[], Replay],
        say: Callable[[str], object],
    ) -> None:
        """`record` writes an event into the ledger, `read` reads it. `say` gets messages about failures to send."""
        self._workspace, self._record, self._read, self._say = workspace, record, read, say
        self._rules = workspace.plan.notify
        self._outbox: Outbox[Occasion] = Outbox()
        self._occasions: Occasions | None = None  # until the run starts, or if there are no rules
        self._began = self._look_at = time.monotonic()
        self._num_recorded = 0  # tasks that have ended, as the ledger had it
        self._is_end_told = False

    def start(self, *, since: float) -> None:
        """Begin with a run that started at `since` (epoch seconds)."""
        if not self._rules:
            return
        now, found = time.time(), self._read()
        self._began = time.monotonic() - (now - since)
        self._num_recorded = _num_ended(found)
        last = max((entry.header.ended for entry in found.entries()), default=since)
        self._occasions = Occasions(
            self._rules, told_of(found), now=time.monotonic(), quiet_s=max(0.0, now - max(since, last))
        )

    @property
    def is_active(self) -> bool:
        """Return whether there is a run about which people may be notified."""
        return self._occasions is not None

    @property
    def is_sending(self) -> bool:
        """Return whether messages are on their way, or have arrived and are not recorded yet."""
        return not self._outbox.is_empty

    @property
    def is_due(self) -> bool:
        """Return whether it is time for `step`."""
        return self._occasions is not None and time.monotonic() >= self._look_at

    def next_wakeup(self) -> float | None:
        """When `step` has something to do even if nothing happens until then (monotonic)."""
        if self._occasions is None:
            return None
        stall = self._occasions.next_wakeup()
        times = [self._look_at] if self.is_sending else []
        if stall is not None:
            times.append(max(stall, self._look_at))
        return min(times, default=None)

    def step(self, counts: Counts, refusal: str = "") -> None:
        """Send what the state of the study calls for, and record what was sent since the last call.

        `refusal`: why the batch scheduler takes no job.
        """
        if self._occasions is None:
            return
        now, tasks = time.monotonic(), all_tasks(counts.values())
        self._look_at = now + LOOK_S
        stall = self._occasions.next_wakeup()
        if stall is not None and now >= stall and self._num_recorded != (num := _num_ended(self._read())):
            self._num_recorded = num
            self._occasions.stir(now)  # tasks of a chunk that has not ended as a whole
        self._send(self._occasions.look(tasks, now, refusal), tasks)
        self._keep(self._outbox.ended())

    def end(self, counts: Counts, reason: str, *, is_broken: bool = False) -> None:
        """Send, once, what the end of the run calls for. `is_broken`: the run itself has failed."""
        if self._occasions is None or self._is_end_told:
            return
        self._is_end_told = True
        tasks = all_tasks(counts.values())
        event = "stopped" if tasks.missing else "finished" if tasks.ok == tasks.planned else "failed"
        self._send(self._occasions.end("failed" if is_broken else event, tasks, reason), tasks)

    def wait(self) -> None:
        """Wait until all messages on their way are sent, and record them."""
        self._keep(self._outbox.wait())

    def leave(self) -> None:
        """Leave the messages on their way alone: they may arrive or not, and the next owner may send them again."""
        self._outbox.leave()

    def kill(self) -> None:
        """Give up the messages on their way."""
        self._outbox.kill()

    def _send(self, occasions: list[Occasion], tasks: TaskCounts) -> None:
        for occasion in occasions:
            notice = notice_of(self._workspace, occasion, tasks, time.monotonic() - self._began)
            self._outbox.send(occasion, self._rules[occasion.rule], notice)

    def _keep(self, several: list[Sent[Occasion]]) -> None:
        """Record what was sent, and report what could not be sent."""
        for sent in several:
            channel = self._rules[sent.what.rule].channel
            with suppress(LedgerError):  # then it may be sent again
                self._record(NOTIFIED, **record_of(sent.what, channel, sent.error))
            if sent.error:
                self._say(f"nobody was told by {channel} ({sent.what.event}): {sent.error}")


def notice_of(workspace: Workspace, occasion: Occasion, tasks: TaskCounts, seconds: float | None) -> Notice:
    plan = workspace.plan
    return Notice(
        event=occasion.event,
        study=plan.name,
        study_id=plan.study_id,
        workspace=str(workspace.path),
        reason=occasion.reason,
        time=time.time(),
        host=socket.gethostname(),
        planned=tasks.planned,
        ok=tasks.ok,
        failed=tasks.failed,
        skipped=tasks.skipped,
        missing=tasks.missing,
        seconds=seconds,
    )


def counts_of(found: Replay) -> dict[str, TaskCounts]:
    """Tasks by step instance, as the ledger has them."""
    return {
        id: TaskCounts(
            planned=sum(have.values()),
            ok=have.get(Outcome.OK, 0),
            failed=have.get(Outcome.FAILED, 0),
            skipped=have.get(Outcome.SKIPPED, 0),
            running=0,
            ready=0,
            waiting=sum(have.get(outcome, 0) for outcome in (NO_OUTCOME, Outcome.INTERRUPTED)),
            queued=0,
        )
        for id, have in found.counts().items()
    }


def tell_of_stop(workspace: Workspace, reason: str, say: Callable[[str], object]) -> None:
    """Notify people that a command has stopped the study, which has no owner any more; returns when this is sent."""
    if not workspace.plan.notify:
        return
    found = replay(workspace.ledger_dir, workspace.plan)
    began = max((e.time or 0.0 for e in found.events() if e.kind == "run_started"), default=time.time())
    session = next_session(workspace.ledger_dir, time.time())
    notices = Notices(workspace, recorder(workspace, session), lambda: found, say)
    notices.start(since=began)
    notices.end(counts_of(found), reason)
    notices.wait()


def _num_ended(found: Replay) -> int:
    ended = (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    return sum(counts.get(outcome, 0) for counts in found.counts().values() for outcome in ended)


def recorder(workspace: Workspace, session: str) -> Recorder:
    """A function that records events in the ledger of a run that has no conductor (any more)."""

    def record(kind: str, **data: Any) -> None:
        append_records(workspace, session, EventRecord(kind=kind, data=data))

    return record
