"""What a study has cost, and what of it was of no use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from small_plans import step
from study_on_disk import make_workspace, write_study
from told_study import OK, chunk, event, told_study, write

from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.execution.conductor import UPDATER
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.ledger.records import RESET, RangeRecord
from merlin.ledger.segments import write_lineage
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.plan_io import plan_to_json
from merlin.plan.tasks import NO_OUTCOME
from merlin.views.allocation_cost import covered_s
from merlin.views.cost import StepCost, StudyCost, study_cost, wasted_by_cause
from merlin.workspace.directory import PLAN_NAME, Workspace, ledger_of, revision_dir
from merlin.workspace.revisions import BEFORE, keep_present

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
    assert (sim.cores, sim.runs) == (2, 8)
    assert sim.requested_h == 2 * 8
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


def test_a_try_whose_time_lies_within_the_record_of_other_tasks_counts_once(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 3, resources={"walltime": "00:01:00"}))
    first = chunk("sim", 0, [OK, NO_OUTCOME, OK], [2.0, 0.0, 3.0], started=1000.0, elapsed_s=7.5)
    again = chunk("sim", 1, [OK], [2.0], started=1008.0, elapsed_s=2.0, tries=np.ones(1, np.uint8))
    write(workspace, ("controller", "run1", "n1"), event("run_started", 1000.0, workers=1))
    write(workspace, ("w0", "run1", "n1"), first, again)
    write(workspace, ("controller", "run1", "n1"), event("run_finished", 1010.0))
    cost = study_cost(workspace)
    assert seconds(cost.total) | {"overhead": cost.overhead_h * HOUR_S, "idle": cost.idle_h * HOUR_S} == {
        "used": 9.0, "ok": 7.0, "failed": 0.0, "retried": 2.0, "interrupted": 0.0, "rerun": 0.0,
        "overhead": pytest.approx(0.5), "idle": pytest.approx(0.5),
    }  # fmt: skip
    assert (cost.total.runs, cost.total.requested_h) == (4, pytest.approx(4 / 60))


def test_what_ran_before_an_update_or_was_undone_keeps_its_cost(workspace: Workspace) -> None:
    before = study_cost(workspace)
    updated = update(
        workspace, *workspace.plan.instances[:2], step("fit", 2, kind=StepKind.FUNCTION, function="m:f")
    )
    cost = study_cost(updated)
    assert [each.step for each in cost.steps] == ["sim", "post", "fit", "learn (gone)"]
    assert seconds(cost.steps[-1])["rerun"] == 0.5
    assert (cost.held_h, cost.idle_h) == pytest.approx((before.held_h, before.idle_h))

    write(updated, ("controller", "run3", "n1"), event("run_started", 3000.0, workers=1))
    write(updated, ("w0", "run3", "n1"), chunk("fit", 0, [OK], [3.0], started=3000.0, elapsed_s=3.0))
    write(updated, ("controller", "run3", "n1"), event("run_finished", 3004.0))
    undone = study_cost(workspace)
    assert seconds(steps(undone)["fit (gone)"]) == seconds(undone.steps[-1]) | {"used": 3.0, "rerun": 3.0}
    assert undone.held_h * HOUR_S == pytest.approx(before.held_h * HOUR_S + 4.0)


def test_what_an_update_to_fewer_samples_keeps_is_not_waste(workspace: Workspace) -> None:
    """The record of sim 3 and 4 reaches beyond the last task, so 3 has its outcome from a record of the update."""
    sim, post, learn = workspace.plan.instances
    fewer = update(workspace, replace(sim, num_tasks=4), replace(post, num_tasks=4), learn)
    kept = RangeRecord(instance="sim", lo=3, hi=4, outcome=OK, cause="as before", started=2500.0)
    write(fewer, (UPDATER, "run3", "n1"), kept)
    found, before = (seconds(steps(study_cost(each))["sim"]) for each in (fewer, workspace))
    assert found == before | {"failed": 0.0, "retried": before["retried"] + before["failed"]}


def test_an_extension_that_an_update_has_put_aside_keeps_its_cost(workspace: Workspace) -> None:
    before = study_cost(workspace)
    aside = revision_dir(workspace.info, 1) / BEFORE / "extensions/001"
    extension = write_study(aside, step("sim", 2), extension=1, first=6)
    write(extension, ("controller", "run3", "n1"), event("run_started", 3000.0, workers=1))
    write(
        extension, ("w0", "run3", "n1"), chunk("sim", 0, [OK, OK], [1.0, 1.0], started=3000.0, elapsed_s=2.0)
    )
    write(extension, ("controller", "run3", "n1"), event("run_finished", 3003.0))
    cost = study_cost(workspace)
    assert seconds(steps(cost)["sim"])["rerun"] == 2.0
    assert cost.held_h * HOUR_S == pytest.approx(before.held_h * HOUR_S + 3.0)


def update(workspace: Workspace, *instances: StepInstance) -> Workspace:
    """The study with a next revision, to which nothing was recorded so far."""
    keep_present(workspace, 0)
    plan = replace(workspace.plan, revision=1, instances=instances)
    ledger_of(workspace.info, 1).mkdir(parents=True)
    write_lineage(ledger_of(workspace.info, 1), workspace.ledger_dir)
    (revision_dir(workspace.info, 1) / PLAN_NAME).write_text(plan_to_json(plan))
    return Workspace(workspace.path, plan)


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
