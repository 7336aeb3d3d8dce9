"""Redis as Kombu's transport, in which a worker outlives whatever else lies in its queues."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis, virtual
from redis.exceptions import ResponseError

log = logging.getLogger("merlin.worker")


class QoS(redis.QoS):
    """Outlives a full Redis; Kombu's own lets it end the worker.

    Meanwhile messages that nobody acknowledged are left alone. One that was taken just then is known to this worker
    alone: should it end before the work is done, the study sends another one. One whose work was done just then comes
    again later, and is known to be done.
    """

    def append(self, message: Any, delivery_tag: str) -> None:
        try:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            log.warning("a message is not written down as taken: %s", error)
            virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            self._forget(delivery_tag, error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            self._forget(delivery_tag, error)

    def _forget(self, delivery_tag: str, error: ResponseError) -> None:
        log.warning("a message is not written down as done: %s", error)
        virtual.QoS.ack(self, delivery_tag)

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
