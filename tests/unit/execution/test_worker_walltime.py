"""Workers whose allocations end, with real engines, owners and ledgers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from cluster import Cluster, run_ok
from small_plans import same, step
from thread_processes import Work
from waiting import wait_until

from merlin.batch.here import Here
from merlin.execution.conductor import quarantined_nodes
from merlin.execution.distributed import chunk_runs, owners, upkeep, workforce
from merlin.execution.walltime import MARGIN_S, Walltime
from merlin.plan.tasks import ChunkResult, Outcome


def ending_in(seconds: float) -> Walltime:
    return Walltime(time.time() + MARGIN_S + seconds)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "LIST_S", 0.05)
    monkeypatch.setattr(owners, "WAIT_S", 0.02)
    monkeypatch.setattr(workforce, "SLOTS_S", 0.02)
    monkeypatch.setattr(chunk_runs, "DECLINE_S", 0.02)
    monkeypatch.setattr(upkeep, "TICK_S", 0.02)


def test_a_long_step_runs_on_the_workers_that_have_the_time(tmp_path: Path) -> None:
    short, long = {"walltime": "1"}, {"walltime": "1000"}
    cluster = Cluster(tmp_path, step("short", 30, resources=short), step("long", 30, resources=long))
    cluster.publish()
    try:
        first = cluster.worker(concurrency=1, walltime=ending_in(500)).start()
        wait_until(lambda: cluster.outcomes("short") == {"OK": 30}, cluster.show)
        assert not cluster.outcomes("long") and first.engine.info().ends is not None
        cluster.worker(concurrency=1).start()
        cluster.wait_until_over()
        cluster.expect_all_ok()
        assert {name for name, instance, *_ in cluster.ran if instance == "long"} == {"celery@1"}
    finally:
        cluster.close()


def test_a_worker_gives_back_what_it_has_taken_and_cannot_finish(tmp_path: Path) -> None:
    """The owner believes that it has the time: offers were made for workers that have gone."""
    cluster = Cluster(tmp_path, step("sim", 4, resources={"walltime": "1000"}))
    cluster.publish()
    try:
        other = cluster.worker(concurrency=1, walltime=ending_in(500))
        other.start()
        wait_until(lambda: not cluster.messages(), cluster.show)
        assert cluster.outcomes("sim") == {}
        cluster.worker(concurrency=1).start()
        cluster.wait_until_over()
        cluster.expect_all_ok()
        assert {name for name, *_ in cluster.ran} == {"celery@1"}
    finally:
        cluster.close()


def test_a_worker_leaves_before_its_walltime_is_over_and_its_chunks_run_elsewhere(tmp_path: Path) -> None:
    def hang(work: Work) -> ChunkResult:
        lo, hi = work.chunk.lo, work.chunk.hi
        work.commit((lo, lo + 1))
        work.wait_for_stop()
        runs = ((lo, lo + 1, int(Outcome.OK)), (lo + 1, hi, int(Outcome.INTERRUPTED)))
        return ChunkResult(chunk=work.chunk, runs=tuple(run for run in runs if run[0] < run[1]))

    cluster = Cluster(tmp_path, step("sim", 4))
    cluster.publish()
    try:
        first = cluster.worker(hang, concurrency=1, walltime=ending_in(1.5)).start()
        wait_until(lambda: first.leaving.is_leaving and not first.num_running, cluster.show)
        cluster.worker(run_ok).start()
        first.engine.close()
        cluster.wait_until_over()
        cluster.expect_all_ok()
        assert "worker_lost" not in cluster.events()
    finally:
        cluster.close()


def test_a_failure_that_a_bad_node_has_recorded_and_not_reported_runs_elsewhere(tmp_path: Path) -> None:
    good, has_recorded = threading.Event(), threading.Event()

    def fail(work: Work) -> ChunkResult:
        if has_recorded.is_set():
            return work.finish(Outcome.FAILED)
        has_recorded.set()
        work.finish(Outcome.FAILED)
        work.hang()
        raise AssertionError

    def wait(work: Work) -> ChunkResult:
        good.wait(60)
        return run_ok(work)

    cluster = Cluster(tmp_path, step("sim", 60))
    try:
        cluster.worker(fail, here=Here(host="bad", cores=2, job="7")).start()
        cluster.worker(wait, here=Here(host="fine", cores=2, job="8")).start()
        wait_until(lambda: len(cluster.server.workers) == 2)
        cluster.publish()
        wait_until(lambda: cluster.outcomes()["FAILED"] >= 12, cluster.show)
        good.set()
        cluster.wait_until_over()
        cluster.expect_all_ok()
    finally:
        good.set()
        cluster.close()


def test_a_bad_node_is_named_once_and_what_failed_there_runs_elsewhere(tmp_path: Path) -> None:
    good = threading.Event()

    def fail(work: Work) -> ChunkResult:
        return work.finish(Outcome.FAILED)

    def wait(work: Work) -> ChunkResult:
        good.wait(60)
        return run_ok(work)

    cluster = Cluster(tmp_path, step("sim", 60), step("post", 60, same("sim")))
    try:
        bad = cluster.worker(fail, here=Here(host="bad", cores=2, job="7")).start()
        cluster.worker(wait, here=Here(host="fine", cores=2, job="8")).start()
        wait_until(lambda: len(cluster.server.workers) == 2)
        cluster.publish()
        wait_until(lambda: cluster.outcomes()["FAILED"] >= 12, cluster.show)  # more than the canary allows
        good.set()
        wait_until(lambda: "node_quarantined" in cluster.events(), cluster.show)
        cluster.wait_until_over()
        assert cluster.outcomes("sim") == {"OK": 60} == cluster.outcomes("post")
        assert cluster.events().count("node_quarantined") == 1
        assert quarantined_nodes(cluster.ledger()) == {"bad": "sim"}
        assert not bad.leaving.is_leaving
    finally:
        good.set()
        cluster.close()
