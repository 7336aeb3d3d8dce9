"""Which tasks a condition chooses, and what would run with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from told_study import told_study

from merlin.cli.rerunning import parse_samples
from merlin.errors import UsageError
from merlin.ledger.replay import replay
from merlin.plan.plan_io import write_plan
from merlin.plan.tasks import Outcome
from merlin.status.failures import group_failures
from merlin.views.rerunning import Choice, HasFiles, Rerun, RerunStep, reruns
from merlin.workspace.directory import Workspace, open_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return told_study(tmp_path)


def chosen(workspace: Workspace, choice: Choice) -> Rerun:
    (found,) = reruns(workspace, choice)
    return found


def test_a_condition_over_the_tasks_chooses_and_what_depends_on_them_follows(workspace: Workspace) -> None:
    found = chosen(workspace, Choice(where="step = 'sim' and X < 2.5 and outcome = 'ok'"))
    assert found.again == {"sim": [(0, 3)], "post": [(0, 3)]}
    assert found.steps == (
        RerunStep(step="sim", chosen=3, others=0),
        RerunStep(step="post", chosen=0, others=3),
    )
    assert (found.num_tasks, found.missing) == (6, 1 + 3 + 5)


def test_all_that_is_given_must_hold(workspace: Workspace) -> None:
    assert chosen(workspace, Choice(failed=True)).again == {"sim": [(5, 6)]}
    assert chosen(workspace, Choice(steps=("post",), samples=((0, 2), (5, 6)))).again == {"post": [(0, 2)]}
    assert chosen(workspace, Choice(where="task > 0", samples=((0, 2),))).again == {
        "sim": [(1, 2)],
        "post": [(1, 2)],
    }
    assert reruns(workspace, Choice(failed=True, steps=("post",))) == []
    assert reruns(workspace, Choice(where="outcome = 'missing'")) == []


def test_a_group_of_failures_is_chosen_by_its_id(workspace: Workspace) -> None:
    (group,) = group_failures(workspace)
    assert chosen(workspace, Choice(failed=True, groups=(group.id,))).again == {"sim": [(5, 6)]}
    with pytest.raises(UsageError, match="no group 'abc'"):
        reruns(workspace, Choice(failed=True, groups=("abc",)))


@pytest.mark.parametrize("where", ["nosuch > 1", "1 = 1) union select 1 --", "", "task; drop table x"])
def test_a_condition_that_makes_no_sense_is_an_error_and_changes_nothing(
    workspace: Workspace, where: str
) -> None:
    with pytest.raises(UsageError):
        reruns(workspace, Choice(where=where or " "))


def test_a_blank_condition_is_told_in_our_words(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="the condition is empty"):
        reruns(workspace, Choice(where=" "))


def test_a_sample_that_there_is_not_is_an_error_and_not_nothing_to_do(workspace: Workspace) -> None:
    assert chosen(workspace, Choice(samples=((0, 6),))).num_tasks > 0
    for samples in (((99, 101),), ((0, 1), (4, 101))):
        with pytest.raises(UsageError, match=r"no sample 100; .* has 0 to 5"):
            reruns(workspace, Choice(samples=samples))


def test_a_study_without_samples_says_so_when_some_are_asked_for(workspace: Workspace) -> None:
    plan = replace(workspace.plan, samples=None)
    write_plan(workspace.path / "merlin_info" / "plan.json", plan)
    without = open_workspace(workspace.path)
    with pytest.raises(UsageError, match="has no samples"):
        reruns(without, Choice(samples=((0, 1),)))


def test_ids_of_samples_are_numbers_and_ranges_with_both_ends() -> None:
    assert parse_samples("3,7-9, 8 - 12") == ((3, 4), (7, 13))
    for wrong in ("", "a", "3-", "-3", "9-7", "1,,2"):
        with pytest.raises(UsageError, match="3,7-9"):
            parse_samples(wrong)


def test_of_a_failed_task_that_a_data_set_has_cleaned_its_directory_says_whether_files_are_left(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have failed on what the data set had of it, long after its own files were gone."""
    sim = next(each for each in workspace.plan.instances if each.step == "sim")
    cleaning = SimpleNamespace(aggregate=SimpleNamespace(cleanup=True, sources=(sim.id,)))
    monkeypatch.setattr("merlin.views.rerunning.plans_of", lambda _: [SimpleNamespace(instances=(cleaning,))])
    outcomes = replay(workspace.ledger_dir, workspace.plan).outcomes
    has_files = HasFiles(workspace, outcomes)
    assert outcomes[sim.id][5] == Outcome.FAILED
    directory = workspace.task_dir(sim, 5)
    shutil.rmtree(directory, ignore_errors=True)
    assert has_files.may_lack(sim)
    assert not has_files(sim, 5)
    directory.mkdir(parents=True)
    assert has_files(sim, 5)
