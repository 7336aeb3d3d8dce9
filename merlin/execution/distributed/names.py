"""Names in the broker and in Redis that are not part of one study's progress."""

from __future__ import annotations

TASK = "merlin.chunk"

PRIORITIES = {  # of messages; Redis takes low numbers first, RabbitMQ high ones
    "redis": {"retry": 0, "run": 3},
    "amqp": {"retry": 9, "run": 6},
}
MAX_PRIORITY = 9


def studies_key(namespace: str) -> str:
    """HASH study id -> sealed advertisement of a study that is not over."""
    return f"merlin:{namespace}:studies"


def workers_key(namespace: str) -> str:
    """HASH worker name -> JSON, renewed with every beat."""
    return f"merlin:{namespace}:workers"


def beats_key(namespace: str) -> str:
    """ZSET worker name -> server time of its last beat."""
    return f"merlin:{namespace}:beats"


def inbox_key(namespace: str, worker: str) -> str:
    """LIST of sealed commands to one worker."""
    return f"merlin:{namespace}:inbox:{worker}"


def counters_key(namespace: str) -> str:
    """HASH what happened to no study in particular -> how often; "refused" are forged messages."""
    return f"merlin:{namespace}:counters"


def transport(kind: str) -> str:
    """ "redis" or "amqp", of an endpoint's kind."""
    return "amqp" if kind.startswith("amqp") else "redis"
