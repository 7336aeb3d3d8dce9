"""Decides for a study on workers: their reports go in, chunks to offer to them come out.

Pure, like its scheduler: no clock, no server, no disk. An *offer* is a chunk that waits in a queue; the worker that
takes it holds its lease. The process that carries out the decisions made here is the owner of the study (one process
at a time); it passes everything that it learns to the events of `Owner`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from math import inf

from msgspec import Struct

from merlin.plan.bad_nodes import BadNodes
from merlin.plan.chunking import LEAST_S
from merlin.plan.durations import too_short
from merlin.plan.fit import ONE_CORE, QueueRoom, lacking, needs_of
from merlin.plan.offers import OfferLine
from merlin.plan.pieces import Run
from merlin.plan.reports import ChunkReport, not_failed, settle_report, together, without_failures
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import Chunk, Outcome

Times = Collection[tuple[float, int]]  # of the workers of a queue: (seconds that they have left, slots)
Machines = Collection[tuple[int, int]]  # of the workers of a queue: (cores, GPUs)
SPARE_S = 600.0  # failures on one node do not stop a study for so long, if other nodes may show what is wrong
AWAIT_S = 60.0  # the same if the other nodes have no workers yet
SECONDS_PER_RESULT = 0.001  # spent by one owner on a result; chunks take longer when there are many workers


class Handout(Struct, frozen=True, kw_only=True):
    """A chunk that was offered, and who holds its lease."""

    chunk: Chunk
    since: float  # when it was offered or taken
    worker: str = ""  # "": it is an offer still

    @property
    def lease(self) -> str:
        return self.chunk.lease


class Owner:
    """What is offered, who runs what, and the scheduler that decides it."""

    def __init__(self, scheduler: Scheduler, *, min_chunk_s: float) -> None:
        """`min_chunk_s`: work per chunk; with many workers, chunks are larger."""
        self.scheduler = scheduler
        self._min_chunk_s = min_chunk_s
        self._queues = {instance.id: instance.queue for instance in scheduler.plan.instances}
        self._needs = needs_of(scheduler.plan)
        self._has_small_tasks_only = set(self._needs.values()) <= {ONE_CORE}
        self._offered: dict[str, OfferLine] = {}  # by queue
        self._steps = {instance.id: instance.step for instance in scheduler.plan.instances}
        self._failing_since: dict[str, float] = {}  # by step: all that has ended did so on one node
        self.bad_nodes = BadNodes()
        self.nodes: dict[str, set[str]] = {}  # by queue: where its workers are
        self.awaited: set[str] = set()  # queues whose workers are not on all nodes of their allocations yet

    # ------------------------------------------------------------------ events

    def adopt(self, handouts: Iterable[Handout]) -> list[str]:
        """Take over what an earlier owner has handed out; returns the leases that are void."""
        void = []
        for handout in handouts:
            chunk = handout.chunk
            if chunk.instance not in self._queues or not self.scheduler.adopt(chunk):
                void.append(chunk.lease)
            elif not handout.worker:
                self._line_of(chunk).since[chunk.lease] = handout.since
                if self.scheduler.held(chunk.lease) != chunk:  # an offer that waits cannot have ended in part
                    void += self._withdraw([chunk])
        return void

    def taken(self, lease: str) -> None:
        """Note that the chunk of this lease is no longer an offer: a worker has taken it."""
        if (chunk := self.scheduler.held(lease)) is not None:
            self._line_of(chunk).leave(lease)

    def reported(self, report: ChunkReport, done: Iterable[Run], now: float) -> bool:
        """Handle a report on a chunk that a worker holds no longer; False if that chunk is not handed out.

        `done`: the outcomes that we see in the ledger, if the chunk's process did not report them.
        """
        self.taken(report.chunk.lease)
        if self.scheduler.held(report.chunk.lease) is not None:
            self._judge_node(report, done, now)
        if report.node in self.bad_nodes.quarantined:
            report, done = without_failures(report), not_failed(done)
        return settle_report(self.scheduler, report, done, now)

    def _judge_node(self, report: ChunkReport, done: Iterable[Run], now: float) -> None:
        """Note on which node tasks have failed, so that the canary does not stop a study because of one node."""
        chunk, step = report.chunk, self._steps[report.chunk.instance]
        if report.result is not None:
            runs = tuple(report.result.runs)
        elif report.died and not (report.is_infrastructure or report.is_interrupted or report.trouble):
            runs = together(chunk, done, report.done)
            first = next((t for t in chunk.task_ids() if not any(a <= t < b for a, b, _ in runs)), chunk.lo)
            runs = (*runs, (first, first + 1, int(Outcome.FAILED)))
        else:
            return
        self.bad_nodes.ended(report.node, step, chunk.instance, runs)
        queue = self._queues[chunk.instance]
        since = self._failing_since.setdefault(step, now)
        limit_s = AWAIT_S if queue in self.awaited else 0.0
        if self.nodes.get(queue, set()) - {report.node}:
            limit_s = SPARE_S
        is_one = bool(report.node) and self.bad_nodes.is_on_one_node(step)
        self.scheduler.is_canary_spared = is_one and now - since < limit_s

    def expired(self, lease: str, done: Iterable[Run]) -> Chunk | None:
        """Handle a lease whose holder was silent for too long; returns its chunk, None if that is not handed out."""
        chunk = self.scheduler.held(lease)
        if chunk is not None:
            self.taken(lease)
            self.scheduler.lost(chunk, done, signal="its worker was lost", infrastructure=True)
        return chunk

    # ----------------------------------------------------------------- answers

    def offers(
        self,
        slots: Mapping[str, int],
        now: float,
        limit: int,
        times: Mapping[str, Times] | None = None,
        machines: Mapping[str, Machines] | None = None,
    ) -> list[Chunk]:
        """At most `limit` chunks to be offered; with `times` only what its workers can finish.

        As many wait in each queue as its workers run at a time, or as many as they take within seconds. With
        `machines`, no more of those that need several cores, or GPUs, than there is room for.
        """
        num_slots = max(1, sum(slots.values()))
        self.scheduler.num_workers = num_slots
        round_s = SECONDS_PER_RESULT * num_slots  # in which this owner can deal with a result of each
        self.scheduler.target_s = max(self._min_chunk_s, round_s)
        self.scheduler.least_s = max(LEAST_S, round_s / 4)
        out: list[Chunk] = []
        self.scheduler.avoid = tuple(sorted(self.bad_nodes.quarantined))
        queues = deque(dict.fromkeys(self._queues.values()))
        rooms = {queue: self._room(queue, (machines or {}).get(queue, ())) for queue in queues}
        while queues and len(out) < limit:
            queue = queues.popleft()
            line = self._offered.setdefault(queue, OfferLine())
            if len(line.since) >= max(1, min(slots.get(queue, 0), line.demand(now))):
                continue
            left_s = self._longest_need_s(line, (times or {}).get(queue, ()))
            room = rooms[queue]
            if (chunk := self.scheduler.take(now, queue, left_s=left_s, room=room)) is not None:
                line.since[chunk.lease] = now
                if room is not None:
                    room.add(self._needs[chunk.instance])
                out.append(chunk)
                queues.append(queue)  # in turn: none waits for a queue that is never full
        return out

    def lacking(self, machines: Mapping[str, Machines]) -> dict[str, list[str]]:
        """By queue, why steps wait that could run if a worker had the devices for one of their tasks."""
        if self._has_small_tasks_only:
            return {}
        rooms = {queue: QueueRoom(machines.get(queue, ())) for queue in dict.fromkeys(self._queues.values())}
        found = [i for i in self.scheduler.plan.instances if rooms[i.queue].lacks(self._needs[i.id])]
        counts = self.scheduler.counts() if found else {}
        out: dict[str, dict[str, None]] = {}
        for i in found:
            if counts[i.id].ready or counts[i.id].queued:
                out.setdefault(i.queue, {})[lacking(i.step, self._needs[i.id], i.queue)] = None
        return {queue: list(reasons) for queue, reasons in out.items()}

    def why_waiting(
        self, times: Mapping[str, Times], machines: Mapping[str, Machines]
    ) -> dict[str, list[str]]:
        """By queue, why steps that could run wait for workers with more time or more devices."""
        both = self.too_short(times), self.lacking(machines)
        return {
            queue: [reason for part in both for reason in part.get(queue, ())]
            for queue in dict.fromkeys((*both[0], *both[1]))
        }

    def _room(self, queue: str, machines: Machines) -> QueueRoom | None:
        """What the workers of a queue can take besides what waits for them; None if all tasks need one core."""
        if self._has_small_tasks_only:
            return None
        waiting = self._waiting(self._offered.setdefault(queue, OfferLine()))
        return QueueRoom(machines, [self._needs[chunk.instance] for chunk in waiting])

    def withdraw_unfit(
        self, times: Mapping[str, Times], machines: Mapping[str, Machines] | None = None
    ) -> list[str]:
        """Take back the offers for which no worker has the time or the devices; returns their leases."""
        unfit: list[Chunk] = []
        for queue, line in self._offered.items():
            longest_s = max((left_s for left_s, _ in times.get(queue, ())), default=inf)
            room = QueueRoom((machines or {}).get(queue, ()))
            unfit += [
                chunk
                for chunk in self._waiting(line)
                if chunk.need_s > longest_s or room.lacks(self._needs[chunk.instance])
            ]
        return self._withdraw(unfit)

    def too_short(self, times: Mapping[str, Times]) -> dict[str, list[str]]:
        """By queue, why steps wait that could run if a worker had the time for one of their tasks."""
        out = {}
        for queue in dict.fromkeys(self._queues.values()):
            longest_s = max((left_s for left_s, _ in times.get(queue, ())), default=inf)
            needs = self.scheduler.needs(queue).items() if longest_s < inf else ()
            waiting = [too_short(step, need_s, longest_s) for step, need_s in needs if need_s > longest_s]
            if waiting:
                out[queue] = waiting
        return out

    def _waiting(self, line: OfferLine) -> list[Chunk]:
        """The offers in a queue."""
        held = map(self.scheduler.held, line.since)
        return [chunk for chunk in held if chunk is not None]

    def _longest_need_s(self, line: OfferLine, times: Times) -> float:
        """The longest time that a task may take so that it and all offers in its queue find slots with enough time."""
        if all(left_s == inf for left_s, _ in times):  # also if there are no workers yet
            return inf
        needs_s = [chunk.need_s for chunk in self._waiting(line)]
        num_slots, longest_s = sum(num for _, num in times), -inf
        for left_s, num in sorted(times):
            if sum(need_s > longest_s for need_s in needs_s) >= num_slots:
                break
            longest_s, num_slots = left_s, num_slots - num
        return longest_s

    def is_retry(self, chunk: Chunk) -> bool:
        """Return whether a chunk was handed out before: it is to run before others."""
        return bool(chunk.retries) or chunk.attempt > self.scheduler.first_attempt

    def withdraw(self) -> list[str]:
        """Take back all offers that wait; returns their leases."""
        return self._withdraw([chunk for line in self._offered.values() for chunk in self._waiting(line)])

    def _withdraw(self, offers: list[Chunk]) -> list[str]:
        for chunk in offers:
            self.taken(chunk.lease)
            self.scheduler.give_back(chunk)
        return [chunk.lease for chunk in offers]

    def fail(self, instances: Collection[str], cause: str) -> list[Chunk]:
        """End all unfinished tasks of these step instances as failed; returns their chunks that were handed out."""
        chunks = self.scheduler.fail(instances, cause)
        for chunk in chunks:
            self._line_of(chunk).leave(chunk.lease)
        return chunks

    def overdue(self, now: float, wait_s: float) -> dict[str, list[Chunk]]:
        """By queue, offers that nobody has taken for `wait_s`."""
        out: dict[str, list[Chunk]] = {}
        for queue, line in self._offered.items():
            for chunk in self._waiting(line):
                if now - line.since[chunk.lease] >= wait_s:
                    out.setdefault(queue, []).append(chunk)
        return out

    def offered_again(self, chunks: Iterable[Chunk], now: float) -> None:
        """Note that the messages of these chunks were sent once more."""
        for chunk in chunks:
            self._line_of(chunk).offered_again(chunk.lease, now)

    def has_waited(self, chunk: Chunk, now: float) -> bool:
        """Return whether a chunk has waited so long that its message may be lost; see `OfferLine.has_waited`."""
        return self._line_of(chunk).has_waited(chunk.lease, now)

    def running(self) -> int:
        """Chunks that workers hold."""
        return self.scheduler.num_running - sum(len(line.since) for line in self._offered.values())

    def _line_of(self, chunk: Chunk) -> OfferLine:
        return self._offered.setdefault(self._queues[chunk.instance], OfferLine())
