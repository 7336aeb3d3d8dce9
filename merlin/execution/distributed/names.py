"""Names in the broker and in Redis that do not belong to one study."""

from __future__ import annotations

TASK = "merlin.chunk"

PRIORITIES = {  # of messages; Redis takes low numbers first, RabbitMQ high ones
    "redis": {"retry": 0, "run": 3},
    "amqp": {"retry": 9, "run": 6},
}
MAX_PRIORITY = 9


class Keys:
    """The keys of one user in Redis that do not belong to one study."""

    def __init__(self, namespace: str) -> None:
        self._prefix = f"merlin:{namespace}"
        # HASH study id -> sealed advertisement of a study that is not over
        self.studies = f"{self._prefix}:studies"
        # HASH worker name -> JSON, renewed with every beat
        self.workers = f"{self._prefix}:workers"
        # ZSET worker name -> server time of its last beat
        self.beats = f"{self._prefix}:beats"
        # HASH study id -> sealed, what the study wants of workers
        self.work = f"{self._prefix}:work"
        # HASH name of a counter -> its value; "refused" counts forged messages
        self.counters = f"{self._prefix}:counters"

    def inbox(self, worker: str) -> str:
        """LIST of sealed commands to one worker."""
        return f"{self._prefix}:inbox:{worker}"
