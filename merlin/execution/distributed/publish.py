"""Sends messages through the broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from merlin.config.reach import explain
from merlin.errors import ExecutionError
from merlin.execution.distributed import names
from merlin.execution.distributed.queues import broker_queue, other_properties, queue_depths

if TYPE_CHECKING:
    from celery import Celery

    from merlin.config.model import Config


class Publisher:
    """Implements `contracts.Carrier` for one user's queues; threads may share it."""

    def __init__(self, config: Config, app: Celery) -> None:
        self._config, self._app = config, app
        self._priorities = names.PRIORITIES[names.transport(config.broker.kind)]

    def send(self, queue: str, envelope: Mapping[str, str], *, is_retry: bool = False) -> None:
        """Raises ExecutionError: the broker cannot be reached, or has a queue with other properties."""
        from amqp.exceptions import PreconditionFailed
        from kombu.exceptions import OperationalError

        # Celery.send_task would look through all installed packages for result backends
        amqp = self._app.amqp
        message = amqp.create_task_message(
            secrets.token_hex(8), names.TASK, args=[envelope], ignore_result=True
        )
        try:
            with self._app.producer_or_acquire() as producer:
                amqp.send_task_message(
                    producer,
                    names.TASK,
                    message,
                    queue=broker_queue(self._config, queue),
                    priority=self._priorities["retry" if is_retry else "run"],
                    retry=True,
                    retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
                )
        except PreconditionFailed as error:
            raise other_properties(self._config, error) or error from None
        except (OperationalError, OSError) as error:
            detail, hint = explain(error, self._config.broker)
            raise ExecutionError(f"{detail}\n  {hint}" if hint else detail) from None

    def empty(self, queues: Iterable[str]) -> list[str]:
        return [name for name, info in queue_depths(self._config, queues).items() if not info.depth]
