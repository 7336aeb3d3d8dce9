"""Carries out what `batch.autoscale` decides: looks at work, workers and jobs, submits jobs and ends them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from merlin.batch.autoscale import Caps, End, Finish, Move, Situation, Submit, Wait, Work, WorkerJob, decide
from merlin.batch.contract import Job, JobRequest, JobState
from merlin.batch.jobs import SchedulerClient
from merlin.errors import ExecutionError, SchedulerRefusedError, SchedulerUnreachableError
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.tracked_job import Tracked
from merlin.execution.distributed.worker_jobs import WorkerJobs

CALLS_PER_MINUTE = 6  # of the scheduler, whatever they are
POLLS_PER_MINUTE = 3.0  # of them questions about all jobs
SETTLED_S = 60.0  # between two questions while workers report from every job
STARTING_S = 15.0  # a job is not asked about so soon after its submission
MAX_REFUSED = 3  # submissions in a row
REFUSED_S = 60.0  # before the next submission after a refused one; twice as long after each further one
MOST_REFUSED_S = 900.0
TOLD_S = 60.0  # for the workers of a job to finish; then it is cancelled
WINDOW_S = 20.0  # in which the rate is measured
LEAST_SHARE = 0.1  # of the slots: a lower rate only means that tasks have not reported yet
USUAL_START_S = 60.0
READ_AGAIN_S = 30.0  # between two looks at the records of jobs
LAST_LOOK_S = 4.0  # between two questions whether the last jobs are over, when all their workers have left
NEAR_END_S = 5.0  # of work for all slots: its end is looked for often,
LONG_END_S = 30.0  # but not for longer, if the last tasks take their time
NEW_S = 60.0  # a job that the scheduler does not know so soon after its submission is not over


class LookedAt(Protocol):
    """The work on the queues at one moment; see `views.demand`."""

    @property
    def num_open(self) -> int: ...
    @property
    def num_startable(self) -> int: ...
    @property
    def left_s(self) -> float | None: ...
    @property
    def busy_s(self) -> float: ...
    @property
    def needs_s(self) -> Mapping[str, float]: ...
    @property
    def workers(self) -> Sequence[WorkerInfo]: ...
    @property
    def bad_nodes(self) -> Collection[str]: ...


class Demanding(Protocol):
    """The queues that the jobs are for."""

    def look(self) -> LookedAt: ...
    def stop(self, names: Collection[str]) -> None: ...


class Rate:
    """The share of their time that slots spend on tasks, measured while there is enough to do."""

    def __init__(self) -> None:
        self.share = 1.0
        self._since: tuple[float, float] | None = None  # time, busy seconds
        self._slot_s = 0.0
        self._last = 0.0

    def update(self, now: float, busy_s: float, num_slots: int, *, is_saturated: bool) -> None:
        if not is_saturated or self._since is None or busy_s < self._since[1]:
            self._since, self._slot_s, self._last = (now, busy_s) if is_saturated else None, 0.0, now
            return
        self._slot_s += num_slots * (now - self._last)
        self._last = now
        if now - self._since[0] >= WINDOW_S and self._slot_s > 0:
            measured = (busy_s - self._since[1]) / self._slot_s
            self.share = min(1.0, max(LEAST_SHARE, measured))
            self._since, self._slot_s = (now, busy_s), 0.0


class Autoscaler:
    """One round after another; `round` returns the moves that were made, or why none was."""

    def __init__(
        self,
        jobs: WorkerJobs,
        client: SchedulerClient,
        caps: Caps,
        demand: Demanding,
        *,
        clock: Callable[[], float],
        assumed_slots: float = 1.0,
    ) -> None:
        """`clock`: epoch seconds; `assumed_slots`: of a node, as long as no worker has reported."""
        self._jobs, self._client, self._caps, self._demand = jobs, client, caps, demand
        self._clock = clock
        self._rate = Rate()
        self._start_s = USUAL_START_S
        self._num_fruitless = self._num_refused = 0
        self._refusal = ""
        self._per_node: float | None = None  # slots, as seen last
        self._assumed_slots = assumed_slots
        self._num_slots = 0
        self._near_end_at: float | None = None  # when the end of the work seemed near
        self._tracked: dict[str, Tracked] = {}  # by the job's name
        self._over: set[str] = set()
        self._nodes: set[str] = set()  # that the scheduler is known to have
        self._read_again_at = 0.0
        self._submit_again_at = 0.0
        self._looked_at = 0.0  # at the jobs
        self._asked_at = 0.0  # whether the last jobs are over
        self.is_hurried = False  # the next round is likely to decide something else

    @property
    def live_jobs(self) -> list[str]:
        return [t.record.id or t.record.name for t in self._tracked.values()]

    @property
    def refusal(self) -> str:
        """Why the scheduler has refused the last job; "" if it has not."""
        return self._refusal if self._num_refused else ""

    def round(self) -> list[Move]:
        """Look, decide, act. Only WorkspaceError and UsageError come out: the disk, or a spec that makes no script."""
        now = self._clock()
        try:
            looked = self._demand.look()
        except ExecutionError as error:
            return [Wait(reason=f"the servers do not answer, so nothing is decided: {_first_line(error)}")]
        trouble = self._look_at_jobs(looked)
        self._look_at_workers(looked, now)
        situation = self._situation(looked, trouble, now)
        is_probed = looked.left_s is None and any(t.reported for t in self._tracked.values())
        self.is_hurried = is_probed or not looked.num_open or self._is_near_end(looked, now)
        moves = decide(situation, self._caps)
        made = [self._make(move, looked, now) for move in moves]
        if self._num_refused >= MAX_REFUSED and not self._tracked:
            return [Finish(reason=f"the scheduler takes no job: {self._refusal}", is_failure=True)]
        return made

    def _is_near_end(self, looked: LookedAt, now: float) -> bool:
        if looked.left_s is None or looked.left_s > NEAR_END_S * self._num_slots:
            self._near_end_at = None
            return False
        self._near_end_at = self._near_end_at or now
        return now - self._near_end_at < LONG_END_S

    # ------------------------------------------------------------------ looking

    def _look_at_jobs(self, looked: LookedAt) -> str:
        """Bring the jobs up to date; returns why the scheduler cannot say how they are, or ""."""
        self._read_records()
        try:
            self._settle_doubts()
            if self._num_recent_calls() >= CALLS_PER_MINUTE:
                return ""
            is_urgent = self._is_last_look(looked)
            if self._is_settled(looked) and not is_urgent:
                return ""
            self._looked_at = self._clock()
            known = {t.record.id: t for t in self._tracked.values() if t.record.id}
            for name, job in self._client.jobs(list(known), is_urgent=is_urgent).items():
                self._note(known[name], job)
        except SchedulerUnreachableError as error:
            return _first_line(error)
        return ""

    def _is_settled(self, looked: LookedAt) -> bool:
        """Return whether the scheduler was asked lately, and all jobs except the newest have live workers."""
        now = self._clock()
        return now - self._looked_at < SETTLED_S and all(
            now - t.record.created < STARTING_S or any(self._lives_in(worker, t) for worker in looked.workers)
            for t in self._tracked.values()
        )

    def _is_last_look(self, looked: LookedAt) -> bool:
        """Return whether the work is done, all workers have left, and only the scheduler has to confirm it."""
        is_last = not looked.num_open and all(
            t.told_at is not None
            and (t.reported is not None or t.is_cancelled)
            and not any(self._lives_in(worker, t) for worker in looked.workers)
            for t in self._tracked.values()
        )
        now = self._clock()
        if not is_last or now - self._asked_at < LAST_LOOK_S or not self._may_call():
            return False
        self._asked_at = now
        return True

    def _read_records(self) -> None:
        """Take over the jobs that other processes, or an earlier autoscaler, have submitted for the same spec."""
        if self._clock() < self._read_again_at:
            return
        self._read_again_at = self._clock() + READ_AGAIN_S
        for record in self._jobs.records.all():
            if record.scheduler != self._client.scheduler.name:
                continue
            self._nodes.update(record.seen.hosts if record.seen else ())
            if record.is_open and record.name not in {*self._tracked, *self._over}:
                self._tracked[record.name] = Tracked(record)

    def _settle_doubts(self) -> None:
        """Find the jobs that may or may not have been submitted; submit those that were not."""
        for tracked in [t for t in self._tracked.values() if not t.record.id]:
            if not self._may_call():
                raise SchedulerUnreachableError("it is not known yet whether the last job was submitted")
            name = tracked.record.name
            if tracked.request is not None:
                self._submit_again(tracked, tracked.request)
            elif (found := self._client.find(name)) is not None:
                tracked.record = replace(tracked.record, id=found.id)
                self._jobs.records.write(tracked.record)
            else:
                self._jobs.records.write(replace(tracked.record, refused="it was not submitted"))
                self._forget(name)

    def _submit_again(self, tracked: Tracked, request: JobRequest) -> None:
        try:
            tracked.record = self._jobs.submit(self._client, request, tracked.record.reason)
            tracked.request = None
        except SchedulerRefusedError as error:
            self._forget(request.name)
            self._note_refusal(error)

    def _note(self, tracked: Tracked, job: Job) -> None:
        if job.state is JobState.UNKNOWN and self._clock() - tracked.record.created < NEW_S:
            return
        self._nodes.update(job.hosts)
        if job != tracked.record.seen:
            tracked.note(job.state)
            tracked.record = replace(tracked.record, seen=job, seen_at=self._clock())
            self._jobs.records.write(tracked.record)
        if job.state.is_over:
            if not tracked.has_worked and not tracked.record.cancelled:
                self._num_fruitless += 1
            self._forget(tracked.record.name)

    def _forget(self, name: str) -> None:
        self._over.add(name)
        del self._tracked[name]

    def _look_at_workers(self, looked: LookedAt, now: float) -> None:
        here = self._client.scheduler.system
        self._nodes.update(w.node for w in looked.workers if w.node and w.scheduler == here)
        for tracked in self._tracked.values():
            if tracked.is_requeued:
                continue
            inside = [worker for worker in looked.workers if self._lives_in(worker, tracked)]
            is_busy = any(worker.running for worker in inside)
            tracked.ends = min((w.ends for w in inside if w.ends is not None), default=tracked.ends)
            if inside and tracked.reported is None:
                tracked.reported = tracked.busy_at = now
                tracked.had_done_s = looked.busy_s
                if not tracked.has_worked:
                    self._start_s = max(1.0, now - tracked.record.created)
            if not inside or is_busy:
                tracked.busy_at = now
            if inside and (is_busy or looked.busy_s > tracked.had_done_s):
                tracked.has_worked, self._num_fruitless = True, 0

    def _lives_in(self, worker: WorkerInfo, tracked: Tracked) -> bool:
        record = tracked.record
        return bool(record.id) and worker.allocation == (self._client.scheduler.system, record.id)

    # ------------------------------------------------------------------ deciding

    def _situation(self, looked: LookedAt, trouble: str, now: float) -> Situation:
        ours = [w for w in looked.workers if any(self._lives_in(w, t) for t in self._tracked.values())]
        names = {worker.name for worker in ours}
        own, elsewhere = _slots(ours), _slots(w for w in looked.workers if w.name not in names)
        self._num_slots = num_slots = sum(own.values()) + sum(elsewhere.values())
        self._rate.update(now, looked.busy_s, num_slots, is_saturated=looked.num_startable > num_slots > 0)
        like = own or elsewhere  # what a node of a job can do, or is likely to
        if like:
            self._per_node = sum(like.values()) / len(like)
        per_node = self._per_node
        return Situation(
            now=now,
            work=Work(
                is_open=looked.num_open > 0,
                num_startable=looked.num_startable,
                left_s=looked.left_s,
                longest_s=max(looked.needs_s.values(), default=0.0),
            ),
            jobs=None if trouble else [self._worker_job(t, now) for t in self._tracked.values()],
            trouble=trouble,
            slots_per_node=per_node,
            rate_per_node=None if per_node is None else per_node * self._rate.share,
            assumed_slots=self._assumed_slots,
            elsewhere=sum(elsewhere.values()) * self._rate.share,
            start_s=self._start_s,
            num_fruitless=self._num_fruitless,
        )

    def _worker_job(self, tracked: Tracked, now: float) -> WorkerJob:
        record = tracked.record
        return WorkerJob(
            id=record.name,
            num_nodes=record.num_nodes,
            is_running=tracked.is_running,
            ends=(record.seen.ends if record.seen else None) or tracked.ends,
            lasts_s=record.walltime_s,
            idle_s=now - tracked.busy_at if tracked.reported is not None else 0.0,
            is_told=tracked.told_at is not None and (now - tracked.told_at < TOLD_S or tracked.is_cancelled),
        )

    # ------------------------------------------------------------------ acting

    def _may_call(self) -> bool:
        """Return whether the scheduler has been called less often than it may be."""
        return self._num_recent_calls() < CALLS_PER_MINUTE - 1  # a submission without an answer asks as well

    def _num_recent_calls(self) -> int:
        since = self._clock() - 60.0
        return sum(call.at > since for call in self._client.calls)

    def _make(self, move: Move, looked: LookedAt, now: float) -> Move:
        """Make a move; returns it with the id of its job, or why it was not made."""
        if isinstance(move, Submit):
            return self._submit(move, sorted(self._nodes & set(looked.bad_nodes)))
        if isinstance(move, End):
            return self._end(move, looked, now)
        return move

    def _submit(self, move: Submit, excluded: list[str]) -> Move:
        """Submit a job that gets none of the nodes `excluded`; all of them must be known to the scheduler."""
        if self._clock() < self._submit_again_at:
            return Wait(reason=f"the last job was refused: {self._refusal}")
        if not self._may_call():
            return Wait(reason="the scheduler was called often enough for this minute")
        if excluded:
            move = replace(move, reason=f"{move.reason}; not on {', '.join(excluded)}, where tasks fail")
        request = self._jobs.request(move.num_nodes, move.walltime_s, excluded)
        try:
            record = self._jobs.submit(self._client, request, move.reason)
        except SchedulerRefusedError as error:
            self._over.add(request.name)
            self._note_refusal(error)
            return Wait(reason=self._refusal)
        except SchedulerUnreachableError as error:
            record = self._jobs.records.read(request.name)
            self._tracked[request.name] = Tracked(record, request)
            return Wait(reason=f"the scheduler does not answer: {_first_line(error)}")
        self._num_refused = 0
        self._tracked[request.name] = Tracked(record)
        return replace(move, job=record.id)

    def _note_refusal(self, error: SchedulerRefusedError) -> None:
        """Note a refusal, and when to try again: a limit of the site may go away, an error in the job does not."""
        wait_s = min(MOST_REFUSED_S, REFUSED_S * 2.0**self._num_refused)
        self._num_refused, self._refusal = self._num_refused + 1, _first_line(error)
        self._submit_again_at = self._clock() + wait_s

    def _end(self, move: End, looked: LookedAt, now: float) -> Move:
        tracked = self._tracked[move.job]
        inside = [worker.name for worker in looked.workers if self._lives_in(worker, tracked)]
        try:
            if tracked.reported is not None and tracked.told_at is None:
                self._demand.stop(inside)  # workers that are leaving already are not among them
            elif not self._may_call():
                return Wait(reason="the scheduler was called often enough for this minute")
            else:
                self._client.cancel([tracked.record.id])
                tracked.is_cancelled = True
        except ExecutionError as error:
            return Wait(reason=_first_line(error))
        tracked.told_at = now
        tracked.record = replace(tracked.record, cancelled=move.reason)
        self._jobs.records.write(tracked.record)
        return replace(move, job=tracked.record.id)


def _slots(workers: Iterable[WorkerInfo]) -> dict[tuple[str, str], int]:
    """How many tasks the workers run at once, by job and node; at most the number of the node's cores."""
    found: dict[tuple[str, str], list[WorkerInfo]] = {}
    for worker in workers:
        found.setdefault((worker.job, worker.place), []).append(worker)
    slots = {}
    for place, there in found.items():
        wanted, cores = sum(worker.concurrency for worker in there), max(worker.cores for worker in there)
        slots[place] = min(wanted, cores) if cores else wanted
    return slots


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
