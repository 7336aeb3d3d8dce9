"""Who serves a published study, as Redis knows it; the ledger is not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from merlin.config.reach import check_endpoint
from merlin.errors import ExecutionError
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.status.activity import LiveWorkers
from merlin.status.startable import startable_queues
from merlin.views.queues import served_queues

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.registry import OpenWork, WorkerInfo
    from merlin.plan.plan import Plan
    from merlin.status.tasks import RunningTasks


class Servers:
    """What Redis knows of all studies and workers of this user, asked once however many studies are looked at.

    Raises ExecutionError if it does not answer.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        reach = check_endpoint(config.backend)  # it waits for a shorter time than a client does
        if not reach.ok:
            raise ExecutionError(f"{reach.detail}\n  {reach.hint}" if reach.hint else reach.detail)
        self._backend = RedisBackend(config, make_client(config.backend), lease_s=0.0)
        self.workers: list[WorkerInfo] = self._backend.registry.workers()
        self._work: dict[str, list[OpenWork]] = self._backend.registry.open_work()

    def serving(self, plan: Plan, counts: Mapping[str, Mapping[int, int]]) -> LiveWorkers | None:
        """The workers of a study; None if Redis does not hold it. `counts`: tasks by outcome, by step instance."""
        if not self._backend.mailbox(plan.study_id).exists():
            return None
        return live_workers(plan, counts, self.workers, self._work.get(plan.study_id, []), self.config)

    def running(self, study_ids: Collection[str]) -> list[RunningTasks]:
        """What the workers run of some studies."""
        from merlin.status.tasks import RunningTasks  # NumPy

        return [
            RunningTasks(
                study_id=chunk.study,
                instance=chunk.instance,
                lo=chunk.lo,
                hi=chunk.hi,
                worker=worker.name,
                host=worker.host,
                since=chunk.since,
            )
            for worker in self.workers
            for chunk in worker.running
            if chunk.study in study_ids
        ]


def live_workers(
    plan: Plan,
    counts: Mapping[str, Mapping[int, int]],
    workers: list[WorkerInfo],
    work: list[OpenWork],
    config: Config | None,
) -> LiveWorkers:
    """What the workers of this user do for one study; `work`: the open work that its owner has announced."""
    served = {worker.name: served_queues(worker, config) for worker in workers}
    queues = {instance.queue for instance in plan.instances}
    ours = [worker for worker in workers if queues & served[worker.name]]
    staying = [worker for worker in ours if not worker.is_stopping]
    known = {instance.id for instance in plan.instances}
    running = Counter(
        chunk.instance
        for worker in ours
        for chunk in worker.running
        if chunk.study == plan.study_id and chunk.instance in known
    )
    open_queues = startable_queues(plan, counts)
    served_now = {queue for worker in staying for queue in served[worker.name]}
    return LiveWorkers(
        num_slots=sum(worker.concurrency for worker in staying),
        running=running,
        num_workers=len(staying),
        num_ending=len(ours) - len(staying),
        idle_queues=tuple(queue for queue in open_queues if queue not in served_now),
        num_open_queues=len(open_queues),
        waiting=tuple(dict.fromkeys(reason for entry in work for reason in entry.waiting)),
    )
