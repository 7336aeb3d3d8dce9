"""The messages of a study's offers: one for each, and another one when it seems to be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from merlin.errors import ExecutionError
from merlin.execution.distributed.messages import Notice, seal_notice
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.plan.owner import Owner
from merlin.plan.tasks import Chunk


class OfferMessages:
    """Sends messages, and remembers why that failed; chunks whose message was not sent are overdue later."""

    def __init__(self, study: Study, session: str, tools: Tools) -> None:
        self._study, self._session, self._tools = study, session, tools
        self.error: ExecutionError | None = None  # why the last messages could not be sent

    def overdue(self, owner: Owner, clock: Callable[[], float], wait_s: float) -> list[Chunk]:
        """Chunks that nobody has taken for `wait_s`, if their queue is empty or seems to have lost the message."""
        overdue = owner.overdue(clock(), wait_s)
        if not overdue:
            return []
        try:
            empty = set(self._tools.carrier.empty(overdue))
        except ExecutionError as error:
            self.error = error
            return []
        now = clock()
        chunks = [
            chunk
            for queue, found in overdue.items()
            for chunk in found
            if queue in empty or owner.has_waited(chunk, now)
        ]
        owner.offered_again(chunks, now)
        return chunks

    def send(self, chunks: Iterable[Chunk], owner: Owner) -> None:
        """Send the messages of these chunks. If that fails, the chunks become overdue later."""
        messages: dict[tuple[str, bool], list[dict[str, str]]] = {}
        for chunk in chunks:
            queue = self._study.workspace.instance(chunk.instance).queue
            envelope = seal_notice(self._notice(chunk), self._tools.config.key)
            messages.setdefault((queue, owner.is_retry(chunk)), []).append(envelope)
        try:
            for (queue, is_retry), envelopes in messages.items():
                self._tools.carrier.send(queue, envelopes, is_retry=is_retry)
        except ExecutionError as error:
            self.error = error

    def _notice(self, chunk: Chunk) -> Notice:
        return Notice(
            study=self._study.id,
            workspace=str(self._study.workspace.path),
            plan=self._study.workspace.digest,
            session=self._session,
            instance=chunk.instance,
            lo=chunk.lo,
            hi=chunk.hi,
            lease=chunk.lease,
        )
