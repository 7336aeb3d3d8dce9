"""Sends tickets to the broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from merlin.config.reach import explain
from merlin.config.seal import seal
from merlin.errors import ExecutionError
from merlin.execution.distributed import names
from merlin.execution.distributed.queues import other_properties

if TYPE_CHECKING:
    from celery import Celery

    from merlin.config.model import Config
    from merlin.execution.distributed.redis_progress import Ticket
    from merlin.study.workspace import Workspace

VERSION = 1
MAX_TICKET_CHARS = 32 * 1024  # in its wrapping twice as long, and workers refuse what is longer than that


class Publisher:
    """Publishes the tickets of any study of one user; threads may share it."""

    def __init__(self, config: Config, app: Celery) -> None:
        self._config, self._app = config, app
        self._priorities = names.PRIORITIES[names.transport(config.broker.kind)]

    def send(self, workspace: Workspace, digest: str, tickets: Iterable[Ticket]) -> int:
        """Send one message per ticket; returns their number.

        Raises:
            ExecutionError: the broker cannot be reached, or has a queue with other properties. The tickets that were
                not sent will be issued again.
        """
        num = 0
        for ticket in tickets:
            body = message_body(workspace, digest, ticket)
            queue = workspace.instance(ticket.instance).queue
            envelope = seal(body, self._config.key)
            if len(envelope["body"]) > MAX_TICKET_CHARS:
                raise ExecutionError(
                    f"no message has room for the names of step instance {ticket.instance[:80]}… and {workspace.path}: "
                    "shorten them"
                )
            self._send(queue, envelope, self._priorities[ticket.level])
            num += 1
        return num

    def forward(self, workspace: Workspace, instance: str, envelope: object) -> None:
        """Put a message back for another worker."""
        self._send(workspace.instance(instance).queue, envelope, self._priorities["run"])

    def _send(self, queue_name: str, envelope: object, priority: int) -> None:
        from amqp.exceptions import PreconditionFailed
        from kombu.exceptions import OperationalError

        from merlin.execution.distributed.app import queue

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
                    queue=queue(self._config, queue_name),
                    priority=priority,
                    retry=True,
                    retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
                )
        except PreconditionFailed as error:
            raise other_properties(self._config, error) or error from None
        except (OperationalError, OSError) as error:
            detail, hint = explain(error, self._config.broker)
            raise ExecutionError(f"{detail}\n  {hint}" if hint else detail) from None


def message_body(workspace: Workspace, digest: str, ticket: Ticket) -> dict[str, Any]:
    """What a message says: where the plan is, which plan it is, and which work is ready."""
    return {
        "v": VERSION,
        "study": workspace.plan.study_id,
        "workspace": str(workspace.path),
        "plan": digest,
        "instance": ticket.instance,
        "lo": ticket.lo,
        "hi": ticket.hi,
        "ticket": ticket.id,
    }
