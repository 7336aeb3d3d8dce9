"""The scheduler on small plans: one behaviour per test."""

from __future__ import annotations

from typing import Any

import pytest

from merlin.errors import ExecutionError
from merlin.study.plan import Aggregate, Edge, Plan, StepInstance, StepKind
from merlin.study.reopen import reopen_failed
from merlin.study.runs import RunMap
from merlin.study.schedule import Scheduler, Verdict
from merlin.study.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome

OK, FAILED, SKIPPED, INTERRUPTED = (int(o) for o in Outcome)


def step(id: str, n: int, *edges: Edge, **more: Any) -> StepInstance:
    kind = more.pop("kind", StepKind.CMD)
    return StepInstance(id=id, step=id, kind=kind, num_tasks=n, per_sample=True, edges=edges, **more)


def same(source: str) -> Edge:
    return Edge(source=source, kind="same", group=source)


def every(source: str, group: str = "") -> Edge:
    return Edge(source=source, kind="all", group=group or f"{source}_*")


def gather(id: str, sources: tuple[str, ...], num_rows: int, size: int) -> StepInstance:
    block = tuple(Edge(source=s, kind="block", group="from") for s in sources)
    aggregate = Aggregate(sources=sources, fields=(), samples_per_shard=size)
    return step(id, -(-num_rows // size), *block, kind=StepKind.AGGREGATE, aggregate=aggregate)


def plan(*instances: StepInstance) -> Plan:
    return Plan(
        name="p",
        study_id="s",
        workspace="/w",
        spec_path="",
        spec_root="",
        spec_digest="",
        created="",
        seed=0,
        samples=None,
        variables={},
        instances=instances,
    )


def scheduler(
    *instances: StepInstance, outcomes: dict[str, RunMap] | None = None, workers: int = 2
) -> Scheduler:
    made = Scheduler(plan(*instances), outcomes or {}, num_workers=workers)
    made.check()
    return made


def runs(n: int, *parts: tuple[int, int, int]) -> RunMap:
    out = RunMap(n, NO_OUTCOME)
    for part in parts:
        out.set(*part)
    return out


def take(s: Scheduler, now: float = 0.0) -> Chunk:
    chunk = s.take(now)
    s.check()
    assert chunk is not None, s.counts()
    return chunk


def take_all(s: Scheduler, now: float = 0.0) -> list[Chunk]:
    out = []
    while (chunk := s.take(now)) is not None:
        out.append(chunk)
        s.check()
    return out


def finish(s: Scheduler, chunk: Chunk, *outcomes: tuple[int, int, int], **more: Any) -> None:
    now = more.pop("now", 0.0)
    s.finished(ChunkResult(chunk=chunk, runs=outcomes, **more), now)
    s.check()


def finish_ok(s: Scheduler, chunk: Chunk, busy_s: float = 0.0) -> None:
    pieces = []
    at = chunk.lo
    for a, b in (*chunk.holes, (chunk.hi, chunk.hi)):
        if a > at:
            pieces.append((at, a, OK))
        at = b
    finish(s, chunk, *pieces, busy_s=busy_s)


def drive(s: Scheduler) -> list[Chunk]:
    """Run everything, one chunk at a time, all ok."""
    out = []
    while (chunk := s.take(0.0)) is not None:
        out.append(chunk)
        finish_ok(s, chunk)
    return out


def test_an_empty_ledger_ends_with_every_task_ok() -> None:
    s = scheduler(step("sim", 100), step("post", 100, same("sim")))
    drive(s)
    assert s.is_complete
    assert {id: (c.ok, c.missing) for id, c in s.counts().items()} == {"sim": (100, 0), "post": (100, 0)}


def test_a_same_edge_pipelines_sample_by_sample() -> None:
    s = scheduler(step("sim", 100), step("post", 100, same("sim")))
    first, second = take(s), take(s)
    assert (first.instance, first.lo, first.hi) == ("sim", 0, 1)
    finish_ok(s, second)
    after = take(s)
    assert (after.instance, after.lo, after.hi) == ("post", second.lo, second.hi)


def test_an_all_edge_waits_for_every_task_of_every_source() -> None:
    s = scheduler(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
    a, b = take(s), take(s)
    finish_ok(s, a)
    assert s.take(0.0) is None
    finish(s, b, (0, 1, FAILED))
    assert take(s).instance == "end"


def test_an_all_edge_skips_the_target_when_nothing_of_the_group_ended_ok() -> None:
    s = scheduler(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
    for chunk in (take(s), take(s)):
        finish(s, chunk, (0, 1, FAILED))
    (verdict,) = s.verdicts()
    assert (verdict.instance, verdict.lo, verdict.hi, verdict.outcome) == ("end", 0, 3, SKIPPED)
    assert s.is_complete


def test_a_failed_sample_is_skipped_downstream_and_the_skip_cascades() -> None:
    s = scheduler(step("a", 2), step("b", 2, same("a")), step("c", 2, same("b")))
    finish(s, take(s), (0, 1, FAILED))
    assert [(v.instance, v.lo, v.hi) for v in s.verdicts()] == [("b", 0, 1), ("c", 0, 1)]
    assert s.verdicts() == []
    drive(s)
    assert [(c.ok, c.failed, c.skipped) for c in s.counts().values()] == [(1, 1, 0), (1, 0, 1), (1, 0, 1)]


def test_on_failure_continue_lets_a_failed_sample_flow_on() -> None:
    s = scheduler(step("a", 1, on_failure="continue"), step("b", 1, same("a")), step("c", 1, every("a")))
    finish(s, take(s), (0, 1, FAILED))
    assert sorted(c.instance for c in take_all(s)) == ["b", "c"]


def test_a_task_needs_all_of_its_same_sources() -> None:
    s = scheduler(step("a", 1), step("b", 1), step("c", 1, same("a"), same("b")))
    a, b = take(s), take(s)
    finish_ok(s, a)
    assert s.take(0.0) is None
    finish_ok(s, b)
    assert take(s).instance == "c"


def test_a_shard_is_ready_when_its_rows_have_ended_and_knows_which_are_absent() -> None:
    s = scheduler(step("x", 3, canary=0), step("y", 3), gather("data", ("x", "y"), 6, 2))
    chunks = {(c.instance, c.lo): c for c in take_all(s)}
    finish(s, chunks["x", 0], (0, 1, FAILED))
    finish_ok(s, chunks["x", 1])
    shard = take(s)
    assert (shard.instance, shard.lo, shard.hi, shard.absent_rows) == ("data", 0, 1, ((0, 1),))
    finish(s, chunks["x", 2], (2, 3, FAILED))
    assert s.take(0.0) is None  # shard 1 holds x[2] and y[0]
    finish(s, chunks["y", 0], (0, 1, FAILED))
    shard = take(s)
    assert (shard.lo, shard.absent_rows) == (1, ((2, 4),))


def test_a_shard_without_a_single_good_row_still_runs_and_then_the_manifest() -> None:
    data = gather("data", ("sim",), 2, 2)
    manifest = step("data/manifest", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    s = scheduler(step("sim", 2), data, manifest)
    for chunk in take_all(s):
        finish(s, chunk, (chunk.lo, chunk.hi, FAILED))
    shard = take(s)
    assert shard.absent_rows == ((0, 2),)
    finish_ok(s, shard)
    assert take(s).instance == "data/manifest"


def test_deeper_steps_run_first_and_shards_before_all() -> None:
    s = scheduler(step("a", 100), step("b", 100, same("a")), gather("data", ("a",), 100, 1))
    finish_ok(s, take(s))
    assert [take(s).instance, take(s).instance, take(s).instance] == ["data", "b", "a"]


def test_chunks_grow_towards_the_target_and_shrink_at_the_tail() -> None:
    s = scheduler(step("sim", 10_000))
    sizes = []
    while (chunk := s.take(0.0)) is not None:
        sizes.append(chunk.hi - chunk.lo)
        finish_ok(s, chunk, busy_s=0.001 * sizes[-1])
    assert sizes[:5] == [1, 8, 64, 512, 1500]
    assert sizes[-1] == 1
    assert max(sizes) == 1500
    assert all(size <= -(-left // 4) for size, left in zip(sizes, _left(10_000, sizes), strict=True))


def _left(n: int, sizes: list[int]) -> list[int]:
    out = []
    for size in sizes:
        out.append(n)
        n -= size
    return out


def test_scattered_tasks_share_a_chunk_with_holes() -> None:
    done = runs(1000, (0, 1000, OK))
    for task in range(0, 1000, 10):
        done.set(task, task + 1, NO_OUTCOME)
    s = scheduler(step("sim", 1000, kind=StepKind.FUNCTION), outcomes={"sim": done})
    chunk = take(s)
    assert chunk.task_ids() == list(range(0, 250, 10))
    drive(s)
    finish_ok(s, chunk)
    assert s.is_complete


def test_holes_may_hold_tasks_that_another_chunk_runs() -> None:
    s = scheduler(step("sim", 40, kind=StepKind.FUNCTION), workers=1)
    first = take(s)
    second = take(s)
    finish(s, first, (0, 5, OK), (7, 20, OK))  # 5 and 6 were not done
    again = take(s)
    assert (again.lo, again.hi, again.attempt) == (5, 7, 2)
    finish_ok(s, second)
    finish_ok(s, again)


def test_interrupted_tasks_run_again_with_a_higher_attempt() -> None:
    s = scheduler(step("sim", 1))
    finish(s, take(s), (0, 1, INTERRUPTED))
    again = take(s)
    assert again.attempt == 2
    finish_ok(s, again)
    assert s.is_complete


def test_a_deferred_chunk_waits_for_its_time() -> None:
    s = scheduler(step("sim", 1))
    chunk = take(s)
    later = Chunk(instance="sim", lo=0, hi=1, retries=1, use_restart=True)
    finish(s, chunk, deferred=(Deferred(chunk=later, delay_s=5.0),), now=10.0)
    assert s.next_wakeup() == 15.0
    assert s.take(14.9) is None
    again = take(s, 15.0)
    assert (again.retries, again.use_restart, again.attempt) == (1, True, 2)
    assert s.next_wakeup() is None


def test_a_lost_chunk_keeps_what_the_ledger_holds_and_is_bisected() -> None:
    s = scheduler(step("sim", 1000, kind=StepKind.FUNCTION))
    chunk = take(s)
    assert (chunk.lo, chunk.hi) == (0, 64)
    s.lost(chunk, [(0, 4, OK), (4, 5, FAILED)], 0.0)
    s.check()
    halves = [take(s), take(s)]
    assert [(c.lo, c.hi, c.attempt) for c in halves] == [(5, 34, 2), (34, 64, 2)]
    assert s.counts()["sim"].ok == 4


def test_one_bad_sample_costs_only_itself_after_crash_limit_deaths() -> None:
    bad = 17
    s = scheduler(step("sim", 64, kind=StepKind.FUNCTION, crash_limit=3), workers=1)
    deaths = []
    while (chunk := s.take(0.0)) is not None:
        if chunk.lo <= bad < chunk.hi:
            deaths.append(chunk)
            s.lost(chunk, [], 0.0, signal="SIGSEGV")
            s.check()
        else:
            finish_ok(s, chunk)
    assert s.is_complete
    assert s.counts()["sim"].failed == 1
    (verdict,) = s.verdicts()
    assert (verdict.lo, verdict.hi, verdict.outcome) == (bad, bad + 1, FAILED)
    assert verdict.cause == "killed its worker 3 times (SIGSEGV)"
    assert [c.isolate for c in deaths[-3:]] == [True] * 3
    attempts = [c.attempt for c in deaths]
    assert attempts == sorted(set(attempts))


def test_a_chunk_given_back_waits_as_it_was() -> None:
    s = scheduler(step("sim", 1))
    chunk = take(s)
    s.give_back(chunk)
    s.check()
    assert take(s) == chunk


def test_the_canary_stops_before_the_fan_out() -> None:
    s = scheduler(step("sim", 1000))
    while (chunk := s.take(0.0)) is not None:
        finish(s, chunk, (chunk.lo, chunk.hi, FAILED), note="exit code 1", busy_s=chunk.hi - chunk.lo)
    assert s.stop_reason == "canary: the first 10 tasks of step 'sim' all failed: exit code 1"
    assert s.counts()["sim"].failed == 10
    assert not s.stop_now


def test_the_canary_is_content_when_one_task_ended_ok() -> None:
    s = scheduler(step("sim", 100))
    finish_ok(s, take(s))
    while (chunk := s.take(0.0)) is not None:
        finish(s, chunk, (chunk.lo, chunk.hi, FAILED))
    assert s.stop_reason == ""
    assert s.is_complete


@pytest.mark.parametrize(("limit", "failures"), [(0.05, 6), (5, 6), (0.0, 1)])
def test_max_failures_stops_when_exceeded(limit: float, failures: int) -> None:
    s = scheduler(step("sim", 100, max_failures=limit, canary=0))
    while (chunk := s.take(0.0)) is not None:
        finish(s, chunk, (chunk.lo, chunk.hi, FAILED), busy_s=1.5 * (chunk.hi - chunk.lo))
    assert s.counts()["sim"].failed == failures
    assert s.stop_reason.startswith("max_failures")


def test_a_hard_failure_stops_everything_and_stop_workers_lets_running_tasks_end() -> None:
    for stop, at_once in (("hard_fail", True), ("stop_workers", False)):
        s = scheduler(step("sim", 10))
        first, second = take(s), take(s)
        finish(s, first, (0, 1, FAILED), stop=stop)
        assert s.stop_reason and s.stop_now is at_once
        assert s.take(0.0) is None
        finish_ok(s, second)
        assert s.num_running == 0
        assert s.counts()["sim"].missing == 8


def test_a_restart_runs_exactly_what_is_missing() -> None:
    a = runs(10, (0, 5, OK), (5, 6, FAILED), (6, 7, INTERRUPTED))
    b = runs(10, (0, 3, OK))
    s = scheduler(step("a", 10), step("b", 10, same("a")), outcomes={"a": a, "b": b})
    assert s.verdicts() == [
        Verdict(
            instance="b",
            lo=5,
            hi=6,
            outcome=Outcome.SKIPPED,
            cause="a task of 'a', which it depends on, did not end ok",
        )
    ]
    ran = {"a": [], "b": []}
    for chunk in drive(s):
        ran[chunk.instance] += chunk.task_ids()
    assert {k: sorted(v) for k, v in ran.items()} == {"a": [6, 7, 8, 9], "b": [3, 4, 6, 7, 8, 9]}
    assert s.is_complete


def test_a_restart_of_a_complete_study_has_nothing_to_do() -> None:
    done = {"a": runs(2, (0, 2, OK)), "b": runs(2, (0, 2, OK)), "c": runs(1, (0, 1, OK))}
    s = scheduler(step("a", 2), step("b", 2, same("a")), step("c", 1, every("b")), outcomes=done)
    assert s.is_complete and s.take(0.0) is None


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


def test_a_chunk_that_ends_twice_is_a_bug_with_its_story() -> None:
    s = scheduler(step("sim", 2))
    chunk = take(s)
    finish_ok(s, chunk)
    with pytest.raises(ExecutionError, match="task 0 of sim is ok"):
        finish_ok(s, chunk)


def test_the_state_of_a_hundred_million_tasks_stays_small() -> None:
    n = 10**8
    data = gather("data", ("post",), n, 10_000)
    s = Scheduler(
        plan(
            step("sim", n, kind=StepKind.FUNCTION), step("post", n, same("sim"), kind=StepKind.FUNCTION), data
        ),
        {},
        num_workers=4,
    )
    for _ in range(200):
        chunk = s.take(0.0)
        assert chunk is not None
        s.finished(ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.hi, OK),), busy_s=1e-3), 0.0)
    assert sum(state.tasks.num_runs for state in s._states.values()) < 100
