"""The rounds of autoscale, on a Slurm that only keeps a list: what it submits, ends and survives."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paper_slurm import PaperSlurm

from merlin.batch.autoscale import Caps, Finish, Move, Submit, Wait
from merlin.batch.job_records import JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.slurm import Slurm
from merlin.errors import RedisUnreachableError
from merlin.execution.distributed import autoscaler
from merlin.execution.distributed.autoscaler import (
    CALLS_PER_MINUTE,
    MAX_REFUSED,
    NEW_S,
    POLLS_PER_MINUTE,
    REFUSED_S,
    TOLD_S,
    Autoscaler,
    Rate,
)
from merlin.execution.distributed.registry import RunningChunk, WorkerInfo
from merlin.execution.distributed.worker_jobs import WorkerJobs
from merlin.spec.model import Batch

CAPS = Caps(max_nodes=3, nodes_per_job=1, walltime_s=3600.0, backlog_s=10.0, idle_s=30.0)


@dataclass
class Queues:
    """Work and workers, as a test wants them."""

    num_open: int = 1
    num_startable: int = 10
    left_s: float | None = None
    busy_s: float = 0.0
    needs_s: Mapping[str, float] = field(default_factory=dict)
    workers: list[WorkerInfo] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    bad_nodes: set[str] = field(default_factory=set)
    is_down: bool = False

    def look(self) -> Queues:
        if self.is_down:
            raise RedisUnreachableError("Redis refuses connections")
        return self

    def stop(self, names: Collection[str]) -> None:
        self.told += names


def worker(job: str, *, is_busy: bool = True) -> WorkerInfo:
    chunk = RunningChunk(study="s", instance="sim", lo=0, hi=1, since=0.0)
    return WorkerInfo(
        name=f"w.{job}", host=f"n{job}", pid=1, queues=["q"], concurrency=2, started=0.0, version="1",
        scheduler="slurm", job=job, node=f"n{job}", running=[chunk] if is_busy else [],
    )  # fmt: skip


class Site:
    """A user's autoscale, which may be started again."""

    def __init__(self, folder: Path) -> None:
        self.slurm = PaperSlurm(folder / "slurm")
        self.queues = Queues()
        self.jobs = WorkerJobs(
            target=folder / "x.yaml", study="x", scheduler=Slurm(), batch=Batch(type="slurm"), words=(),
            exported={}, records=JobRecords(folder / "merlin_jobs"), directory=folder,
        )  # fmt: skip
        self.later_s = 0.0
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PATH": self.slurm.path}
        client = SchedulerClient(
            Slurm(), environment=environment, limit_s=120.0, polls_per_minute=POLLS_PER_MINUTE,
            clock=lambda: time.monotonic() + self.later_s,
        )  # fmt: skip
        self.scaler = Autoscaler(
            self.jobs, client, CAPS, self.queues, clock=lambda: time.time() + self.later_s
        )

    def round(self, later_s: float = 70.0) -> list[Move]:
        """A round; by default in another minute, where the scheduler may be called again."""
        self.later_s += later_s
        return self.scaler.round()

    def run_job(self, job: str, **more: bool) -> None:
        self.slurm.set(job, "RUNNING")
        self.queues.workers.append(worker(job, **more))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def kinds(moves: list[Move]) -> list[str]:
    return [type(move).__name__ for move in moves]


def test_as_many_as_assumed_then_as_many_as_the_work_demands_then_none(site):
    (first,) = site.round()
    assert isinstance(first, Submit)
    assert (first.job, first.num_nodes) == ("1", 1)
    assert kinds(site.round()) == ["Wait"]
    site.run_job("1")
    assert kinds(site.round()) == ["Wait"]
    site.queues.left_s = 1000.0
    assert [move.job for move in site.round() if isinstance(move, Submit)] == ["2", "3"]
    assert kinds(site.round()) == ["Wait"]
    assert len(site.slurm.states) == 3


