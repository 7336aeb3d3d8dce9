"""How often autoscaling looks, how it keeps its decisions, and which limits it has."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from merlin.batch.autoscale import Finish, Submit, Wait
from merlin.errors import UsageError
from merlin.execution.distributed.autoscaler_caps import GivenCaps, caps_of, longest_task_s, too_long_steps
from merlin.execution.distributed.autoscaler_loop import MAX_PAUSE_S, Decision, Diary, pause_s
from merlin.execution.distributed.wanted_jobs import JobOptions
from merlin.execution.walltime import MARGIN_S
from merlin.spec.model import Batch


@pytest.mark.parametrize(("round_s", "expected"), [(0.0, 2.0), (0.5, 10.0), (60.0, MAX_PAUSE_S)])
def test_a_slow_server_delays_the_next_round_by_seconds_and_not_by_minutes(
    round_s: float, expected: float
) -> None:
    assert pause_s(round_s, is_hurried=False) == pytest.approx(expected)


def test_the_answer_of_a_probe_and_the_end_of_the_work_are_seen_soon() -> None:
    assert pause_s(0.02, is_hurried=True) == pytest.approx(0.2)
    assert pause_s(0.5, is_hurried=True) == pytest.approx(2.0)
    assert pause_s(60.0, is_hurried=True) == pytest.approx(MAX_PAUSE_S)


def test_every_decision_is_kept_and_a_wait_is_told_once(tmp_path: Path) -> None:
    told: list[Decision] = []
    diary = Diary(tmp_path / "autoscale.jsonl", told.append)
    diary.note(Submit(reason="a probe", num_nodes=1, walltime_s=3600.0, job="7"))
    for seconds in (53, 51, 49):
        diary.note(Wait(reason=f"2 nodes would take {seconds} s"))
    diary.note(Finish(reason="the work is done"))
    lines = (tmp_path / "autoscale.jsonl").read_text().splitlines()
    assert lines == [decision.to_line() for decision in told]
    assert [json.loads(line)["move"] for line in lines] == ["submit", "wait", "finish"]
    assert json.loads(lines[0])["job"] == "7"
    assert [decision.move.reason for decision in told] == [
        "a probe",
        "2 nodes would take 53 s",
        "the work is done",
    ]


def test_limits_of_the_command_line_come_before_those_of_the_spec() -> None:
    batch = Batch.model_validate({"type": "slurm", "nodes": 2, "autoscale": {"max": 8, "min": 1}})
    assert caps_of(batch, JobOptions(), GivenCaps()).max_nodes == 8
    caps = caps_of(batch, JobOptions(nodes=3), GivenCaps(max_nodes=4, min_nodes=0, backlog="2m"))
    assert (caps.max_nodes, caps.min_nodes, caps.nodes_per_job, caps.backlog_s) == (4, 0, 3, 120.0)
    with pytest.raises(UsageError, match="at least 5 nodes and at most 4"):
        caps_of(batch, JobOptions(), GivenCaps(max_nodes=4, min_nodes=5))


def test_steps_that_no_job_has_the_time_for_are_found() -> None:
    batch = Batch.model_validate({"type": "slurm", "walltime": "00:10:00"})
    caps = caps_of(batch, JobOptions(), GivenCaps())
    needs_s = {"short": 60.0, "long": 600.0}
    assert longest_task_s(caps) == 600.0 - MARGIN_S
    assert too_long_steps(needs_s, caps) == {"long": 600.0}
    endless = caps_of(Batch.model_validate({"type": "slurm"}), JobOptions(), GivenCaps())
    assert longest_task_s(endless) == math.inf
    assert too_long_steps(needs_s, endless) == {}
