"""Publishes a study: begins a run as its owner, offers the first chunks, and releases it to the workers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from merlin.errors import (
    ExecutionError,
    OwnershipLostError,
    StudyGoneError,
    UsageError,
    WorkspaceError,
    command_line,
)
from merlin.execution.conductor import append_records
from merlin.execution.distributed.connect import redis_client
from merlin.execution.distributed.contracts import Standing
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.publish import make_carrier
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.registry import StudyInfo
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.ledger.lost_outcomes import resets_after_loss, told
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.resets import resets
from merlin.ledger.session import next_session
from merlin.plan.reopen import NOTHING, Again
from merlin.status.snapshot import is_published
from merlin.workspace.directory import INFO_DIR, Workspace
from merlin.workspace.holding import lock

if TYPE_CHECKING:
    from merlin.config.model import Config

LOCK_S = 15.0
POLL_S = 0.1


class Opened(Struct, frozen=True, kw_only=True):
    """The result of `open_study`."""

    num_messages: int
    planned: int
    already_ok: int
    resumed: bool  # the study was already in Redis
    is_complete: bool  # no task is left to run
    note: str  # one sentence for the user


def make_tools(config: Config) -> Tools:
    """The connections that a command needs to own a study. Raises ExecutionError if Redis does not answer."""
    backend = RedisBackend(config, redis_client(config), lease_s=lease_s())
    return Tools(config=config, backend=backend, carrier=make_carrier(config), lease_s=lease_s())


def open_study(workspace: Workspace, config: Config, *, again: Again = NOTHING) -> Opened:
    """Publish all tasks that the ledger does not have yet, and those of `again`, although they have ended.

    A study that already runs continues; if it has no owner, messages that may be lost are sent again.

    Raises:
        ExecutionError: the broker or Redis cannot be reached, or chunks of the study still run.
        WorkspaceError: an embedded run holds the workspace.
    """
    tools = make_tools(config)
    with _wait_for_lock(workspace):
        return _Publisher(workspace, tools, again).open()


class _Publisher:
    def __init__(self, workspace: Workspace, tools: Tools, again: Again) -> None:
        self._workspace, self._tools, self._registry = workspace, tools, tools.backend.registry
        self._again = again
        self._study = Study(workspace)
        self._mailbox = tools.backend.mailbox(self._study.id)

    def open(self) -> Opened:
        running = self._advertised()
        if running is not None and not self._again and self._mailbox.exists():
            return self._resume(running.session, resumed=True)
        if running is not None:
            with suppress(StudyGoneError):  # from now on nobody records anything for the old run
                self._mailbox.own(running.session, force=True)
        num_running = sum(offer.expires_s > 0 for offer in self._mailbox.offers())
        if num_running:
            with suppress(OwnershipLostError, StudyGoneError):  # the previous owner can continue at once
                self._mailbox.release()
            raise ExecutionError(
                f"{num_running} chunks of {self._workspace.path} still run; wait for them "
                f"(merlin query-workers shows them), or end them: {command_line('cancel', self._workspace.path)}"
            )
        # from now on nobody can continue the old run, whose records would not count any more; if this process is
        # killed, workers that know the study publish it
        self._mailbox.forget()
        session = next_session(self._workspace.ledger_dir, self._tools.backend.time())
        about_ledger = self._record_start(session)
        now = self._tools.backend.time()
        self._registry.advertise(self._study.info(session, now))
        self._mailbox.open(session)
        opened = self._resume(session, resumed=False)
        return replace(opened, note=f"{about_ledger}\n{opened.note}") if about_ledger else opened

    def _advertised(self) -> StudyInfo | None:
        """The advertisement of the study, if it is not over.

        Raises ExecutionError if its plan has changed, UsageError if it is that of another workspace.
        """
        info = next((info for info in self._registry.studies() if info.study_id == self._study.id), None)
        if info is None:
            return None
        refuse_copy(self._workspace, info)
        if info.plan != self._workspace.digest:
            raise ExecutionError(
                f"the plan in {self._workspace.path} is not the one that was published: it was altered; put it back "
                f"as it was, or end the study first: {command_line('cancel', self._workspace.path)}"
            )
        return info

    def _record_start(self, session: str) -> str:
        """Record the start of the run, and reset the tasks that run again.

        Returns a line for the user if the ledger has lost outcomes.
        """
        plan = self._workspace.plan
        found = replay(self._workspace.ledger_dir, plan)
        after_loss = resets_after_loss(found, plan)
        records = [*resets(self._again.to_reset(plan, found.outcomes)), *after_loss]
        data = {"executor": "celery", "pid": os.getpid(), "host": socket.gethostname()}
        append_records(self._workspace, session, *records, EventRecord(kind="run_started", data=data))
        return told(after_loss)

    def _resume(self, session: str, *, resumed: bool) -> Opened:
        """Act as the owner, unless there is one. A new run can have one if this process was suspended meanwhile."""
        with suppress(OwnershipLostError):
            standing = self._mailbox.own(session)
            if standing.is_ours:
                return self._act_as_owner(session, standing, resumed=resumed)
        counts = replay(self._workspace.ledger_dir, self._workspace.plan).counts().values()
        planned, ok = sum(sum(c.values()) for c in counts), sum(c.get(0, 0) for c in counts)
        return Opened(
            num_messages=0,
            planned=planned,
            already_ok=ok,
            resumed=True,
            is_complete=False,
            note="the study is running already, and its workers go on with it",
        )

    def _act_as_owner(self, session: str, standing: Standing, *, resumed: bool) -> Opened:
        """Do one round as the owner. Raises OwnershipLostError."""
        ownership = Ownership(self._study, session, self._mailbox, standing, self._tools)
        try:
            ownership.settle()
            ownership.wait_for_notices()
            num_messages = ownership.offer_and_release()
            counts = ownership.owner.scheduler.counts().values()
        finally:
            ownership.close()
        planned, ok = sum(c.planned for c in counts), sum(c.ok for c in counts)
        is_complete = ownership.owner.scheduler.is_complete
        sent = f"{num_messages} message{'s' * (num_messages != 1)}"
        if is_complete:
            ended = "every task ended ok" if ok == planned else "every task has ended, some of them not ok"
            note = f"{ended}; nothing is left to run"
        elif resumed:
            lost = f"{sent} sent in case some were lost" if num_messages else "its messages wait for workers"
            note = f"the study is running already; {lost}"
        else:
            note = f"{planned - ok:,} of {planned:,} tasks to run, published with {sent}"
        return Opened(
            num_messages=num_messages,
            planned=planned,
            already_ok=ok,
            resumed=resumed,
            is_complete=is_complete,
            note=note,
        )


def publish_again(study: Study, tools: Tools) -> Literal["published", "busy", "over"]:
    """Publish a study that Redis has lost, from its ledger.

    "busy": another process publishes it, or has done so. "over": by the ledger it has ended or was cancelled.
    """
    workspace, registry = study.workspace, tools.backend.registry
    mailbox = tools.backend.mailbox(study.id)
    try:
        with lock(workspace):
            found = replay(workspace.ledger_dir, workspace.plan)
            if not is_published(found):
                registry.withdraw(study.id)
                return "over"
            if mailbox.exists():
                return "busy"
            now = tools.backend.time()
            session = next_session(workspace.ledger_dir, now)
            data = {"reason": "Redis had lost the study", "host": socket.gethostname()}
            append_records(workspace, session, EventRecord(kind="republished", data=data))
            registry.advertise(study.info(session, now))
            if not mailbox.open(session, only_if_gone=True):
                return "busy"
            found.update()
            if not is_published(found):  # cancelled meanwhile
                mailbox.drop()
                registry.withdraw(study.id, session)
                return "over"
            mailbox.release()
    except WorkspaceError:
        return "busy"
    return "published"


@contextmanager
def _wait_for_lock(workspace: Workspace) -> Iterator[None]:
    """Lock the workspace; wait for a worker that publishes it at the moment. Raises WorkspaceError."""
    deadline = time.monotonic() + LOCK_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock(workspace))
                break
            except WorkspaceError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_S)
        yield


def refuse_copy(workspace: Workspace, study: StudyInfo) -> None:
    """Raise UsageError if the study that workers have is in another workspace, which is still there."""
    other = Path(study.workspace)
    if (other / INFO_DIR).is_dir() and not other.samefile(workspace.path):
        raise UsageError(
            f"{workspace.path} is a copy of {other}, which workers run; this would act on that study: "
            "name its workspace, or wait until it has ended"
        )
