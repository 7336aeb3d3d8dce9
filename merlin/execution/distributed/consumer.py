"""Celery's consumer with a filter: foreign messages are acknowledged and refused before Celery sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery.exceptions import WorkerShutdown
from celery.worker import consumer

from merlin.config.model import Config
from merlin.errors import ForgedMessageError
from merlin.execution.distributed.incoming import body_with, check_wrapping, clean_headers, sealed_envelope
from merlin.execution.distributed.queues import other_properties
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.slots import Slots

log = logging.getLogger("merlin.worker")

# workers exchange sealed messages through Redis; Celery's own exchange is not sealed, can crash a worker, and delays
# every start by a second
DISABLED = ("without_mingle", "without_gossip")


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Passes on only our messages, and of each only the sealed part."""

    def __init__(self, *args: Any, config: Config, refusals: Refusals, slots: Slots, **options: Any) -> None:
        self._config, self._key, self._refusals, self._slots = config, config.key, refusals, slots
        without = dict.fromkeys(DISABLED, True)
        # `-E`: somebody watches, such as Flower
        without["without_heartbeat"] = not options.get("task_events")
        super().__init__(*args, **options | without)

    def start(self) -> None:
        """Consume messages until the worker ends."""
        try:
            super().start()
        except PreconditionFailed as error:
            if (reason := other_properties(self._config, error)) is None:
                raise
            log.critical("this worker ends: %s", reason)
            raise WorkerShutdown(1) from None

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        # a free slot lets the loop take the next message
        hub.add_reader(self._slots.fileno(), self._slots.drain)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args, **options)

        def on_message(message: Any) -> None:
            if self._is_admitted(message):
                self._slots.take()
                handle(message)

        return on_message

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self._refuse(message, "a message that cannot be decoded")

    def _is_admitted(self, message: Any) -> bool:
        """Return whether the message holds a notice, after everything else is removed from it."""
        try:
            if kind := getattr(getattr(message.channel, "connection", None), "refused", ""):
                raise ForgedMessageError(kind)
            check_wrapping(message.content_type, message.content_encoding, message.headers)
            envelope = sealed_envelope(message.body, self._key)
        except ForgedMessageError as error:
            self._refuse(message, str(error))
            return False
        except Exception as error:  # noqa: BLE001  nothing that comes in from outside may end the worker
            self._refuse(message, f"a message that nobody foresaw ({type(error).__name__})")
            return False
        message.headers, message.properties = clean_headers(), {}
        message.body = body_with(envelope)
        return True

    def _refuse(self, message: Any, kind: str) -> None:
        self._refusals.note(kind, message.body)
        message.ack_log_error(log, self.connection_errors)
