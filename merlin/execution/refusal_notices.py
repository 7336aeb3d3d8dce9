"""Notifies people when the batch scheduler refuses the worker jobs of `merlin workers autoscale`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from merlin.base.document.tokens import substitute
from merlin.notify.notice import Notice
from merlin.notify.occasions import NOTHING_TOLD, Occasion, Occasions
from merlin.notify.outbox import Outbox
from merlin.plan.notify_rule import NotifyRule, notify_rules
from merlin.plan.task_states import TaskCounts
from merlin.spec.model import Document

# those who run the tasks report on them
_NO_TASKS = TaskCounts(planned=0, ok=0, failed=0, skipped=0, running=0, ready=0, waiting=0, queued=0)


class RefusalNotices:
    """The messages of one autoscaler, which serves a spec or a workspace; each reason is sent once."""

    def __init__(self, path: Path, document: Document, say: Callable[[str], object]) -> None:
        """`say` gets messages about failures to send."""
        self._rules = rules_of(path, document)
        self._study, self._say = document.description.name, say
        self._workspace = str(path.absolute()) if path.is_dir() else ""
        self._occasions = Occasions(self._rules, NOTHING_TOLD, now=time.monotonic())
        self._outbox: Outbox[Occasion] = Outbox()

    def look(self, refusal: str) -> None:
        """Send the notifications about a refusal; "" means that no job was refused."""
        for occasion in self._occasions.look(_NO_TASKS, time.monotonic(), refusal):
            notice = Notice(
                event=occasion.event,
                study=self._study,
                workspace=self._workspace,
                reason=occasion.reason,
                time=time.time(),
                host=socket.gethostname(),
            )
            self._outbox.send(occasion, self._rules[occasion.rule], notice)
        for sent in self._outbox.ended():
            self._note(sent.what, sent.error)

    def wait(self) -> None:
        """Wait for the messages on their way."""
        for sent in self._outbox.wait():
            self._note(sent.what, sent.error)

    def _note(self, occasion: Occasion, error: str) -> None:
        if error:
            self._say(f"nobody was told by {self._rules[occasion.rule].channel}: {error}")


def rules_of(path: Path, document: Document) -> tuple[NotifyRule, ...]:
    """The rules of a spec that has no workspace yet, or of a workspace's own spec."""
    values = {"SPECROOT": str(path.absolute().parent)}
    return notify_rules(document.notify, lambda text: substitute(text, values))
