"""Redis as Kombu's transport, in which a worker outlives whatever else lies in its queues."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis

log = logging.getLogger("merlin.worker")


class Channel(redis.Channel):
    """Drops what is no message; Kombu's own lets it end the worker, and anybody can write into a queue."""

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
