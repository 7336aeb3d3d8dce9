"""A published study without an owner, because no worker is left: the command that watches it tells of the stall."""

from __future__ import annotations

import time
from collections.abc import Callable

from merlin.errors import MerlinError
from merlin.execution.notices import Notices, recorder
from merlin.ledger.replay import replay
from merlin.ledger.session import last_session, session_start
from merlin.views.watch import Look
from merlin.workspace.directory import Workspace


class StallNotices:
    """Tells of a stall where no owner does it; one thread uses it."""

    def __init__(
        self, workspace: Workspace, has_owner: Callable[[], bool], say: Callable[[str], object]
    ) -> None:
        """`has_owner`: does some worker look after the study? It may raise ExecutionError; `say` gets trouble."""
        self._workspace, self._has_owner, self._say = workspace, has_owner, say
        self._notices: Notices | None = None  # while nobody serves the study

    def tell(self, look: Look) -> None:
        """Take the next look at the study into account."""
        try:
            self._tell(look)
        except MerlinError as error:
            self._say(f"cannot find out who is to be told: {error}")

    def _tell(self, look: Look) -> None:
        if look.state != "running" or look.num_workers or not self._workspace.plan.notify:
            self._notices = None
            return
        if self._notices is None:
            self._notices = self._new_notices()
        wakeup = self._notices.next_wakeup()
        if wakeup is not None and time.monotonic() >= wakeup and not self._has_owner():
            self._notices.step(look.per_step)

    def _new_notices(self) -> Notices:
        """Notices that also know what other processes have sent meanwhile."""
        workspace = self._workspace
        session = last_session(workspace.ledger_dir)
        found = replay(workspace.ledger_dir, workspace.plan)
        notices = Notices(workspace, recorder(workspace, session), lambda: found, self._say)
        notices.start(since=session_start(session, 0.0))
        return notices
