"""What autoscale decides: never beyond the caps, nothing without work, and it ends."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from merlin.batch.autoscale import (
    MAX_FRUITLESS,
    Caps,
    End,
    Finish,
    Move,
    Situation,
    Submit,
    Wait,
    Work,
    WorkerJob,
    decide,
)

CAPS = Caps(max_nodes=8, nodes_per_job=4, walltime_s=3600.0, backlog_s=100.0, idle_s=60.0)
BUSY = Work(is_open=True, num_startable=10_000, left_s=8000.0)


def situation(work: Work = BUSY, *jobs: WorkerJob, **more) -> Situation:
    known = {"slots_per_node": 10.0, "rate_per_node": 10.0} if work.left_s is not None else {}
    return Situation(**{"now": 1000.0, "work": work, "jobs": jobs, **known, **more})


def job(name: str = "1", nodes: int = 1, *, is_running: bool = True, **more) -> WorkerJob:
    return WorkerJob(id=name, num_nodes=nodes, is_running=is_running, **more)


def submitted(moves: list[Move]) -> list[int]:
    return [move.num_nodes for move in moves if isinstance(move, Submit)]


def ended(moves: list[Move]) -> set[str]:
    return {move.job for move in moves if isinstance(move, End)}


def test_a_scheduler_that_does_not_answer_is_never_no_jobs():
    (move,) = decide(situation(jobs=None, trouble="squeue gave no answer"), CAPS)
    assert isinstance(move, Wait)
    assert "squeue gave no answer" in move.reason


def test_while_no_task_has_ended_each_is_assumed_to_take_a_second():
    unknown = Work(is_open=True, num_startable=300)
    assert submitted(decide(situation(unknown), CAPS)) == [3]  # 300 s / (one slot a node * 100 s)
    assert submitted(decide(situation(unknown, assumed_slots=2.0), CAPS)) == [2]
    assert submitted(decide(situation(unknown, slots_per_node=300.0, rate_per_node=300.0), CAPS)) == [1]
    assert submitted(decide(situation(replace(unknown, num_startable=10_000)), CAPS)) == [4, 4]
    assert submitted(decide(situation(unknown), replace(CAPS, min_nodes=5, nodes_per_job=5))) == [5]
    for first in (job(nodes=3, is_running=False), job(nodes=3)):
        assert [type(move) for move in decide(situation(unknown, first), CAPS)] == [Wait]
    assert submitted(decide(situation(replace(unknown, num_startable=0)), CAPS)) == []


def test_while_no_task_has_ended_a_walltime_of_its_step_counts():
    long = Work(is_open=True, num_startable=6, longest_s=3600.0)
    assert submitted(decide(situation(long), CAPS)) == [4, 2]
    assert submitted(decide(situation(long, assumed_slots=6.0), CAPS)) == [1]
    assert {move.walltime_s for move in decide(situation(long), CAPS)} == {3600.0}


def test_what_the_ledger_knows_is_not_learned_again_from_a_first_node():
    known = replace(situation(), slots_per_node=None, rate_per_node=None, assumed_slots=10.0)
    assert submitted(decide(known, CAPS)) == [4, 4]


def test_work_over_rate_and_backlog_says_how_many_nodes():
    assert submitted(decide(situation(), CAPS)) == [4, 4]  # 8000 s / (10 a node and second * 100 s)
    assert submitted(decide(situation(BUSY, job(nodes=5)), CAPS)) == [3]
    assert submitted(decide(situation(replace(BUSY, left_s=3000.0)), CAPS)) == [3]


def test_no_new_job_for_work_that_the_present_ones_finish_within_the_backlog():
    assert submitted(decide(situation(replace(BUSY, left_s=1990.0), job(nodes=2)), CAPS)) == []
    assert submitted(decide(situation(replace(BUSY, left_s=2010.0), job(nodes=2)), CAPS)) == [1]


@pytest.mark.parametrize(("start_s", "nodes"), [(2.0, [4, 3]), (20.0, [1]), (1000.0, [])])
def test_where_jobs_start_soon_more_of_them_are_worth_it(start_s, nodes):
    now = situation(replace(BUSY, left_s=800.0), job(), start_s=start_s)
    assert submitted(decide(now, replace(CAPS, backlog_s=None))) == nodes


def test_no_node_without_a_task_for_it():
    assert submitted(decide(situation(replace(BUSY, num_startable=11)), CAPS)) == [2]
    assert submitted(decide(situation(replace(BUSY, num_startable=0)), CAPS)) == []


def test_the_tail_gets_a_shorter_walltime_that_its_longest_task_fits_into():
    (whole,) = {m.walltime_s for m in decide(situation(replace(BUSY, left_s=1e6)), CAPS)}
    assert whole == 3600.0
    (move,) = decide(situation(replace(BUSY, left_s=500.0, longest_s=300.0)), CAPS)
    assert 2 * 300 + 50 <= move.walltime_s < 3600
    (move,) = decide(situation(), replace(CAPS, walltime_s=None, nodes_per_job=8))
    assert move.walltime_s is None


def test_a_job_that_ends_soon_gets_a_replacement_if_the_caps_have_room():
    ending = job(nodes=4, ends=1030.0, lasts_s=3600.0)
    assert sum(submitted(decide(situation(BUSY, ending), CAPS))) == 4
    assert submitted(decide(situation(BUSY, ending), replace(CAPS, max_nodes=4))) == []
    nearly_done = replace(BUSY, left_s=1000.0)  # it ends 30 * 40 s of work
    assert submitted(decide(situation(nearly_done, ending), CAPS)) == []


def test_waiting_jobs_that_come_too_late_and_idle_ones_are_ended():
    waiting, running = job("late", 4, is_running=False), job("busy", 4)
    moves = decide(situation(replace(BUSY, left_s=1000.0), waiting, running), CAPS)
    assert ended(moves) == {"late"}
    few = replace(BUSY, num_startable=1, left_s=1000.0)
    idle = job("idle", 4, idle_s=61.0)
    assert ended(decide(situation(few, idle, running), CAPS)) == {"idle"}
    assert ended(decide(situation(few, idle, running), replace(CAPS, min_nodes=8))) == set()


def test_jobs_that_end_before_a_worker_reports_are_not_repeated_for_ever():
    moves = decide(situation(num_fruitless=MAX_FRUITLESS), CAPS)
    assert [(type(move), move.is_failure) for move in moves] == [(Finish, True)]
    assert [type(m) for m in decide(situation(BUSY, job(), num_fruitless=MAX_FRUITLESS), CAPS)] == [Wait]


def test_after_the_work_the_jobs_are_ended_and_then_it_is_over():
    over = Work(is_open=False)
    assert ended(decide(situation(over, job("a"), job("b", is_told=True)), CAPS)) == {"a"}
    assert [type(move) for move in decide(situation(over, job(is_told=True)), CAPS)] == [Wait]
    assert decide(situation(over), CAPS) == [Finish(reason="the work is done, and no job is left")]


positive = st.floats(0.01, 1e9)
jobs = st.lists(
    st.builds(
        WorkerJob,
        id=st.uuids().map(str),
        num_nodes=st.integers(1, 50),
        is_running=st.booleans(),
        ends=st.none() | st.floats(0, 1e5),
        lasts_s=st.none() | positive,
        idle_s=st.floats(0, 1e4),
        is_told=st.booleans(),
    ),
    max_size=6,
)
works = st.builds(
    Work,
    is_open=st.booleans(),
    num_startable=st.integers(0, 10**8),
    left_s=st.none() | st.floats(0, 1e12),
    longest_s=st.floats(0, 1e6),
)
situations = st.builds(
    Situation,
    now=st.floats(0, 1e5),
    work=works,
    jobs=st.none() | jobs,
    slots_per_node=st.none() | positive,
    rate_per_node=st.none() | positive,
    start_s=st.floats(0, 1e5),
    num_fruitless=st.integers(0, 5),
)
caps = st.builds(
    Caps,
    max_nodes=st.integers(1, 100),
    min_nodes=st.just(0),
    max_jobs=st.none() | st.integers(1, 10),
    nodes_per_job=st.integers(1, 20),
    walltime_s=st.none() | st.floats(60, 1e6),
    backlog_s=st.none() | st.floats(1, 1e5),
    idle_s=st.floats(0, 1e5),
)


@given(now=situations, caps=caps)
def test_the_caps_hold_and_nothing_is_submitted_without_work(now, caps):
    moves = decide(now, caps)
    assert moves
    nodes, present = submitted(moves), now.jobs or ()
    assert not nodes or sum(nodes) + sum(j.num_nodes for j in present) <= caps.max_nodes
    assert not nodes or caps.max_jobs is None or len(nodes) + len(present) <= caps.max_jobs
    assert all(0 < num <= caps.nodes_per_job for num in nodes)
    if now.jobs is None or not now.work.is_open or not now.work.num_startable:
        assert nodes == []
    for move in moves:
        assert move.reason
        if isinstance(move, Submit) and caps.walltime_s is not None:
            assert move.walltime_s is not None
            assert 0 < move.walltime_s <= caps.walltime_s
        if isinstance(move, End):
            assert move.job in {j.id for j in present if not j.is_told}


@dataclass
class Cluster:
    """A scheduler that starts jobs when it likes, does not always answer, and loses some."""

    draw: random.Random
    caps: Caps
    left: int  # tasks
    task_s: float
    jobs: dict[str, WorkerJob] = field(default_factory=dict)
    now: float = 0.0
    num: int = 0
    done: float = 0.0

    def situation(self) -> Situation:
        work = Work(
            is_open=self.left > 0, num_startable=self.left, longest_s=self.task_s,
            left_s=self.left * self.task_s if self.done else None,
        )  # fmt: skip
        known = {"slots_per_node": 4.0, "rate_per_node": 3.5} if self.done else {}
        answers = self.draw.random() > 0.2
        return Situation(now=self.now, work=work, jobs=list(self.jobs.values()) if answers else None, **known)

    def make(self, move: Move) -> None:
        if isinstance(move, Submit):
            self.num += 1
            self.jobs[str(self.num)] = WorkerJob(
                id=str(self.num), num_nodes=move.num_nodes, is_running=False, lasts_s=move.walltime_s
            )
        elif isinstance(move, End):
            self.jobs[move.job] = replace(self.jobs[move.job], is_told=True)

    def pass_time(self) -> None:
        self.now += 10.0
        for name, job in list(self.jobs.items()):
            if job.is_told or (job.ends is not None and job.ends <= self.now):
                del self.jobs[name]
            elif job.is_running:
                got = min(self.left, math.ceil(10.0 * 4 * job.num_nodes / self.task_s))
                self.left, self.done = self.left - got, self.done + got
            elif self.draw.random() < 0.3:
                self.jobs[name] = replace(job, is_running=True, ends=self.now + (job.lasts_s or 3600.0))


@settings(max_examples=repeats(25, 600), deadline=None)
@given(seed=st.integers(0, 2**32), left=st.integers(0, 20_000), task_s=st.floats(0.05, 100), caps=caps)
def test_whatever_the_scheduler_does_the_work_is_done_and_it_ends(seed, left, task_s, caps):
    cluster = Cluster(random.Random(seed), caps, left, task_s)
    for _ in range(200_000):
        moves = decide(cluster.situation(), caps)
        if isinstance(moves[0], Finish):
            break
        for move in moves:
            cluster.make(move)
        assert sum(job.num_nodes for job in cluster.jobs.values()) <= caps.max_nodes
        cluster.pass_time()
    else:
        pytest.fail(f"it does not end: {cluster.left} tasks, {cluster.jobs}")
    assert cluster.left == 0
    assert not cluster.jobs