def test_after_the_study_workers_are_told_waiting_jobs_are_cancelled_and_it_ends(site):
    site.round()
    site.run_job("1")
    site.queues.left_s = 1000.0
    site.round()
    site.queues.num_open = 0
    assert kinds(site.round()) == ["End", "End", "End"]
    assert site.queues.told == ["w.1"]
    assert site.slurm.states == {"1": "RUNNING", "2": "CANCELLED", "3": "CANCELLED"}
    site.slurm.set("1", "COMPLETED")
    assert site.round() == [Finish(reason="the work is done, and no job is left")]


def test_a_job_whose_workers_leave_already_may_end_by_itself(site):
    site.round()
    site.run_job("1")
    site.round()
    site.queues.num_open = 0
    site.queues.workers.clear()
    assert kinds(site.round()) == ["End"]
    assert site.slurm.states["1"] == "RUNNING"


def test_a_job_that_waits_again_after_a_requeue_is_cancelled_at_the_end(site):
    site.round()
    site.run_job("1")
    site.round()
    site.slurm.set("1", "PENDING", "BeginTime")  # its worker has not fallen silent yet
    assert kinds(site.round()) == ["Wait"]
    site.queues.num_open = 0
    assert kinds(site.round()) == ["End"]
    assert (site.slurm.states["1"], site.queues.told) == ("CANCELLED", [])


def test_one_question_confirms_the_end_as_soon_as_the_workers_have_left(site):
    site.round()
    site.run_job("1")
    site.round()
    assert site.scaler.is_hurried, "the tasks have not told yet how long they take"
    site.queues.left_s = 100.0
    site.round()
    assert not site.scaler.is_hurried
    site.queues.left_s = 1.0
    site.round(1.0)
    assert site.scaler.is_hurried, "the end is near"
    site.round()
    assert not site.scaler.is_hurried, "the last tasks take their time"
    site.queues.num_open = 0
    assert kinds(site.round()) == ["End"]
    assert site.scaler.is_hurried
    site.slurm.set("1", "COMPLETED")
    asked = len(site.slurm.calls)
    assert kinds(site.round(1.0)) == ["Wait"], "the pace of questions, while workers are there"
    assert len(site.slurm.calls) == asked
    site.queues.workers.clear()
    assert kinds(site.round(1.0)) == ["Finish"]
    assert len(site.slurm.calls) == asked + 1


def test_the_end_is_not_asked_for_more_often_than_six_times_a_minute(site, monkeypatch):
    monkeypatch.setattr(autoscaler, "LAST_LOOK_S", 0.0)
    began = time.monotonic()
    site.round(0.0)
    site.run_job("1")
    site.round(0.0)
    site.queues.num_open = 0
    site.queues.workers.clear()
    for _ in range(12):
        site.round(0.0)
    assert len(site.slurm.calls) > 2
    assert len(site.slurm.calls) <= CALLS_PER_MINUTE or time.monotonic() - began > 50


def test_a_job_whose_workers_do_not_leave_is_cancelled(site):
    site.round()
    site.run_job("1")
    site.round()
    site.queues.num_open = 0
    site.round()
    assert site.slurm.states["1"] == "RUNNING"
    site.round(TOLD_S + 1)
    assert site.slurm.states["1"] == "CANCELLED"


def test_it_finds_its_jobs_after_a_restart(site):
    site.round()
    site.start()
    assert kinds(site.round()) == ["Wait"]
    site.slurm.set("1", "COMPLETED")
    site.start()
    assert kinds(site.round()) == ["Submit"]


def test_a_submission_whose_answer_was_lost_is_one_job(site):
    site.slurm.fail("lose")
    site.round()
    site.slurm.work_again()
    for _ in range(3):
        site.round()
        assert list(site.slurm.states) == ["1"]
    assert [record.id for record in site.jobs.records.all()] == ["1"]


def test_a_job_that_was_written_down_and_never_submitted_is_forgotten_by_the_next_life(site):
    site.slurm.fail("down")
    site.round()
    site.slurm.work_again()
    for record in site.jobs.records.all():
        site.jobs.records.write(record)
    site.start()
    site.round()
    site.round()
    assert list(site.slurm.states) == ["1"]


def test_while_the_scheduler_is_away_nothing_is_submitted_and_it_says_so(site):
    site.round()
    site.slurm.fail("down")
    for _ in range(5):
        (move,) = site.round()
        assert isinstance(move, Wait)
        assert "Unable to contact slurm controller" in move.reason
    site.slurm.work_again()
    site.round()
    assert list(site.slurm.states) == ["1"]


