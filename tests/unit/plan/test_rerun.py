"""Which tasks run when a user wants some of them again."""

from __future__ import annotations

from small_plans import every, gather, plan, runs, same, step

from merlin.plan.plan import StepKind
from merlin.plan.rerun import tasks_to_rerun
from merlin.plan.tasks import NO_OUTCOME, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)
DATA = gather("data", ("b",), 10, 4)
MANIFEST = step("m", 1, every("data"), kind=StepKind.MANIFEST, aggregate=DATA.aggregate)
PLAN = plan(
    step("a", 10), step("b", 10, same("a")), DATA, MANIFEST, step("train", 1, every("m")), step("beside", 10)
)
ALL_OK = {
    "a": runs(10, (0, 10, OK)),
    "b": runs(10, (0, 10, OK)),
    "data": runs(3, (0, 3, OK)),
    **{id: runs(1, (0, 1, OK)) for id in ("m", "train")},
    "beside": runs(10, (0, 10, OK)),
}


def has_files(instance, task):
    return True


def test_everything_that_depends_on_a_task_is_run_again_with_it() -> None:
    assert tasks_to_rerun(PLAN, ALL_OK, {"a": [(5, 6)]}, has_files) == {
        "a": [(5, 6)], "b": [(5, 6)], "data": [(1, 2)], "m": [(0, 1)], "train": [(0, 1)],
    }  # fmt: skip


def test_what_a_task_depends_on_stays() -> None:
    again = tasks_to_rerun(PLAN, ALL_OK, {"b": [(0, 1), (9, 10)]}, has_files)
    assert again == {"b": [(0, 1), (9, 10)], "data": [(0, 1), (2, 3)], "m": [(0, 1)], "train": [(0, 1)]}


def test_it_runs_again_first_if_its_files_are_gone() -> None:
    again = tasks_to_rerun(PLAN, ALL_OK, {"b": [(3, 4)]}, lambda instance, task: instance.id != "a")
    assert again["a"] == [(3, 4)]
    assert again["b"] == [(3, 4)]


def test_a_task_that_has_no_outcome_needs_no_reset_and_what_failed_takes_its_skips_along() -> None:
    outcomes = {
        **ALL_OK,
        "a": runs(10, (0, 10, OK), (2, 3, FAILED), (4, 5, INTERRUPTED), (6, 7, NO_OUTCOME)),
        "b": runs(10, (0, 10, OK), (2, 3, SKIPPED), (4, 5, NO_OUTCOME), (6, 7, NO_OUTCOME)),
        "data": runs(3, (0, 1, OK)),
        "m": runs(1),
        "train": runs(1),
    }
    again = tasks_to_rerun(PLAN, outcomes, {"a": [(2, 3), (4, 7)]}, has_files)
    assert again == {"a": [(2, 3), (5, 6)], "b": [(2, 3), (5, 6)], "data": [(0, 1)]}


def test_a_failure_that_was_run_again_is_seen_by_what_had_missed_it() -> None:
    p = plan(step("a", 3), step("mean", 1, every("a")))
    outcomes = {"a": runs(3, (0, 3, OK), (1, 2, FAILED)), "mean": runs(1, (0, 1, OK))}
    assert tasks_to_rerun(p, outcomes, {"a": [(1, 2)]}, has_files) == {"a": [(1, 2)], "mean": [(0, 1)]}
