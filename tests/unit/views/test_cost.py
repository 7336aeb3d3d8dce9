"""What a study has cost, and what of it was of no use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from told_study import told_study, write

from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.ledger.records import RESET, RangeRecord
from merlin.views.allocation_cost import covered_s
from merlin.views.cost import StepCost, StudyCost, study_cost, wasted_by_cause
from merlin.workspace.directory import Workspace

HOUR_S = 3600.0


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return told_study(tmp_path)


def seconds(cost: StepCost) -> dict[str, float]:
    """Core-seconds."""
    names = ("used", "ok", "failed", "retried", "interrupted", "rerun")
    return {name: round(getattr(cost, f"{name}_h") * HOUR_S, 3) for name in names}


def steps(cost: StudyCost) -> dict[str, StepCost]:
    return {step.step: step for step in cost.steps}


def test_core_seconds_are_told_apart_by_what_became_of_the_tasks(workspace: Workspace) -> None:
    """Two cores each: 2 + 2 + 4 s ok in run 1 and 1 s in run 2; the failure of 3 s ran again, as did a try of 1 s."""
    sim = steps(study_cost(workspace))["sim"]
    assert seconds(sim) == {
        "used": 2 * (8 + 3 + 5 + 1 + 1 + 1), "ok": 18.0, "failed": 2.0, "retried": 8.0, "interrupted": 10.0,
        "rerun": 0.0,
    }  # fmt: skip
    assert (sim.cores, sim.runs) == (2, 7)
    assert sim.requested_h == 2 * 7
    assert sim.wasted_h == pytest.approx(sim.used_h - sim.ok_h)


def test_a_result_that_was_made_again_is_waste_of_its_own(workspace: Workspace) -> None:
    post = steps(study_cost(workspace))["post"]
    assert seconds(post)["rerun"] == 0.0
    again = RangeRecord(instance="post", lo=0, hi=1, outcome=RESET, cause="to be run again", attempt=0)
    write(workspace, ("controller", "run3", "n1"), again)
    assert seconds(steps(study_cost(workspace))["post"])["rerun"] == 1.0


def test_what_workers_were_there_for_is_used_between_tasks_or_idle(workspace: Workspace) -> None:
    """Run 1: 2 workers for 20 s; run 2: 1 worker for 10 s. Multi-core tasks count by their cores."""
    cost = study_cost(workspace)
    busy = 2 * (8 + 10) + 2 + 2 * (1 + 1) + 1 + 0.5
    again = 2 * 1.0  # the try that left no time in the ledger
    assert cost.overhead_h * HOUR_S == pytest.approx(2 * (8 - 7 + 10 - 9))
    assert cost.idle_h * HOUR_S == pytest.approx(2 * 20 + 10 - busy - again)
    assert cost.held_h == cost.total.used_h + cost.overhead_h + cost.idle_h
    causes = dict(wasted_by_cause(cost))
    assert sum(causes.values()) + cost.total.ok_h == pytest.approx(cost.held_h)
    assert list(causes.values()) == sorted(causes.values(), reverse=True)


def test_batch_jobs_are_counted_in_node_hours_with_those_without_a_task(workspace: Workspace) -> None:
    seen = Job(id="7", state=JobState.OK, num_nodes=2, hosts=("n1.site", "n2.site"), started=1000.0)
    record = JobRecord(
        name="workers-1", scheduler="slurm", created=990.0, num_nodes=2, walltime_s=HOUR_S,
        id="7", seen=seen, seen_at=1020.0,
    )  # fmt: skip
    records = JobRecords(jobs_folder(workspace.path))
    records.write(record)
    records.write(JobRecord(name="workers-2", scheduler="slurm", created=995.0, id="8"))
    known, unknown = study_cost(workspace).allocations
    assert (known.job, known.requested_node_h, known.held_node_h) == ("7", 2.0, pytest.approx(40 / HOUR_S))
    assert known.idle_node_h == pytest.approx((40 - (8 + 2) - 10) / HOUR_S)
    assert known.used_h == pytest.approx((2 * 8 + 2 + 2 * 10) / HOUR_S)
    assert (unknown.held_node_h, unknown.idle_node_h) == (None, None)
    assert json.dumps(known.state) == '"ok"'


def test_times_that_overlap_count_once() -> None:
    assert covered_s([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.7)]) == 4.0