def test_while_the_servers_are_away_nothing_is_decided(site):
    site.queues.is_down = True
    (move,) = site.round()
    assert isinstance(move, Wait)
    assert "Redis refuses connections" in move.reason
    assert site.slurm.calls == []


def test_the_scheduler_is_called_six_times_a_minute_at_most(site):
    site.round(0.0)
    site.run_job("1")
    site.queues.left_s = 1e6
    began = time.monotonic()
    for _ in range(50):
        site.round(0.0)
        if time.monotonic() - began > 30:  # a slow machine has seen enough
            break
    assert len(site.slurm.calls) <= CALLS_PER_MINUTE


def test_while_workers_report_from_every_job_the_scheduler_is_asked_once_a_minute(site):
    site.round()
    site.run_job("1")
    site.queues.left_s = 1.0
    site.round()
    before = len(site.slurm.calls)
    for _ in range(60):
        site.round(10.0)
    assert len(site.slurm.calls) - before == pytest.approx(10, abs=1)
    site.queues.workers.clear()  # nobody reports any more
    site.slurm.set("1", "CANCELLED")
    assert kinds(site.round(20.0)) == ["Submit"]


@pytest.mark.parametrize("reports", [False, True])
def test_jobs_that_run_nothing_are_not_repeated_for_ever(site, reports):
    for number in range(1, 4):
        (move,) = site.round(NEW_S + 10)
        assert isinstance(move, Submit)
        if reports:  # they have no device that the tasks need, say
            site.run_job(str(number), is_busy=False)
            site.round(1.0)
            site.queues.workers.clear()
        site.slurm.set(str(number), "FAILED")
    (move,) = site.round(NEW_S + 10)
    assert isinstance(move, Finish)
    assert move.is_failure


def test_a_scheduler_that_refuses_is_asked_again_later_and_not_for_ever(site):
    site.slurm.fail("refuse")
    site.round()
    for _ in range(5):
        (move,) = site.round(1.0)
        assert isinstance(move, Wait)
        assert "Invalid account" in move.reason
    assert site.slurm.calls.count("sbatch") == 1
    moves = [site.round(REFUSED_S * 2**k)[0] for k in range(1, MAX_REFUSED)]
    assert isinstance(moves[-1], Finish)
    assert moves[-1].is_failure
    assert "Invalid account" in moves[-1].reason


def test_a_limit_of_the_site_passes_by(site):
    site.slurm.fail("refuse")
    site.round()
    site.slurm.work_again()
    assert kinds(site.round(REFUSED_S + 1)) == ["Submit"]


def test_an_idle_job_is_ended_and_comes_back_with_work(site):
    site.round()
    site.run_job("1", is_busy=False)
    site.queues.left_s, site.queues.num_startable = 0.0, 0
    site.round(1)
    assert kinds(site.round(CAPS.idle_s + 1)) == ["End"]
    site.slurm.set("1", "COMPLETED")
    site.queues.workers.clear()
    assert kinds(site.round()) == ["Wait"]
    site.queues.left_s, site.queues.num_startable = 100.0, 100
    assert kinds(site.round())[0] == "Submit"


def test_no_job_is_submitted_to_a_bad_node_that_the_scheduler_has(site):
    site.round()
    site.run_job("1")
    site.round()
    site.queues.bad_nodes = {"n1", "laptop"}
    site.slurm.set("1", "COMPLETED")
    site.queues.workers.clear()
    (move,) = site.round()
    assert isinstance(move, Submit)
    assert "not on n1, " in move.reason
    script = site.jobs.records.all()[-1].script
    assert "#SBATCH --exclude=n1\n" in Path(script).read_text()


def test_the_rate_is_measured_where_there_is_enough_to_do():
    rate = Rate()
    for second in range(60):
        rate.update(float(second), busy_s=1.5 * second, num_slots=2, is_saturated=True)
    assert rate.share == pytest.approx(0.75)
    for second in range(60, 120):
        rate.update(float(second), busy_s=90.0, num_slots=2, is_saturated=False)
    assert rate.share == pytest.approx(0.75)
