"""The workers that serve a study, as its owner has counted them, and what the study wants of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from merlin.execution.distributed.registry import OpenWork, WorkerInfo
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.owner import Owner

log = logging.getLogger("merlin.worker")

SLOTS_S = 0.5  # between two counts of the workers, or longer:
SLOTS_SHARE = 0.05  # at most this share of the time
STOP_WORKERS_S = 60.0  # after a task asked the workers to stop, as in upstream Merlin


class Workforce:
    """Slots, ends and machines of the workers, by queue, and why steps wait for other workers."""

    def __init__(self, study: Study, tools: Tools) -> None:
        self._study, self._tools = study, tools
        self.next_count = 0.0  # when to count again, by `monotonic`
        self.slots: dict[str, int] = {}  # by queue: chunks that its workers run at a time
        self.machines: dict[str, list[tuple[int, int]]] = {}  # by queue: cores and GPUs of its workers
        # by queue: (server time, slots of which tasks end then)
        self._ends: dict[str, list[tuple[float, int]]] = {}
        self._waiting: dict[str, list[str]] = {}  # by queue: why steps wait for other workers
        self._published: list[OpenWork] | None = None

    def times(self, now: float) -> dict[str, list[tuple[float, int]]]:
        """Return for each queue (seconds that workers have left, their slots)."""
        return {queue: [(end - now, num) for end, num in ends] for queue, ends in self._ends.items()}

    def count(self, owner: Owner) -> None:
        """Count the workers of each queue, and publish what the study wants of them."""
        began = time.monotonic()
        alive = [worker for worker in self._tools.backend.registry.workers() if not worker.is_stopping]
        for queue in self._study.queues:
            full = self._tools.config.queue_name(queue)
            good = (w for w in alive if w.place not in owner.bad_nodes.quarantined)
            serving = [worker for worker in good if full in worker.queues]
            self.slots[queue] = sum(worker.concurrency for worker in serving)
            self._ends[queue] = sorted((w.tasks_end, w.concurrency) for w in serving)
            owner.nodes[queue] = {w.place for w in serving}
            (owner.awaited.add if _are_nodes_missing(serving) else owner.awaited.discard)(queue)
            self.machines[queue] = [(w.cores, len(w.gpus)) for w in serving]
        self._publish(owner)
        took = time.monotonic() - began
        self.next_count = began + max(SLOTS_S, took / SLOTS_SHARE)

    def _publish(self, owner: Owner) -> None:
        """Say what the study wants of workers, if that has changed."""
        bad = sorted(owner.bad_nodes.quarantined)
        why = [why_quarantined(node, owner.bad_nodes.quarantined[node]) for node in bad]
        waiting = {queue: list(reasons) for queue, reasons in self._waiting.items()}
        work = [
            OpenWork(
                queue=queue,
                num_at_once=num,
                need=need,
                need_s=need_s,
                avoid=bad,
                waiting=[*waiting.pop(queue, []), *why],
            )
            for (queue, need), (num, need_s) in owner.scheduler.open_work().items()
        ]
        if work != self._published:
            self._tools.backend.registry.publish_work(self._study.id, work)
            self._published = work

    def note_waiting(self, waiting: dict[str, list[str]]) -> None:
        """Log which steps wait for other workers, once until that changes."""
        before = {reason.partition("; ")[0] for reasons in self._waiting.values() for reason in reasons}
        for reason in (reason for reasons in waiting.values() for reason in reasons):
            if reason.partition("; ")[0] not in before:
                log.warning("%s: %s", self._study.workspace.path, reason)
        self._waiting = waiting

    def names_on(self, node: str) -> set[str]:
        """All workers of a node, whether they are still there or not."""
        return {w.name for w in self._tools.backend.registry.workers(all=True) if w.place == node}

    def stop(self, *, now: bool) -> None:
        """Stop the workers, as a task has asked: at once (the study is over), or after a while.

        The study is not stopped: its remaining tasks run as soon as there are workers again.
        """
        queues = {self._tools.config.queue_name(queue) for queue in self._study.queues}
        names = [w.name for w in self._tools.backend.registry.workers() if queues & set(w.queues)]
        self._tools.backend.registry.send(names, "stop", in_s=0.0 if now else STOP_WORKERS_S)


def _are_nodes_missing(workers: Iterable[WorkerInfo]) -> bool:
    """Whether an allocation has nodes without a worker: they start one after the other."""
    found: dict[tuple[str, str], set[str]] = {}
    sizes = {}
    for worker in workers:
        if worker.job:
            found.setdefault(worker.allocation, set()).add(worker.node)
            sizes[worker.allocation] = worker.num_nodes
    return any(len(nodes) < sizes[job] for job, nodes in found.items())
