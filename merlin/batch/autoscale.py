"""Decides which worker jobs to submit and to end. Pure: a situation in, moves out, each with its reason.

Work is counted in slot-seconds: the time for which the remaining tasks would keep one slot of a worker busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import count, duration

MAX_FRUITLESS = 3  # jobs in a row that ended and have run no task
MIN_WALLTIME_S = 600.0  # of a job at the tail of the work
SPARE = 1.5  # of the walltime over the time that the work should take
LEAST_BACKLOG_S, MOST_BACKLOG_S = 10.0, 120.0
ASSUMED_TASK_S = 1.0  # of a task whose step says no walltime, until the first one has ended
STARTS = 3.0  # a new job is worthwhile only if the present ones take so many times its start time


class Caps(Struct, frozen=True, kw_only=True):
    """What the user allows; nodes and jobs in total, those that wait in the scheduler's queue included."""

    max_nodes: int
    min_nodes: int = 0
    max_jobs: int | None = None
    nodes_per_job: int = 1
    walltime_s: float | None = None  # None: the scheduler's own limit
    # no new job for work that the present ones finish in this time; None: it depends on how fast jobs start
    backlog_s: float | None = None
    idle_s: float = 60.0  # a job whose workers had nothing to do for so long is ended


class Work(Struct, frozen=True, kw_only=True):
    """What is left to do for the queues that the jobs serve."""

    is_open: bool  # a study needs them, or will
    num_startable: int = 0  # slots for the tasks that could run now, or do
    left_s: float | None = None  # slot-seconds; None: no task has ended yet, so nobody knows
    longest_s: float = 0.0  # the longest task to expect


class WorkerJob(Struct, frozen=True, kw_only=True):
    """A job of ours that waits or runs."""

    id: str
    num_nodes: int
    is_running: bool
    ends: float | None = None  # of its walltime, epoch seconds
    lasts_s: float | None = None  # its walltime
    idle_s: float = 0.0  # for how long none of its workers has had anything to do
    is_told: bool = False  # to end


class Situation(Struct, frozen=True, kw_only=True):
    """Everything that a decision depends on."""

    now: float
    work: Work
    jobs: Sequence[WorkerJob] | None  # None: the scheduler does not answer
    trouble: str = ""  # why it does not
    slots_per_node: float | None = None  # of the workers that have reported
    rate_per_node: float | None = None  # slot-seconds that a node gets done in a second
    assumed_slots: float = 1.0  # of a node, as long as no worker has reported
    elsewhere: float = 0.0  # slot-seconds that workers outside of the jobs get done in a second
    start_s: float = 60.0  # from a submission to the first task, as seen so far
    num_fruitless: int = 0  # jobs in a row that ended and have run no task


class Submit(Struct, frozen=True, kw_only=True):
    reason: str
    num_nodes: int
    walltime_s: float | None
    job: str = ""  # its id, once it is submitted


class End(Struct, frozen=True, kw_only=True):
    """End a job: a waiting one is cancelled, the workers of a running one are told to finish."""

    reason: str
    job: str


class Wait(Struct, frozen=True, kw_only=True):
    reason: str


class Finish(Struct, frozen=True, kw_only=True):
    """Nothing is left to do; the caller may end."""

    reason: str
    is_failure: bool = False


Move = Submit | End | Wait | Finish


def decide(now: Situation, caps: Caps) -> list[Move]:
    """The moves to make now, at least one. Nothing is submitted beyond the caps, or without work that could start."""
    if now.jobs is None:
        return [Wait(reason=f"the scheduler does not answer, so nothing is decided: {now.trouble}")]
    if not now.work.is_open:
        return _close(now.jobs)
    if now.num_fruitless >= MAX_FRUITLESS:
        return _give_up(now)
    return list((_probe if now.work.left_s is None else _scale)(_completed(now), now.jobs, caps))


def _completed(now: Situation) -> Situation:
    """The situation with assumptions in place of what nobody knows yet."""
    slots = now.slots_per_node or now.assumed_slots
    task_s = max(ASSUMED_TASK_S, now.work.longest_s)
    if now.work.left_s is None:  # no task has ended, so a measured rate means nothing
        work = replace(now.work, left_s=now.work.num_startable * task_s)
        return replace(now, slots_per_node=slots, rate_per_node=slots, work=work)
    return replace(now, slots_per_node=slots, rate_per_node=now.rate_per_node or slots)


def _close(jobs: Sequence[WorkerJob]) -> list[Move]:
    if not jobs:
        return [Finish(reason="the work is done, and no job is left")]
    moves: list[Move] = [End(reason="the work is done", job=job.id) for job in jobs if not job.is_told]
    return moves or [Wait(reason=f"the work is done; {count(len(jobs), 'job')} still to end")]


def _give_up(now: Situation) -> list[Move]:
    said = f"{count(now.num_fruitless, 'job')} in a row ended and have run no task"
    if now.jobs:
        return [Wait(reason=f"{said}; no more are submitted")]
    return [Finish(reason=f"{said}; merlin workers logs --job ID shows why", is_failure=True)]


def _probe(now: Situation, jobs: Sequence[WorkerJob], caps: Caps) -> Iterator[Move]:
    """The moves while no task has ended: nodes as if each task took the assumed time, but at least one."""
    assert now.work.left_s is not None
    have = sum(job.num_nodes for job in jobs)
    if not now.work.num_startable and have >= caps.min_nodes:
        yield Wait(reason="no task could start now")
        return
    wanted = max(1, _wanted_nodes(now, now.work.left_s, caps))
    task_s = duration(now.work.left_s / max(1, now.work.num_startable))
    reason = f"no task has ended yet: as if each took {task_s}"
    made: list[Move] = list(_submissions(wanted - have, jobs, caps, caps.walltime_s, reason))
    yield from made or [Wait(reason="the first tasks have not ended yet")]


