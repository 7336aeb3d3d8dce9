"""Sends one notice: puts it into words, and tries twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from merlin.base.text import count
from merlin.errors import MerlinError, NotifyError
from merlin.notify.addresses import without_secrets
from merlin.notify.channels import channel_of
from merlin.notify.notice import Message, Notice, message_of
from merlin.plan.notify_rule import NotifyRule
from merlin.workspace.directory import open_workspace

LIMIT_S = 20.0  # of one try
AGAIN_S = 2.0  # between two tries
NUM_TRIES = 2
MAX_GROUPS = 3  # of failures in a message


def deliver(
    rule: NotifyRule,
    notice: Notice,
    environment: Mapping[str, str],
    *,
    num_tries: int = NUM_TRIES,
    limit_s: float = LIMIT_S,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Raises NotifyError, without secrets in it, if the last try fails, too; ConfigError and MissingExtraError."""
    channel, message = channel_of(rule.channel), words_for(notice)
    for left in reversed(range(num_tries)):
        try:
            channel.send(rule.to, message, environment, limit_s)
            return
        except NotifyError as error:
            if not left:
                raise NotifyError(without_secrets(str(error), rule.to, environment)) from None
            pause(AGAIN_S)


def words_for(notice: Notice) -> Message:
    """The message, with the most frequent failures if there are any and the workspace can be read here."""
    lines: list[str] = []
    if notice.failed and notice.workspace:
        from merlin.status.failures import group_failures  # NumPy, which most messages do not need

        try:
            found = open_workspace(Path(notice.workspace))
            groups = group_failures(found, with_ranges=False)[:MAX_GROUPS]
        except (MerlinError, OSError):
            groups = []
        lines = [f"{g.step}: {count(g.count, 'task')} failed: {' '.join(g.cause.split())}" for g in groups]
    return message_of(notice, lines)
