from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from growing_study import FAILED, NUM, OK, SKIPPED, append, chunk, extend_study, make_study

from merlin.errors import WorkspaceError
from merlin.ledger.records import RangeRecord
from merlin.views.study_page import StudyView
from merlin.views.task_page import task_page
from merlin.workspace.directory import Workspace


@pytest.fixture
def study(tmp_path: Path) -> Workspace:
    return make_study(tmp_path / "study_20260101-000000")


def test_a_failed_task_says_why_with_what_inputs_and_where_its_files_are(study: Workspace) -> None:
    append(study, chunk(4, [OK, FAILED, OK]), worker="w7")
    directory = study.task_dir(study.instance("sim/P.1"), 5)
    directory.mkdir(parents=True)
    for name in ("sim_P.1.sh", "sim_P.1.out", "sim_P.1.err", "MERLIN_FINISHED", "picture.png", "data.bin"):
        (directory / name).write_bytes(b"1234")
    task = task_page(StudyView(study.path), "sim/P.1", 5)
    assert (task.step, task.task, task.sample_id, task.outcome) == ("sim", 5, 5, "failed")
    assert (task.exit_code, task.cause, task.tail, task.worker) == (101, "exit code 3", "boom 5", "w7")
    assert dict(task.inputs) == {"P": 1, "X": 5.0}
    assert (task.previous, task.next) == (4, 6)
    assert task.directory == str(directory)
    assert [(file.name, file.kind, file.size) for file in task.files] == [
        ("data.bin", "data", 4),
        ("picture.png", "image", 4),
        ("sim_P.1.err", "log", 4),
        ("sim_P.1.out", "log", 4),
        ("sim_P.1.sh", "script", 4),
    ]


def test_the_same_sample_in_other_steps_is_related(study: Workspace) -> None:
    append(
        study,
        chunk(5, [FAILED]),
        RangeRecord(instance="post", lo=0, hi=NUM, outcome=SKIPPED, cause="sim/P.1 did not end ok"),
    )
    view = StudyView(study.path)
    related = task_page(view, "sim/P.1", 5).related
    assert [(each.instance, each.task, each.outcome) for each in related] == [
        ("sim/P.2", 5, "missing"),
        ("post", 5, "skipped"),
    ]
    assert task_page(view, "post", 5).cause == "sim/P.1 did not end ok"
    assert task_page(view, "end", 0).related == ()


def test_the_last_attempt_of_a_task_is_the_one_that_counts(study: Workspace) -> None:
    append(study, chunk(5, [FAILED]), worker="w1")
    append(study, chunk(0, [OK] * NUM, attempt=2, started=1010.0), worker="w2")
    task = task_page(StudyView(study.path), "sim/P.1", 5)
    assert (task.outcome, task.attempt, task.worker, task.cause, task.tail) == ("ok", 2, "w2", "", "")


def test_a_task_of_an_extension_has_its_own_sample_and_files(study: Workspace) -> None:
    extension = extend_study(study, num=5)
    directory = extension.task_dir(extension.instance("post"), 4)
    directory.mkdir(parents=True)
    (directory / "post.err").write_text("late")
    task = task_page(StudyView(study.path), "extensions/001/post", 4)
    assert (task.instance, task.sample_id, dict(task.inputs)) == (
        "extensions/001/post",
        NUM + 4,
        {"X": NUM + 4},
    )
    assert task.directory == str(directory)
    assert [file.name for file in task.files] == ["post.err"]
    assert (task.previous, task.next) == (3, None)
    assert {each.instance for each in task.related} == {"extensions/001/sim/P.1", "extensions/001/sim/P.2"}


def test_a_task_that_never_ran_has_no_files_and_lost_samples_cost_their_values_alone(
    study: Workspace,
) -> None:
    (study.info / "samples.npy").unlink()
    shutil.rmtree(study.ledger_dir, ignore_errors=True)
    task = task_page(StudyView(study.path), "sim/P.2", 0)
    assert (task.outcome, task.files, task.directory, dict(task.inputs)) == ("missing", (), "", {"P": 2})


@pytest.mark.parametrize(
    ("instance", "task"), [("sim", 0), ("sim/P.1", NUM), ("sim/P.1", -1), ("../sim/P.1", 0)]
)
def test_there_is_no_other_task(study: Workspace, instance: str, task: int) -> None:
    with pytest.raises(WorkspaceError):
        task_page(StudyView(study.path), instance, task)
