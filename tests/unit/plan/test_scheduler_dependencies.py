"""What the scheduler lets run, after what, and what it skips."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scheduling import FAILED, INTERRUPTED, OK, SKIPPED, SOFT_FAILED, start
from small_plans import every, gather, runs, same, step

from merlin.base.ranges import merged
from merlin.errors import ExecutionError
from merlin.plan.plan import StepKind
from merlin.plan.task_states import READY


def test_an_empty_ledger_ends_with_every_task_ok() -> None:
    b = start(step("sim", 100), step("post", 100, same("sim")))
    b.drive()
    assert b.scheduler.is_complete
    counts = b.scheduler.counts()
    assert {id: (c.ok, c.missing) for id, c in counts.items()} == {"sim": (100, 0), "post": (100, 0)}


def test_a_study_without_tasks_is_complete() -> None:
    b = start(step("sim", 0), step("post", 0, same("sim")), step("end", 1, every("post")))
    assert [c.instance for c in b.drive()] == ["end"]
    assert b.scheduler.is_complete
    assert start(step("sim", 0)).scheduler.is_complete


def test_a_same_edge_pipelines_sample_by_sample() -> None:
    b = start(step("sim", 100), step("post", 100, same("sim")))
    first, second = b.take(), b.take()
    assert (first.instance, first.lo, first.hi) == ("sim", 0, 1)
    b.finish_ok(second)
    after = b.take()
    assert (after.instance, after.lo, after.hi) == ("post", second.lo, second.hi)


def test_an_all_edge_waits_for_every_task_of_every_source() -> None:
    b = start(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
    first, second = b.take(), b.take()
    b.finish_ok(first)
    assert b.nothing_to_take()
    b.finish(second, (0, 1, FAILED))
    assert b.take().instance == "end"


def test_an_all_edge_skips_the_target_when_nothing_of_the_group_ended_ok() -> None:
    b = start(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
    for chunk in (b.take(), b.take()):
        b.finish(chunk, (0, 1, FAILED))
    verdict = b.verdict()
    assert (verdict.instance, verdict.lo, verdict.hi, verdict.outcome) == ("end", 0, 3, SKIPPED)
    assert verdict.cause == "no task of 'g', which it depends on, ended ok"
    assert b.scheduler.is_complete


def test_a_failed_sample_is_skipped_downstream_and_the_skip_cascades() -> None:
    b = start(step("a", 2), step("b", 2, same("a")), step("c", 2, same("b")))
    b.finish(b.take(), (0, 1, FAILED))
    assert b.verdicts() == [("b", 0, 1), ("c", 0, 1)]
    assert b.verdicts() == []
    b.drive()
    counts = b.scheduler.counts().values()
    assert [(c.ok, c.failed, c.skipped) for c in counts] == [(1, 1, 0), (1, 0, 1), (1, 0, 1)]


def test_on_failure_continue_lets_a_failed_sample_flow_on() -> None:
    b = start(step("a", 1, on_failure="continue"), step("b", 1, same("a")), step("c", 1, every("a")))
    b.finish(b.take(), (0, 1, FAILED))
    assert sorted(c.instance for c in b.take_all()) == ["b", "c"]


def test_a_task_that_chose_to_fail_counts_as_failed_and_lets_what_depends_on_it_run() -> None:
    chain = (
        step("a", 3, queue="a"),
        step("b", 3, same("a")),
        step("c", 3, same("b")),
        step("end", 1, every("c")),
    )
    b = start(*chain)
    a = [b.take(queue="a") for _ in range(3)]
    b.finish(a[0], (0, 1, SOFT_FAILED))
    b.finish(a[1], (1, 2, FAILED))
    b.finish_ok(a[2])
    counts = b.scheduler.counts()["a"]
    assert (counts.ok, counts.failed, counts.soft_failed, counts.missing) == (1, 2, 1, 0)
    assert b.verdicts() == [("b", 1, 2), ("c", 1, 2)]
    ran = [(c.instance, c.lo) for c in b.drive()]
    assert [r for r in ran if r[0] == "c"] == [("c", 0), ("c", 2)]  # an ordinary task of b was in between
    assert ran[-1] == ("end", 0)
    assert b.scheduler.is_complete and b.scheduler.stop_reason == ""


def test_an_all_edge_lets_a_group_pass_in_which_some_chose_to_fail_and_none_ended_ok() -> None:
    b = start(step("a", 2), step("end", 3, every("a")))
    first, second = b.take(), b.take()
    b.finish(first, (0, 1, SOFT_FAILED))
    b.finish(second, (1, 2, FAILED))
    assert b.take().instance == "end"


def test_rows_of_tasks_that_chose_to_fail_are_absent() -> None:
    b = start(step("x", 2), gather("data", ("x",), 2, 2))
    first, second = b.take(), b.take()
    b.finish(first, (0, 1, SOFT_FAILED))
    b.finish_ok(second)
    assert b.take().absent_rows == ((0, 1),)


def test_a_task_needs_all_of_its_same_sources() -> None:
    b = start(step("a", 1), step("b", 1), step("c", 1, same("a"), same("b")))
    first, second = b.take(), b.take()
    b.finish_ok(first)
    assert b.nothing_to_take()
    b.finish_ok(second)
    assert b.take().instance == "c"


def test_a_shard_is_ready_when_its_rows_have_ended_and_knows_which_are_absent() -> None:
    b = start(step("x", 3, canary=0), step("y", 3), gather("data", ("x", "y"), 6, 2))
    chunks = {(c.instance, c.lo): c for c in b.take_all()}
    b.finish(chunks["x", 0], (0, 1, FAILED))
    b.finish_ok(chunks["x", 1])
    shard = b.take()
    assert (shard.instance, shard.lo, shard.hi, shard.absent_rows) == ("data", 0, 1, ((0, 1),))
    b.finish(chunks["x", 2], (2, 3, FAILED))
    assert b.nothing_to_take()  # shard 1 holds x[2] and y[0]
    b.finish(chunks["y", 0], (0, 1, FAILED))
    shard = b.take()
    assert (shard.lo, shard.absent_rows) == (1, ((2, 4),))


def test_a_shard_without_a_single_good_row_still_runs_and_then_the_manifest() -> None:
    data = gather("data", ("sim",), 2, 2)
    manifest = step("data/manifest", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    b = start(step("sim", 2), data, manifest)
    for chunk in b.take_all():
        b.fail(chunk)
    shard = b.take()
    assert shard.absent_rows == ((0, 2),)
    b.finish_ok(shard)
    assert b.take().instance == "data/manifest"


def test_deeper_steps_run_first_and_shards_before_all() -> None:
    b = start(step("a", 100), step("b", 100, same("a")), gather("data", ("a",), 100, 1))
    b.finish_ok(b.take())
    assert [b.take().instance, b.take().instance, b.take().instance] == ["data", "b", "a"]


def test_a_restart_runs_exactly_what_is_missing() -> None:
    a = runs(10, (0, 5, OK), (5, 6, FAILED), (6, 7, INTERRUPTED))
    later = runs(10, (0, 3, OK))
    s = start(step("a", 10), step("b", 10, same("a")), outcomes={"a": a, "b": later})
    verdict = s.verdict()
    assert (verdict.instance, verdict.lo, verdict.hi, verdict.outcome) == ("b", 5, 6, SKIPPED)
    assert verdict.cause == "a task of 'a', which it depends on, did not end ok"
    ran: dict[str, list[int]] = {"a": [], "b": []}
    for chunk in s.drive():
        ran[chunk.instance] += chunk.task_ids()
    assert {k: sorted(v) for k, v in ran.items()} == {"a": [6, 7, 8, 9], "b": [3, 4, 6, 7, 8, 9]}
    assert s.scheduler.is_complete


def test_a_restart_remembers_who_chose_to_fail() -> None:
    a = runs(4, (0, 1, SOFT_FAILED), (1, 2, FAILED), (2, 3, OK))
    b = start(step("a", 4), step("b", 4, same("a")), step("end", 1, every("b")), outcomes={"a": a})
    assert b.verdicts() == [("b", 1, 2)]
    assert sorted((c.instance, *c.task_ids()) for c in b.drive()) == [
        *(("a", 3), ("b", 0), ("b", 2), ("b", 3), ("end", 0)),
    ]
    ended = {"a": runs(2, (0, 2, SOFT_FAILED)), "b": runs(2, (0, 2, OK))}
    again = start(step("a", 2), step("b", 2, same("a")), step("end", 1, every("a")), outcomes=ended)
    assert [c.instance for c in again.drive()] == ["end"]


def test_a_restart_of_a_complete_study_has_nothing_to_do() -> None:
    done = {"a": runs(2, (0, 2, OK)), "b": runs(2, (0, 2, OK)), "c": runs(1, (0, 1, OK))}
    b = start(step("a", 2), step("b", 2, same("a")), step("c", 1, every("b")), outcomes=done)
    assert b.scheduler.is_complete and b.nothing_to_take()


def test_a_ledger_of_another_size_is_refused() -> None:
    with pytest.raises(ExecutionError, match="the ledger has 3 tasks"):
        start(step("a", 2), outcomes={"a": runs(3, (0, 3, OK))})


def test_scattered_failures_are_followed_to_the_end() -> None:
    n = 12_000
    scattered = runs(n, (0, n, OK))
    for task in range(0, n, 2):
        scattered.set(task, task + 1, FAILED)
    post = step("post", n, same("sim"), every("gate"))
    b = start(step("sim", n), step("gate", 1, queue="gate"), post, outcomes={"sim": scattered})
    b.finish_ok(b.take(queue="gate"))
    counts = b.scheduler.counts()["post"]
    assert (counts.skipped, counts.ready) == (n // 2, n // 2)
    told = sorted((lo, hi) for _, lo, hi in b.verdicts())
    assert sum(hi - lo for lo, hi in told) == n // 2
    assert all(x[1] <= y[0] for x, y in pairwise(told))
    assert len(merged(told)) == n // 2


def test_verdicts_are_told_once() -> None:
    b = start(step("a", 2), step("b", 2, same("a")))
    b.finish(b.take(), (0, 1, FAILED))
    assert b.verdicts() == [("b", 0, 1)] and b.verdicts() == []


def test_a_task_has_its_story_and_an_instance_its_runs() -> None:
    b = start(step("sim", 3))
    chunk = b.take()
    assert "task 0 of sim is running; running chunks over it: [Chunk(" in b.scheduler.story("sim", 0)
    b.finish_ok(chunk)
    assert b.scheduler.story("sim", 0).startswith("task 0 of sim is ok; running chunks over it: []")
    assert list(b.scheduler.tasks("sim")) == [(0, 1, OK), (1, 3, READY)]
