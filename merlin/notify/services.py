"""Sends notices by apprise, which knows the addresses of more than a hundred services."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from merlin.errors import MissingExtraError, NotifyError
from merlin.notify.addresses import filled, without_secrets
from merlin.notify.notice import Message


def send(to: Sequence[str], message: Message, environment: Mapping[str, str], limit_s: float) -> None:
    """Deliver a message; `limit_s` is not used, as services have their own time limits."""
    try:
        import apprise
    except ImportError as error:
        raise MissingExtraError("apprise", "notify", "notifying by apprise") from error
    logging.getLogger("apprise").propagate = False  # what it says is part of the error
    for address in to:
        service = apprise.Apprise()
        full = filled(address, environment)
        scheme, mark, _ = full.partition("://")
        if not service.add(full):
            begins = f"begins with {scheme[:20]}://" if mark else "has no ://"
            raise NotifyError(f"apprise does not understand an address that {begins}")
        capture: Any = apprise.LogCapture  # it has no types
        with capture(level=logging.WARNING, fmt="%(message)s") as log:
            if not service.notify(title=message.title, body=message.text):
                said = without_secrets(" ".join(log.getvalue().split()), [address, full], environment)[:300]
                raise NotifyError(f"apprise could not deliver by {scheme}://{f': {said}' if said else ''}")
