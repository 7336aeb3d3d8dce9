from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from effort import repeats
from growing_study import FAILED, NUM, OK, SKIPPED, append, chunk, extend_study, make_study, records, words
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.errors import UsageError, WorkspaceError
from merlin.ledger.records import RangeRecord
from merlin.status.tasks import TaskRow, task_rows
from merlin.views.outcome_runs import OUTCOMES
from merlin.views.study_page import StudyView
from merlin.views.task_list import tasks
from merlin.workspace.directory import Workspace

STEPS = {
    "sim": ("sim/P.1", "sim/P.2"),
    "post": ("post",),
    "end": ("end",),
    "": ("sim/P.1", "sim/P.2", "post", "end"),
}


@pytest.fixture
def study(tmp_path: Path) -> Workspace:
    return make_study(tmp_path / "study_20260101-000000")


def all_rows(
    view: StudyView, step: str, outcome: str, limit: int, sample: int | None = None
) -> list[TaskRow]:
    """The rows of all pages, each of which must be as long as it can be."""
    rows: list[TaskRow] = []
    after: int | None = 0
    while after is not None:
        page = tasks(view, step, outcome, after=after, limit=limit, sample=sample)
        assert len(page.rows) == limit or page.next_after is None
        rows += page.rows
        assert page.next_after is None or page.next_after > after
        after = page.next_after
    assert page.total == len(rows)
    return rows


@given(
    written=st.lists(records(), max_size=8),
    step=st.sampled_from(sorted(STEPS)),
    outcome=st.sampled_from(["", *OUTCOMES]),
    limit=st.integers(1, 50),
)
@settings(max_examples=repeats(25, 600))
def test_pages_have_every_task_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, written: list, step: str, outcome: str, limit: int
) -> None:
    study = make_study(tmp_path_factory.mktemp("study") / "study_20260101-000000")
    for i, record in enumerate(written):
        append(study, record, worker=f"w{i % 2}")
    rows = all_rows(StudyView(study.path), step, outcome, limit)
    names = words(study)
    wanted = [(id, t) for id in STEPS[step] for t, word in enumerate(names[id]) if outcome in ("", word)]
    assert [(row.instance, row.task) for row in rows] == wanted
    of_command = {(row.instance, row.task): row for row in task_rows(study)}
    assert all(of_command[row.instance, row.task] == row for row in rows)


def test_tasks_of_an_extension_follow_those_of_the_study_and_say_whose_they_are(study: Workspace) -> None:
    append(extend_study(study, num=5), chunk(0, [OK, FAILED] * 2))
    view = StudyView(study.path)
    rows = all_rows(view, "sim", "", 7)
    assert [row.instance for row in rows] == [
        *["sim/P.1"] * NUM, *["sim/P.2"] * NUM, *["extensions/001/sim/P.1"] * 5, *["extensions/001/sim/P.2"] * 5,
    ]  # fmt: skip
    failed = all_rows(view, "", "failed", 50)
    assert [(row.instance, row.task, row.sample_id) for row in failed] == [
        ("extensions/001/sim/P.1", 1, NUM + 1),
        ("extensions/001/sim/P.1", 3, NUM + 3),
    ]


def test_a_page_begins_at_a_position_among_all_tasks_of_the_step(study: Workspace) -> None:
    append(study, chunk(0, [FAILED] * NUM, instance="sim/P.2"))
    page = tasks(StudyView(study.path), "sim", "failed", after=NUM + 3, limit=2)
    assert [(row.instance, row.task) for row in page.rows] == [("sim/P.2", 3), ("sim/P.2", 4)]
    assert (page.next_after, page.total) == (NUM + 5, NUM)
    assert tasks(StudyView(study.path), "sim", after=10**20).rows == ()


def test_a_sample_is_found_in_every_step_that_has_it(study: Workspace) -> None:
    extend_study(study, num=5)
    append(study, chunk(7, [FAILED]), RangeRecord(instance="post", lo=7, hi=8, outcome=SKIPPED))
    view = StudyView(study.path)
    assert [row.instance for row in all_rows(view, "", "", 2, sample=7)] == ["sim/P.1", "sim/P.2", "post"]
    assert [row.instance for row in all_rows(view, "sim", "failed", 2, sample=7)] == ["sim/P.1"]
    assert {row.sample_id for row in all_rows(view, "", "", 50, sample=NUM + 4)} == {NUM + 4}
    assert all_rows(view, "", "", 50, sample=NUM + 5) == []
    assert all_rows(view, "", "", 50, sample=-1) == []


def test_scattered_tasks_have_the_facts_of_their_own_records(study: Workspace) -> None:
    for task in (0, 9, 19):
        append(study, chunk(task, [FAILED], started=1000.0 + task), worker=f"w{task}")
    rows = tasks(StudyView(study.path), "", "failed").rows
    assert [(row.task, row.worker, row.started) for row in rows] == [
        (0, "w0", 1000.0), (9, "w9", 1009.0), (19, "w19", 1019.0),
    ]  # fmt: skip
    assert all(a.task < b.task for a, b in pairwise(rows))


def test_wrong_words_and_numbers_are_refused(study: Workspace) -> None:
    view = StudyView(study.path)
    with pytest.raises(UsageError, match="there are: ok, failed, skipped, missing"):
        tasks(view, outcome="broken")
    for numbers in ({"after": -1}, {"limit": 0}, {"limit": 201}):
        with pytest.raises(UsageError, match="1 to 200 rows"):
            tasks(view, **numbers)
    with pytest.raises(WorkspaceError, match="no step"):
        tasks(view, "nothing")
