"""Redis as Kombu's transport, in which a worker outlives whatever else lies in its queues."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis
from redis.exceptions import ResponseError

log = logging.getLogger("merlin.worker")


class QoS(redis.QoS):
    """Leaves messages alone that nobody acknowledged, while Redis is full; Kombu's own lets that end the worker."""

    def restore_visible(self, *args: Any, **options: Any) -> Any:
        try:
            return super().restore_visible(*args, **options)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            log.warning("messages that were not acknowledged wait: %s", error)
            return None


class Channel(redis.Channel):
    """Drops what is no message; Kombu's own lets it end the worker, and anybody can write into a queue."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log.error("refused: what is no message at all (%s)", type(error).__name__)
            return True


class Transport(redis.Transport):
    Channel = Channel


def use_for_redis() -> None:
    """Let every connection to Redis that this process opens from now on use it. For worker processes alone."""
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
