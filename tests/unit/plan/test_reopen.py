"""Which tasks must run again so that failed ones get another chance."""

from __future__ import annotations

from small_plans import every, gather, plan, runs, same, step

from merlin.plan.plan import StepKind
from merlin.plan.reopen import reopen, reopen_failed
from merlin.plan.tasks import Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)


def test_reopening_failures_reopens_their_skips_shards_and_manifest_only() -> None:
    data = gather("data", ("b",), 10, 4)
    manifest = step("m", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    p = plan(step("a", 10), step("b", 10, same("a")), data, manifest, step("end", 1, every("b")))
    outcomes = {
        "a": runs(10, (0, 10, OK), (5, 6, FAILED)),
        "b": runs(10, (0, 10, OK), (5, 6, SKIPPED)),
        "data": runs(3, (0, 3, OK)),
        "m": runs(1, (0, 1, OK)),
        "end": runs(1, (0, 1, OK)),
    }
    expected = {"a": [(5, 6)], "b": [(5, 6)], "data": [(1, 2)], "m": [(0, 1)]}
    assert reopen_failed(p, outcomes) == expected
    assert reopen_failed(p, outcomes, ["a"]) == expected
    assert reopen_failed(p, outcomes, ["end"]) == {}


def test_what_ran_on_a_failure_runs_again_with_it_and_what_ran_on_that_too() -> None:
    data = gather("data", ("b",), 10, 4)
    manifest = step("m", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    other = gather("other", ("a",), 10, 10)  # its manifest waits for b before it cleans up
    others = step("o", 1, every("other"), every("b"), kind=StepKind.MANIFEST, aggregate=other.aggregate)
    p = plan(
        step("a", 10), step("b", 10, same("a")), step("c", 10, same("b")), data, manifest, other, others,
        step("train", 1, every("m")), step("over_a", 1, every("a")), step("over_c", 1, every("c")),
        step("over_other", 1, every("o")),
    )  # fmt: skip
    outcomes = {
        "a": runs(10, (0, 10, OK), (2, 3, FAILED), (5, 6, SOFT_FAILED), (9, 10, SOFT_FAILED)),
        "b": runs(10, (0, 10, OK), (2, 3, SKIPPED), (9, 10, FAILED)),
        "c": runs(10, (0, 10, OK), (2, 3, SKIPPED), (9, 10, SKIPPED)),
        "data": runs(3, (0, 3, OK)),
        **{id: runs(1, (0, 1, OK)) for id in ("m", "other", "o", "train", "over_a", "over_c", "over_other")},
    }
    alone = [(2, 3), (5, 6), (9, 10)]
    assert reopen_failed(p, outcomes) == {
        "a": alone, "b": alone, "c": alone, "data": [(0, 3)], "m": [(0, 1)], "other": [(0, 1)], "o": [(0, 1)],
        "train": [(0, 1)], "over_a": [(0, 1)], "over_c": [(0, 1)],
    }  # fmt: skip
    # the failure of b alone: c was skipped, and neither the training nor anything else had seen its row
    assert reopen_failed(p, outcomes, ["b"]) == {
        "b": [(2, 3), (9, 10)], "c": [(2, 3), (9, 10)], "data": [(0, 1), (2, 3)], "m": [(0, 1)], "o": [(0, 1)],
    }  # fmt: skip


def test_what_ran_on_failures_as_the_step_wished_runs_again_with_them() -> None:
    p = plan(step("a", 3, on_failure="continue"), step("b", 3, same("a")))
    outcomes = {"a": runs(3, (0, 3, OK), (1, 2, FAILED)), "b": runs(3, (0, 3, OK))}
    assert reopen_failed(p, outcomes) == {"a": [(1, 2)], "b": [(1, 2)]}


def test_what_ran_on_a_task_stays_when_the_task_is_run_for_its_files_alone() -> None:
    p = plan(step("a", 3), step("b", 3, same("a")))
    outcomes = {"a": runs(3, (0, 3, OK)), "b": runs(3, (0, 3, OK))}
    assert reopen(p, outcomes, {"a": [(1, 2)]}) == {"a": [(1, 2)]}
