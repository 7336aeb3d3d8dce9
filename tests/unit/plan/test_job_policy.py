"""Steps with batch jobs of their own: how their keys are read, and how the scheduler hands their chunks out."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import FAILED, OK, start
from small_plans import gather, same, step

from merlin.errors import ExecutionError
from merlin.plan.fit import ONE_CORE
from merlin.plan.job_policy import job_policy, job_request
from merlin.plan.memories import Deferral
from merlin.plan.tasks import Deferred

JOBS: dict[str, Any] = {"batch.submit": True, "batch.type": "slurm", "batch.tasks_per_job": 4}


def test_a_step_is_submitted_only_if_it_says_so_and_has_a_scheduler() -> None:
    assert job_policy(step("a", 1, resources=JOBS)) is not None
    assert job_policy(step("a", 1, resources={**JOBS, "batch.type": "local"})) is None
    assert job_policy(step("a", 1, resources={"batch.type": "slurm"})) is None
    assert job_policy(step("a", 1, resources={**JOBS, "batch.submit": "no"})) is None
    assert job_policy(gather("a", ("b",), 1, 1)) is None


def test_a_job_asks_for_what_one_task_needs() -> None:
    resources = {
        **JOBS, "nodes": 2, "procs": 8, "cores per task": 3, "gpus per task": 1, "walltime": "00:30:00",
        "batch.bank": "lab", "batch.queue": "debug", "exclusive": True,
    }  # fmt: skip
    request = job_request(step("a", 1, resources=resources), name="n", output="o")
    assert (request.nodes, request.procs, request.cores_per_task, request.gpus) == (2, 8, 3, 4)
    assert (request.walltime_s, request.bank, request.queue) == (1800.0, "lab", "debug")
    assert request.is_exclusive


@pytest.mark.parametrize("key", ["nodes", "walltime", "batch.tasks_per_job"])
def test_a_parameter_that_makes_no_number_is_an_error_with_its_key(key: str) -> None:
    instance = step("a", 1, resources={**JOBS, key: "many"})
    with pytest.raises(ExecutionError, match=f"step 'a', {key}: .*many"):
        job_policy(instance)
        job_request(instance, name="n", output="o")


def test_chunks_for_jobs_have_their_size_to_the_end_and_go_to_nobody_else() -> None:
    bench = start(step("a", 10, resources=JOBS), step("b", 10, same("a")), workers=8)
    assert bench.nothing_to_take()
    assert bench.scheduler.needs() == {}
    chunks = [bench.scheduler.take_for_job(0.0, "a") for _ in range(4)]
    assert [(c.lo, c.hi) for c in chunks if c] == [(0, 4), (4, 8), (8, 10)]
    assert chunks[0] is not None
    bench.finish_ok(chunks[0], busy_s=1000.0)
    assert bench.take().instance == "b"


def test_tasks_that_ask_to_run_again_go_to_a_job_again() -> None:
    bench = start(step("a", 4, resources=JOBS))
    chunk = bench.scheduler.take_for_job(0.0, "a")
    assert chunk is not None
    bench.finish(
        chunk, (0, 3, OK), deferred=(Deferred(chunk=chunk.__class__(instance="a", lo=3, hi=4), delay_s=5.0),)
    )
    assert any(isinstance(memory, Deferral) for memory in bench.scheduler.memories())
    assert bench.scheduler.take_for_job(1.0, "a") is None
    again = bench.scheduler.take_for_job(5.0, "a")
    assert again is not None
    assert (again.lo, again.hi, again.attempt) == (3, 4, 2)
    assert bench.nothing_to_take(5.0)


def test_what_a_walltime_cut_off_runs_again_first_and_fails_after_so_many_times() -> None:
    bench = start(step("a", 4, resources=JOBS, crash_limit=2))
    for times in (1, 2):
        chunk = bench.scheduler.take_for_job(0.0, "a")
        assert chunk is not None
        assert (chunk.lo, chunk.hi, chunk.retries, chunk.attempt) == (times > 1, 4, 0, times)
        assert bench.scheduler.overran(chunk, [(0, 1, OK)], [1], "00:30:00")
    verdict = bench.verdict()
    assert (verdict.lo, verdict.hi, verdict.outcome) == (1, 2, FAILED)
    assert "walltime of 00:30:00 of its job was over 2 times" in verdict.cause
    rest = bench.scheduler.take_for_job(0.0, "a")
    assert rest is not None
    assert rest.task_ids() == [2, 3]
    assert not bench.scheduler.overran(chunk, [], [1], "")  # it is not handed out any more


def test_a_worker_stays_as_long_as_jobs_have_to_be_submitted() -> None:
    bench = start(step("a", 10, resources={**JOBS, "walltime": "10:00:00"}))
    assert bench.scheduler.open_work() == {("merlin", ONE_CORE): (1, 0.0)}
    while (chunk := bench.scheduler.take_for_job(0.0, "a")) is not None:
        bench.finish_ok(chunk)
    assert bench.scheduler.open_work() == {}
