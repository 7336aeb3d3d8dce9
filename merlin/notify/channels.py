"""The ways to tell somebody. A new one is a module with `send`, one line here, and a key of the spec's `notify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from merlin.errors import NotifyError
from merlin.notify.notice import Message

CHANNELS = {  # key of the spec -> module
    "cmd": "merlin.notify.command",
    "webhook": "merlin.notify.webhook",
    "mail": "merlin.notify.mail",
    "apprise": "merlin.notify.services",
}


class Channel(Protocol):
    """A module that delivers messages."""

    def send(
        self, to: Sequence[str], message: Message, environment: Mapping[str, str], limit_s: float
    ) -> None:
        """Deliver a message to all of `to`, where `$NAME` comes from `environment`.

        Raises NotifyError if it was not delivered within about `limit_s`; ConfigError or MissingExtraError if it
        never can be.
        """


def channel_of(name: str) -> Channel:
    """The module for a key of `notify`. Raises NotifyError for one that this version does not have."""
    if name not in CHANNELS:
        raise NotifyError(f"this version of Merlin has no way to notify called {name!r}")
    return cast(Channel, import_module(CHANNELS[name]))