def _backlog_s(now: Situation, caps: Caps) -> float:
    if caps.backlog_s is not None:
        return caps.backlog_s
    return min(MOST_BACKLOG_S, max(LEAST_BACKLOG_S, STARTS * now.start_s))


def _scale(now: Situation, jobs: Sequence[WorkerJob], caps: Caps) -> Iterator[Move]:
    assert now.work.left_s is not None and now.rate_per_node and now.slots_per_node
    staying = [job for job in jobs if not job.is_told and not _ends_soon(job, now)]
    by_ending = sum(_still_done(job, now) for job in jobs if job not in staying)
    left_s = max(0.0, now.work.left_s - by_ending - now.elsewhere * _backlog_s(now, caps))
    have = sum(job.num_nodes for job in staying)
    wanted = _wanted_nodes(now, left_s, caps)
    alone_s = left_s / (now.rate_per_node * have) if have else math.inf
    if wanted > have:
        took = f"{duration(left_s)} of work is left for one slot, {_in(alone_s, have)}"
        walltime_s = _walltime(now, left_s, wanted, caps)
        made: list[Move] = list(_submissions(wanted - have, jobs, caps, walltime_s, took))
        yield from made or [Wait(reason=f"{took}; no more than {_allowed(caps)} at a time")]
        return
    least = max(wanted, caps.min_nodes, min(1, now.work.num_startable))
    surplus: list[Move] = list(_surplus(jobs, least, caps))
    yield from surplus or [Wait(reason=f"no more nodes are needed: {_in(alone_s, have)}")]


def _in(alone_s: float, have: int) -> str:
    return f"{count(have, 'node')} would take {duration(alone_s)}" if have else "no node is at it"


def _allowed(caps: Caps) -> str:
    jobs = f" in {count(caps.max_jobs, 'job')}" if caps.max_jobs is not None else ""
    return count(caps.max_nodes, "node") + jobs


def _wanted_nodes(now: Situation, left_s: float, caps: Caps) -> int:
    """The number of nodes that get the work done within the backlog time, but no more than find tasks to run."""
    assert now.rate_per_node and now.slots_per_node
    if not now.work.num_startable:
        return caps.min_nodes
    is_anybody_there = now.elsewhere > 0 or any(not job.is_told for job in now.jobs or ())
    least = 0 if is_anybody_there else 1
    for_time = max(least, math.ceil(left_s / (now.rate_per_node * _backlog_s(now, caps))))
    for_tasks = math.ceil(now.work.num_startable / now.slots_per_node)
    return max(caps.min_nodes, min(for_time, for_tasks, caps.max_nodes))


def _ends_soon(job: WorkerJob, now: Situation) -> bool:
    """Return whether this job ends so soon that a job which is submitted now would only begin then."""
    if not job.is_running or job.ends is None:
        return False
    lead_s = min(now.start_s, 0.25 * (job.lasts_s or math.inf))
    return job.ends - now.now <= lead_s


def _still_done(job: WorkerJob, now: Situation) -> float:
    """The work that a job will get done before it ends."""
    assert now.rate_per_node
    if job.is_told or job.ends is None:
        return 0.0
    return max(0.0, job.ends - now.now) * job.num_nodes * now.rate_per_node


def _walltime(now: Situation, left_s: float, num_nodes: int, caps: Caps) -> float | None:
    """The walltime of a new job, which is short when little work is left.

    A short job starts sooner, and costs less where the requested time is charged.
    """
    assert now.rate_per_node
    if caps.walltime_s is None:
        return None
    needed_s = SPARE * (left_s / (now.rate_per_node * num_nodes) + 2 * now.work.longest_s) + now.start_s
    return min(caps.walltime_s, max(MIN_WALLTIME_S, 60 * math.ceil(needed_s / 60)))


def _submissions(
    num_nodes: int, jobs: Sequence[WorkerJob], caps: Caps, walltime_s: float | None, reason: str
) -> Iterator[Submit]:
    """New jobs with `num_nodes` nodes together, as far as the caps allow."""
    room = min(num_nodes, caps.max_nodes - sum(job.num_nodes for job in jobs))
    num_jobs = len(jobs)
    while room > 0 and (caps.max_jobs is None or num_jobs < caps.max_jobs):
        nodes = min(room, caps.nodes_per_job)
        yield Submit(reason=reason, num_nodes=nodes, walltime_s=walltime_s)
        room, num_jobs = room - nodes, num_jobs + 1


def _surplus(jobs: Sequence[WorkerJob], least: int, caps: Caps) -> Iterator[End]:
    """Waiting jobs that would come too late, and running ones that have nothing to do."""
    have = sum(job.num_nodes for job in jobs if not job.is_told)
    for job in sorted(jobs, key=lambda job: job.is_running):
        is_idle = job.is_running and job.idle_s >= caps.idle_s
        is_needed = have - job.num_nodes < least
        if job.is_told or is_needed or (job.is_running and not is_idle):
            continue
        have -= job.num_nodes
        why = (
            f"its workers have had nothing to do for {duration(job.idle_s)}"
            if is_idle
            else "not needed any more"
        )
        yield End(reason=why, job=job.id)
