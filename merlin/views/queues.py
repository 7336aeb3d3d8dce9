"""Which queues there are, how full they are, and how many workers serve them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from merlin.config.model import Config
from merlin.execution.distributed.launch import plain_queue
from merlin.execution.distributed.queues import QueueInfo, queue_depths
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.servers import open_registry


def served_queues(worker: WorkerInfo, config: Config | None) -> set[str]:
    """The queues of a worker, as in specs."""
    return {plain_queue(config, queue) for queue in worker.queues}


def open_queues(config: Config) -> list[str]:
    """Queues, as in specs, that have a live worker or belong to an open study; sorted."""
    registry = open_registry(config)
    names = {queue for worker in registry.workers() for queue in served_queues(worker, config)}
    return sorted(names.union(*(study.queues for study in registry.studies())))


def look_at_queues(config: Config, queues: Iterable[str]) -> dict[str, QueueInfo]:
    """The queues (as in specs) by the names that people see.

    Our own register counts the workers: Redis as a broker does not know them.
    """
    workers = open_registry(config).workers()
    found: dict[str, QueueInfo] = {}
    for name, info in queue_depths(config, queues).items():
        full = config.queue_name(name)
        num_workers = sum(full in worker.queues for worker in workers)
        found[config.display_queue(full)] = QueueInfo(depth=info.depth, consumers=num_workers)
    return found


def short_of_time(config: Config, queues: Collection[str]) -> list[str]:
    """Why steps on these queues (as in specs) wait for workers with more time."""
    work = open_registry(config).open_work().values()
    reasons = (reason for said in work for entry in said if entry.queue in queues for reason in entry.waiting)
    return list(dict.fromkeys(reasons))


def unserved_queues(config: Config, queues: Sequence[str]) -> list[str]:
    """Those of the queues (as in specs) that no live worker serves, by the names that people see."""
    alive = open_registry(config).workers()
    served = {queue for worker in alive for queue in served_queues(worker, config)}
    return [config.display_queue(config.queue_name(queue)) for queue in queues if queue not in served]
