from __future__ import annotations

import pytest
from status_study import FAILED, OK, add, chunk, failed, fill, make_workspace

from merlin.errors import UsageError
from merlin.status.tasks import RunningTasks, TaskFilters, task_rows


@pytest.fixture
def workspace(tmp_path):
    made = make_workspace(tmp_path / "w")
    fill(made)
    return made


def rows(workspace, **filters):
    return list(task_rows(workspace, TaskFilters(**filters)))


def test_without_filters_every_planned_task_has_a_row(workspace):
    found = rows(workspace)
    assert len(found) == 61
    assert [r.instance for r in found[::20]] == ["sim/P.1", "sim/P.2", "post", "end"]
    statuses = [r.status for r in found]
    assert {s: statuses.count(s) for s in set(statuses)} == {
        "FINISHED": 27, "FAILED": 4, "CANCELLED": 5, "INITIALIZED": 25,
    }  # fmt: skip


def test_a_row_tells_all_about_its_task(workspace):
    row = rows(workspace, task_status=("failed",))[0]
    assert (row.step, row.instance, row.task, row.sample_id) == ("sim", "sim/P.1", 3, 3)
    assert (row.workspace, row.return_code, row.exit_code) == ("sim/P.1/03", "SOFT_FAIL", 3)
    assert (row.seconds, row.started, row.attempt) == (0.5, 1003.0, 1)
    assert (row.parameters, row.task_queue, row.worker, row.host) == ({"P": 1}, "hot", "w0", "node1")


def test_the_start_of_a_task_is_told_to_the_second_in_our_days(tmp_path):
    workspace = make_workspace(tmp_path / "today")
    add(workspace, chunk("sim/P.1", 0, [OK] * 20, started=1_795_461_492.5))
    assert [row.started for row in rows(workspace)[:3]] == [1_795_461_492.5 + i for i in range(3)]


def test_filters_combine(workspace):
    assert len(rows(workspace, steps=("sim",), workers=("w1",))) == 10
    assert len(rows(workspace, task_queues=("hot",), task_status=("FAILED", "CANCELLED"))) == 3
    assert len(rows(workspace, steps=("all",), return_code=("SUCCESS",), max_tasks=4)) == 4
    assert len(rows(workspace, return_code=("merlin_soft_fail",))) == 4
    assert rows(workspace, workers=("nobody",)) == []


@pytest.mark.parametrize(
    "name",
    [
        "simw",
        "simw-2",
        "simw.node7",
        "celery@simw.node7",
        "simw.node7.1",
        "simw-2.node7",
        "sim.*",
        r"simw.*",
    ],
)
def test_workers_are_named_as_in_the_spec_by_host_or_by_process(workspace, name):
    add(workspace, chunk("end", 0, [OK]), worker="simw.node7.1" if "-2" not in name else "simw-2.node7.3")
    assert len(rows(workspace, workers=(name,))) == 1
    assert rows(workspace, workers=("sim",)) == rows(workspace, workers=("w",)) == []


def test_what_workers_have_is_running_unless_it_has_ended(workspace):
    held = {"study_id": "s1", "instance": "post", "host": "n1", "since": 7.0}
    chunks = [
        RunningTasks(lo=4, hi=8, worker="simw.n1", **held),
        RunningTasks(lo=0, hi=1, worker="x", **held),
    ]
    other = RunningTasks(**{**held, "study_id": "s2"}, lo=0, hi=20, worker="simw.n2")
    found = list(task_rows(workspace, TaskFilters(task_status=("running",)), [*chunks, other]))
    assert [(row.task, row.worker, row.started) for row in found] == [
        (6, "simw.n1", 7.0),
        (7, "simw.n1", 7.0),
    ]
    assert len(list(task_rows(workspace, TaskFilters(workers=("simw",)), chunks))) == 2
    assert rows(workspace, task_status=("RUNNING",)) == []


def test_return_codes_have_upstreams_names(workspace):
    codes = {
        102: "HARD_FAIL",
        100: "RESTART",
        104: "RETRY",
        1: "SOFT_FAIL",
        101: "SOFT_FAIL",
        106: "SOFT_FAIL",
    }
    for i, code in enumerate(codes):
        add(workspace, chunk("post", 10 + i, [FAILED], failures=(failed(10 + i, exit_code=code),)))
    add(workspace, chunk("end", 0, [OK], exit_codes=[103]))
    by_task = {r.task: r.return_code for r in rows(workspace, steps=("post",)) if r.task >= 10}
    assert [by_task[10 + i] for i in range(len(codes))] == list(codes.values())
    (end,) = rows(workspace, steps=("end",))
    assert (end.status, end.return_code, end.sample_id) == ("DRY_RUN", "DRY_SUCCESS", None)


def test_a_task_that_stops_the_workers_has_ended_ok_and_is_found_by_its_return_code(workspace):
    add(workspace, chunk("end", 0, [OK], exit_codes=[105]))
    (row,) = rows(workspace, return_code=("STOP_WORKERS",))
    assert (row.instance, row.status, row.return_code) == ("end", "FINISHED", "STOP_WORKERS")


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"task_status": ("DONE",)}, "FINISHED"),
        ({"return_code": ("FINE",)}, "SUCCESS"),
        ({"steps": ("simm",)}, "sim"),
        ({"task_queues": ("cold",)}, "hot"),
        ({"max_tasks": 0}, "at least 1"),
    ],
)
def test_unknown_words_are_refused_with_what_is_allowed(workspace, filters, message):
    with pytest.raises(UsageError, match=message):
        task_rows(workspace, TaskFilters(**filters))
