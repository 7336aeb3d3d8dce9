"""Puts a study's progress into Redis, from its plan and its ledger, and publishes the first tickets."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from merlin.errors import ExecutionError, WorkspaceError, command_line
from merlin.execution.conductor import CONTROLLER, reset_records
from merlin.execution.distributed.connect import redis_client, server_time
from merlin.execution.distributed.publish import Publisher
from merlin.execution.distributed.redis_progress import RedisProgress, StudyState
from merlin.execution.distributed.registry import Registry
from merlin.execution.distributed.study import Study
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.study.reopen import reopen_failed
from merlin.study.workspace import Workspace, lock

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config
    from merlin.execution.distributed.engine import Engine

LOCK_S = 15.0
POLL_S = 0.1
FIRST_TICKETS = 1  # per step instance; the worker that takes it publishes more


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What `open_study` did."""

    num_messages: int
    planned: int
    already_ok: int
    resumed: bool  # the study was in Redis already; only messages were sent
    is_complete: bool  # nothing is left to do
    note: str  # one sentence for the user


def open_study(
    workspace: Workspace,
    config: Config,
    *,
    redo_failed: bool = False,
    steps: Collection[str] | None = None,
) -> Opened:
    """Publish what the ledger does not hold yet.

    A study that is running in Redis is left as it is, but for new messages in case some were lost. With
    `redo_failed`, failed tasks (of `steps`) run again, too.

    Raises:
        ExecutionError: the broker or Redis cannot be reached, or chunks of the study still run.
        WorkspaceError: an embedded run holds the workspace.
    """
    from merlin.execution.distributed.app import make_app

    client = redis_client(config)
    with _lock_soon(workspace):
        opener = _Opener(workspace, config, client, Publisher(config, make_app(config)))
        return opener.open(redo_failed=redo_failed, steps=steps)


class _Opener:
    def __init__(self, workspace: Workspace, config: Config, client: Redis, publisher: Publisher) -> None:
        self._workspace, self._config, self._client = workspace, config, client
        self._publisher = publisher
        self._registry = Registry(client, config)
        self._digest = workspace.digest
        progress = RedisProgress(client, config.namespace, workspace.plan)
        self._study = Study(workspace, self._digest, progress)

    def open(self, *, redo_failed: bool, steps: Collection[str] | None) -> Opened:
        study, progress = self._study, self._study.progress
        self._refuse_another_plan()
        state = progress.state()
        if state.state == "running" and not redo_failed:
            self._registry.advertise(study.info(state.session, state.now))
            progress.reissue(0.0)
            return self._opened(self._send(), resumed=True)
        num_running = self._num_running(state)
        if num_running:
            raise ExecutionError(
                f"{num_running} chunks of {self._workspace.path} still run; wait for them "
                f"(merlin query-workers shows them), or end them: {command_line('cancel', self._workspace.path)}"
            )
        session = next_session(self._workspace.ledger_dir, server_time(self._client))
        try:
            found = replay(self._workspace.ledger_dir, self._workspace.plan)
            self._begin(found, session, redo_failed=redo_failed, steps=steps)
            study.flush()
            return self._opened(self._send(), resumed=False)
        finally:
            study.close()

    def _refuse_another_plan(self) -> None:
        """While a study is not over, nobody else's plan takes the place of its own."""
        own = (info.plan for info in self._registry.studies() if info.study_id == self._study.id)
        if any(digest != self._digest for digest in own):
            raise ExecutionError(
                f"the plan in {self._workspace.path} is not the one that was published: it was altered; put it back "
                f"as it was, or end the study first: {command_line('cancel', self._workspace.path)}"
            )

    def _num_running(self, state: StudyState) -> int:
        """Chunks whose workers have not been silent for longer than a lease."""
        if state.state not in ("running", "stopped") or not state.num_running:
            return 0
        return sum(holding.expires_s > 0 for holding in self._study.progress.holdings())

    def _begin(
        self, found: Replay, session: str, *, redo_failed: bool, steps: Collection[str] | None
    ) -> None:
        workspace = self._workspace
        with LedgerWriter(
            workspace.ledger_dir, CONTROLLER, session=session, study_id=workspace.plan.study_id
        ) as ledger:
            if redo_failed:
                ledger.append(*reset_records(reopen_failed(workspace.plan, found.outcomes, steps)))
                found.update()
            ledger.append(
                EventRecord(
                    kind="run_started",
                    data={"executor": "celery", "pid": os.getpid(), "host": socket.gethostname()},
                )
            )
            # if this process is killed from here on, the workers find the study and publish it
            self._registry.advertise(self._study.info(session, server_time(self._client)))
            self._study.progress.open(found.outcomes, session=session, first_attempt=1)

    def _send(self) -> int:
        tickets = self._study.progress.tickets(FIRST_TICKETS)
        return self._publisher.send(self._workspace, self._digest, tickets)

    def _opened(self, num_messages: int, *, resumed: bool) -> Opened:
        counts = self._study.progress.counts().values()
        planned, ok = sum(c.planned for c in counts), sum(c.ok for c in counts)
        is_complete = self._study.progress.is_complete
        if is_complete and self._registry.withdraw(self._study.id):
            self._study.event("run_finished", reason="")
            self._study.close()
        if is_complete:
            ended = "every task ended ok" if ok == planned else "every task has ended, some of them not ok"
            note = f"{ended}; nothing is left to run"
        elif resumed:
            sent = "1 message was" if num_messages == 1 else f"{num_messages} messages were"
            note = f"the study is running already; {sent} sent in case some were lost"
        else:
            sent = f"{num_messages} message{'s' * (num_messages != 1)}"
            note = f"{planned - ok:,} of {planned:,} tasks to run, published with {sent}"
        return Opened(
            num_messages=num_messages,
            planned=planned,
            already_ok=ok,
            resumed=resumed,
            is_complete=is_complete,
            note=note,
        )


def publish_again(study: Study, engine: Engine) -> Literal["published", "busy", "over"]:
    """Publish a study that Redis has lost, from its ledger.

    "busy": somebody else is at it, or was faster; "over": the ledger says that it has ended, or was cancelled.
    """
    from merlin.status.snapshot import is_published

    workspace = study.workspace
    try:
        with lock(workspace):
            found = replay(workspace.ledger_dir, workspace.plan)
            if not is_published(found):
                engine.registry.withdraw(study.id)
                return "over"
            now = server_time(engine.client)
            session = next_session(workspace.ledger_dir, now)
            engine.registry.advertise(study.info(session, now))
            if not study.progress.open(found.outcomes, session=session, first_attempt=1, only_if_gone=True):
                return "busy"
    except WorkspaceError:
        return "busy"
    study.event("republished", reason="Redis had lost the progress", host=socket.gethostname())
    study.flush()
    engine.publish(study)
    return "published"


@contextmanager
def _lock_soon(workspace: Workspace) -> Iterator[None]:
    """Hold the workspace; a worker that publishes it again just now is waited for. Raises WorkspaceError."""
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
