"""What every implementation of `merlin.study.progress.Progress` must do.

class TestMine(ProgressContract):
    def make(self, plan, outcomes, **options): return MyProgress(…)
    def check(self, progress): progress.check()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from merlin.errors import ExecutionError
from merlin.study.pieces import merged, pieces_of
from merlin.study.plan import Plan, StepInstance, StepKind
from merlin.study.progress import Progress
from merlin.study.runs import RunMap
from merlin.study.schedule import LOSS_LIMIT, Verdict
from merlin.study.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome
from merlin.testing.plans import every, gather, plan, same, step

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)
LEASE_S = 60.0

Run = tuple[int, int, int]


def runs(n: int, *parts: Run) -> RunMap:
    """What a ledger holds of an instance with n tasks."""
    out = RunMap(n, NO_OUTCOME)
    for part in parts:
        out.set(*part)
    return out


def read_verdicts(progress: Progress) -> list[Verdict]:
    """All of them, as an executor reads them."""
    out: list[Verdict] = []
    while found := progress.verdicts():
        progress.written(found)
        out += found
    return out


class _Bench:
    """One implementation under test; checks its invariants after every event."""

    def __init__(self, suite: ProgressContract, progress: Progress) -> None:
        self.suite, self.progress = suite, progress
        self.check()

    def check(self) -> None:
        self.suite.check(self.progress)

    def take(self, now: float = 0.0, instance: str | None = None) -> Chunk:
        chunk = self.progress.take(now, instance)
        self.check()
        assert chunk is not None, self.progress.counts()
        return chunk

    def nothing_to_take(self, now: float = 0.0) -> bool:
        return self.progress.take(now) is None

    def take_all(self, now: float = 0.0) -> list[Chunk]:
        out = []
        while (chunk := self.progress.take(now)) is not None:
            out.append(chunk)
            self.check()
        return out

    def finish(self, chunk: Chunk, *outcomes: Run, now: float = 0.0, **more: Any) -> bool:
        held = self.progress.finished(ChunkResult(chunk=chunk, runs=outcomes, **more), now)
        self.check()
        return held

    def finish_ok(self, chunk: Chunk, busy_s: float = 0.0) -> bool:
        return self.finish(chunk, *((a, b, OK) for a, b in pieces_of(chunk)), busy_s=busy_s)

    def fail(self, chunk: Chunk, **more: Any) -> bool:
        return self.finish(chunk, *((a, b, FAILED) for a, b in pieces_of(chunk)), **more)

    def lose(self, chunk: Chunk, done: Iterable[Run] = (), **more: Any) -> bool:
        held = self.progress.lost(chunk, done, 0.0, **more)
        self.check()
        return held

    def drive(self) -> list[Chunk]:
        """Run everything, one chunk at a time, all ok."""
        out = []
        while (chunk := self.progress.take(0.0)) is not None:
            out.append(chunk)
            self.finish_ok(chunk)
        return out

    def verdicts(self) -> list[Verdict]:
        return read_verdicts(self.progress)


class ProgressContract:
    """Subclass it, and say how to make one and how to check its invariants."""

    def make(
        self,
        plan: Plan,
        outcomes: Mapping[str, RunMap],
        *,
        num_workers: int = 2,
        first_attempt: int = 1,
    ) -> Progress:
        """A progress on a clock that starts at 0, with leases of LEASE_S and chunks of 1.5 s."""
        raise NotImplementedError

    def check(self, progress: Progress) -> None:
        """Assert the invariants."""
        raise NotImplementedError

    def num_runs(self, progress: Progress) -> int:
        """The size of the state, in runs."""
        raise NotImplementedError

    def start(
        self, *instances: StepInstance, outcomes: Mapping[str, RunMap] | None = None, workers: int = 2
    ) -> _Bench:
        return _Bench(self, self.make(plan(*instances), outcomes or {}, num_workers=workers))

    # -------------------------------------------------------------- dependencies

    def test_an_empty_ledger_ends_with_every_task_ok(self) -> None:
        b = self.start(step("sim", 100), step("post", 100, same("sim")))
        b.drive()
        assert b.progress.is_complete
        counts = b.progress.counts()
        assert {id: (c.ok, c.missing) for id, c in counts.items()} == {"sim": (100, 0), "post": (100, 0)}

    def test_a_study_without_tasks_is_complete(self) -> None:
        b = self.start(step("sim", 0), step("post", 0, same("sim")), step("end", 1, every("post")))
        assert [c.instance for c in b.drive()] == ["end"]
        assert b.progress.is_complete
        assert self.start(step("sim", 0)).progress.is_complete

    def test_a_same_edge_pipelines_sample_by_sample(self) -> None:
        b = self.start(step("sim", 100), step("post", 100, same("sim")))
        first, second = b.take(), b.take()
        assert (first.instance, first.lo, first.hi) == ("sim", 0, 1)
        b.finish_ok(second)
        after = b.take()
        assert (after.instance, after.lo, after.hi) == ("post", second.lo, second.hi)

    def test_an_all_edge_waits_for_every_task_of_every_source(self) -> None:
        b = self.start(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
        first, second = b.take(), b.take()
        b.finish_ok(first)
        assert b.nothing_to_take()
        b.finish(second, (0, 1, FAILED))
        assert b.take().instance == "end"

    def test_an_all_edge_skips_the_target_when_nothing_of_the_group_ended_ok(self) -> None:
        b = self.start(step("a", 1), step("b", 1), step("end", 3, every("a", "g"), every("b", "g")))
        for chunk in (b.take(), b.take()):
            b.finish(chunk, (0, 1, FAILED))
        (verdict,) = b.verdicts()
        assert (verdict.instance, verdict.lo, verdict.hi, verdict.outcome) == ("end", 0, 3, SKIPPED)
        assert verdict.cause == "no task of 'g', which it depends on, ended ok"
        assert b.progress.is_complete

    def test_a_failed_sample_is_skipped_downstream_and_the_skip_cascades(self) -> None:
        b = self.start(step("a", 2), step("b", 2, same("a")), step("c", 2, same("b")))
        b.finish(b.take(), (0, 1, FAILED))
        assert [(v.instance, v.lo, v.hi) for v in b.verdicts()] == [("b", 0, 1), ("c", 0, 1)]
        assert b.verdicts() == []
        b.drive()
        counts = b.progress.counts().values()
        assert [(c.ok, c.failed, c.skipped) for c in counts] == [(1, 1, 0), (1, 0, 1), (1, 0, 1)]

    def test_on_failure_continue_lets_a_failed_sample_flow_on(self) -> None:
        b = self.start(step("a", 1, on_failure="continue"), step("b", 1, same("a")), step("c", 1, every("a")))
        b.finish(b.take(), (0, 1, FAILED))
        assert sorted(c.instance for c in b.take_all()) == ["b", "c"]

    def test_a_task_that_chose_to_fail_counts_as_failed_and_lets_what_depends_on_it_run(self) -> None:
        b = self.start(
            step("a", 3), step("b", 3, same("a")), step("c", 3, same("b")), step("end", 1, every("c"))
        )
        a = [b.take(instance="a") for _ in range(3)]
        b.finish(a[0], (0, 1, SOFT_FAILED))
        b.finish(a[1], (1, 2, FAILED))
        b.finish_ok(a[2])
        counts = b.progress.counts()["a"]
        assert (counts.ok, counts.failed, counts.soft_failed, counts.missing) == (1, 2, 1, 0)
        assert [(v.instance, v.lo, v.hi) for v in b.verdicts()] == [("b", 1, 2), ("c", 1, 2)]
        ran = [(c.instance, c.lo, c.hi) for c in b.drive()]
        assert [r for r in ran if r[0] == "c"] == [
            ("c", 0, 1),
            ("c", 2, 3),
        ]  # an ordinary task of b was in between
        assert ran[-1] == ("end", 0, 1)
        assert b.progress.is_complete and b.progress.stop_reason == ""

    def test_an_all_edge_lets_a_group_pass_in_which_some_chose_to_fail_and_none_ended_ok(self) -> None:
        b = self.start(step("a", 2), step("end", 3, every("a")))
        first, second = b.take(), b.take()
        b.finish(first, (0, 1, SOFT_FAILED))
        b.finish(second, (1, 2, FAILED))
        assert b.take().instance == "end"

    def test_rows_of_tasks_that_chose_to_fail_are_absent(self) -> None:
        b = self.start(step("x", 2), gather("data", ("x",), 2, 2))
        first, second = b.take(), b.take()
        b.finish(first, (0, 1, SOFT_FAILED))
        b.finish_ok(second)
        assert b.take().absent_rows == ((0, 1),)

    def test_a_task_needs_all_of_its_same_sources(self) -> None:
        b = self.start(step("a", 1), step("b", 1), step("c", 1, same("a"), same("b")))
        first, second = b.take(), b.take()
        b.finish_ok(first)
        assert b.nothing_to_take()
        b.finish_ok(second)
        assert b.take().instance == "c"

    def test_a_shard_is_ready_when_its_rows_have_ended_and_knows_which_are_absent(self) -> None:
        b = self.start(step("x", 3, canary=0), step("y", 3), gather("data", ("x", "y"), 6, 2))
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

    def test_a_shard_without_a_single_good_row_still_runs_and_then_the_manifest(self) -> None:
        data = gather("data", ("sim",), 2, 2)
        manifest = step("data/manifest", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
        b = self.start(step("sim", 2), data, manifest)
        for chunk in b.take_all():
            b.fail(chunk)
        shard = b.take()
        assert shard.absent_rows == ((0, 2),)
        b.finish_ok(shard)
        assert b.take().instance == "data/manifest"

    def test_deeper_steps_run_first_and_shards_before_all(self) -> None:
        b = self.start(step("a", 100), step("b", 100, same("a")), gather("data", ("a",), 100, 1))
        b.finish_ok(b.take())
        assert [b.take().instance, b.take().instance, b.take().instance] == ["data", "b", "a"]

    # -------------------------------------------------------------------- chunks

    def test_chunks_grow_towards_the_target_and_shrink_at_the_tail(self) -> None:
        b = self.start(step("sim", 10_000))
        sizes = []
        while (chunk := b.progress.take(0.0)) is not None:
            sizes.append(chunk.hi - chunk.lo)
            b.finish_ok(chunk, busy_s=0.001 * sizes[-1])
        assert sizes[:5] == [1, 8, 64, 512, 1500]
        assert sizes[-1] == 1
        assert max(sizes) == 1500
        left = 10_000
        for size in sizes:
            assert size <= -(-left // 4)
            left -= size

    def test_scattered_tasks_share_a_chunk_with_holes(self) -> None:
        done = runs(1000, (0, 1000, OK))
        for task in range(0, 1000, 10):
            done.set(task, task + 1, NO_OUTCOME)
        b = self.start(step("sim", 1000, kind=StepKind.FUNCTION), outcomes={"sim": done})
        chunk = b.take()
        assert chunk.task_ids() == list(range(0, 250, 10))
        b.drive()
        b.finish_ok(chunk)
        assert b.progress.is_complete

    def test_a_chunk_with_holes_does_not_reach_too_far(self) -> None:
        done = runs(100_000, (0, 100_000, OK), (5, 6, NO_OUTCOME), (50_000, 50_001, NO_OUTCOME))
        b = self.start(step("sim", 100_000, kind=StepKind.FUNCTION), outcomes={"sim": done}, workers=1)
        assert [(c.lo, c.hi) for c in b.take_all()] == [(5, 6), (50_000, 50_001)]

    def test_holes_may_hold_tasks_that_another_chunk_runs(self) -> None:
        b = self.start(step("sim", 40, kind=StepKind.FUNCTION), workers=1)
        first = b.take()
        second = b.take()
        b.finish(first, (0, 5, OK), (7, 20, OK))  # 5 and 6 were not done
        again = b.take()
        assert (again.lo, again.hi, again.attempt) == (5, 7, 2)
        b.finish_ok(second)
        b.finish_ok(again)

    def test_work_may_be_taken_of_one_instance(self) -> None:
        b = self.start(step("a", 10), step("b", 10))
        assert b.take(instance="b").instance == "b"
        assert b.take().instance == "a"
        c = self.start(step("a", 1), step("b", 1, same("a")))
        assert c.progress.take(0.0, "b") is None
        try:
            c.progress.take(0.0, "no such step")
        except ExecutionError as error:
            assert "no such step" in str(error)
        else:
            raise AssertionError("an unknown instance was accepted")

    # ------------------------------------------------------------------ attempts

    def test_interrupted_tasks_run_again_with_a_higher_attempt(self) -> None:
        b = self.start(step("sim", 1))
        b.finish(b.take(), (0, 1, INTERRUPTED))
        again = b.take()
        assert again.attempt == 2
        b.finish_ok(again)
        assert b.progress.is_complete

    def test_the_first_attempt_outranks_what_the_ledger_holds(self) -> None:
        b = _Bench(self, self.make(plan(step("a", 1), step("b", 1, same("a"))), {}, first_attempt=7))
        chunk = b.take()
        assert chunk.attempt == 7
        b.fail(chunk)
        assert [v.attempt for v in b.verdicts()] == [7]

    def test_a_deferred_chunk_waits_for_its_time(self) -> None:
        b = self.start(step("sim", 1))
        chunk = b.take(10.0)
        later = Chunk(instance="sim", lo=0, hi=1, retries=1, use_restart=True)
        b.finish(chunk, deferred=(Deferred(chunk=later, delay_s=5.0),), now=10.0)
        assert b.progress.next_wakeup() == 15.0
        assert b.nothing_to_take(14.9)
        again = b.take(15.0)
        assert (again.retries, again.use_restart, again.attempt) == (1, True, 2)
        assert b.progress.next_wakeup() is None

    def test_a_lost_chunk_keeps_what_the_ledger_holds_and_is_bisected(self) -> None:
        b = self.start(step("sim", 1000, kind=StepKind.FUNCTION))
        chunk = b.take()
        assert (chunk.lo, chunk.hi) == (0, 64)
        b.lose(chunk, [(0, 4, OK), (4, 5, FAILED)])
        halves = [b.take(), b.take()]
        assert [(c.lo, c.hi, c.attempt) for c in halves] == [(5, 34, 2), (34, 64, 2)]
        assert b.progress.counts()["sim"].ok == 4

    def test_one_bad_sample_costs_only_itself_after_crash_limit_deaths(self) -> None:
        bad = 17
        b = self.start(step("sim", 64, kind=StepKind.FUNCTION, crash_limit=3), workers=1)
        deaths = []
        while (chunk := b.progress.take(0.0)) is not None:
            if chunk.lo <= bad < chunk.hi:
                deaths.append(chunk)
                b.lose(chunk, signal="SIGSEGV")
            else:
                b.finish_ok(chunk)
        assert b.progress.is_complete
        assert b.progress.counts()["sim"].failed == 1
        (verdict,) = b.verdicts()
        assert (verdict.lo, verdict.hi, verdict.outcome) == (bad, bad + 1, FAILED)
        assert verdict.cause == "killed its worker 3 times (SIGSEGV)"
        assert [c.isolate for c in deaths[-3:]] == [True] * 3
        attempts = [c.attempt for c in deaths]
        assert attempts == sorted(set(attempts))

    def test_losses_that_are_not_its_fault_do_not_count_as_deaths(self) -> None:
        b = self.start(step("sim", 1, crash_limit=2))
        for _ in range(LOSS_LIMIT - 1):
            b.lose(b.take(), infrastructure=True)
        b.lose(b.take(), signal="SIGSEGV")
        b.finish_ok(b.take())
        assert b.progress.counts()["sim"].ok == 1 and b.verdicts() == []

    def test_a_task_whose_worker_is_always_lost_fails_in_the_end(self) -> None:
        b = self.start(step("sim", 1))
        for _ in range(LOSS_LIMIT):
            b.lose(b.take(), infrastructure=True)
        (verdict,) = b.verdicts()
        assert verdict.outcome == FAILED
        assert verdict.cause == f"its worker was lost {LOSS_LIMIT} times"
        assert b.progress.is_complete

    def test_a_chunk_given_back_waits_as_it_was(self) -> None:
        b = self.start(step("sim", 1))
        chunk = b.take()
        assert b.progress.give_back(chunk)
        b.check()
        assert b.take() == chunk

    def test_an_outcome_for_a_task_that_does_not_run_is_refused(self) -> None:
        b = self.start(step("sim", 10, kind=StepKind.FUNCTION), workers=1)
        chunk = b.take()
        twice = Deferred(chunk=Chunk(instance="sim", lo=0, hi=1), delay_s=0.0)
        try:
            b.progress.finished(ChunkResult(chunk=chunk, runs=((0, 1, OK),), deferred=(twice,)), 0.0)
        except ExecutionError as error:
            assert "does not run" in str(error)
        else:
            raise AssertionError("a task ended and was deferred")

    # -------------------------------------------------------------------- leases

    def test_every_hand_out_has_its_own_lease(self) -> None:
        b = self.start(step("sim", 3))
        leases = [b.take().lease for _ in range(3)]
        assert len(set(leases)) == 3 and "" not in leases

    def test_a_chunk_that_ends_twice_is_counted_once(self) -> None:
        b = self.start(step("sim", 2))
        chunk = b.take()
        assert b.finish_ok(chunk)
        b.finish_ok(chunk)  # whether it counts as held: see Progress
        b.fail(chunk)
        assert not b.lose(chunk)
        assert not b.progress.give_back(chunk)
        b.check()
        counts = b.progress.counts()["sim"]
        assert (counts.ok, counts.failed, counts.ready) == (1, 0, 1)

    def test_a_lease_that_is_not_renewed_runs_out_and_its_holder_is_fenced_out(self) -> None:
        b = self.start(step("sim", 64, kind=StepKind.FUNCTION), workers=1)
        chunk = b.take(0.0)
        assert b.progress.expired(LEASE_S - 1) == []
        (mine,) = b.progress.expired(LEASE_S + 1)
        b.check()
        assert mine == chunk and mine.lease != chunk.lease
        assert b.progress.beat([chunk], LEASE_S + 2) == [chunk]
        assert not b.finish_ok(chunk)
        assert b.progress.counts()["sim"].running == chunk.hi
        assert b.lose(mine, [(0, 2, OK)], infrastructure=True)
        counts = b.progress.counts()["sim"]
        assert (counts.ok, counts.running) == (2, 0)
        again = b.take()
        assert (again.lo, again.attempt) == (2, 2)

    def test_a_heartbeat_keeps_a_lease(self) -> None:
        b = self.start(step("sim", 2))
        held, gone = b.take(0.0), b.take(0.0)
        assert b.progress.beat([held], LEASE_S - 1) == []
        (taken,) = b.progress.expired(LEASE_S + 1)
        assert taken == gone
        assert b.progress.expired(LEASE_S + 2) == []
        (again,) = b.progress.expired(2 * LEASE_S)
        assert again == held

    def test_what_is_taken_over_runs_out_in_its_turn(self) -> None:
        b = self.start(step("sim", 1))
        b.take(0.0)
        (first,) = b.progress.expired(LEASE_S)
        (second,) = b.progress.expired(2 * LEASE_S)
        assert len({first.lease, second.lease}) == 2
        assert not b.lose(first)
        assert b.lose(second)

    def test_a_late_heartbeat_still_counts_if_nobody_took_over(self) -> None:
        b = self.start(step("sim", 1))
        chunk = b.take(0.0)
        assert b.progress.beat([chunk], 3 * LEASE_S) == []
        assert b.progress.expired(3 * LEASE_S) == []
        assert b.finish_ok(chunk)

    def test_a_lease_ends_with_its_chunk(self) -> None:
        b = self.start(step("sim", 1))
        chunk = b.take(0.0)
        b.progress.give_back(chunk)
        again = b.take(0.0)
        assert b.progress.beat([chunk, again], 1.0) == [chunk]
        assert not b.finish_ok(chunk)
        assert b.finish_ok(again)

    # ------------------------------------------------------------------ stopping

    def test_the_canary_stops_before_the_fan_out(self) -> None:
        b = self.start(step("sim", 1000))
        while (chunk := b.progress.take(0.0)) is not None:
            b.fail(chunk, note="exit code 1", busy_s=chunk.hi - chunk.lo)
        assert b.progress.stop_reason == "canary: the first 10 tasks of step 'sim' all failed: exit code 1"
        assert b.progress.counts()["sim"].failed == 10
        assert not b.progress.stop_now

    def test_the_canary_is_content_when_one_task_ended_ok(self) -> None:
        b = self.start(step("sim", 100))
        b.finish_ok(b.take())
        while (chunk := b.progress.take(0.0)) is not None:
            b.fail(chunk)
        assert b.progress.stop_reason == ""
        assert b.progress.is_complete

    def test_max_failures_stops_when_exceeded(self) -> None:
        for limit, failures, allowed in ((0.05, 6, "5%"), (5, 6, "5"), (0.0, 1, "0")):
            b = self.start(step("sim", 100, max_failures=limit, canary=0))
            while (chunk := b.progress.take(0.0)) is not None:
                b.fail(chunk, busy_s=1.5 * (chunk.hi - chunk.lo))
            assert b.progress.counts()["sim"].failed == failures
            assert b.progress.stop_reason == (
                f"max_failures: {failures} of 100 tasks of step 'sim' failed, {allowed} are allowed"
            )

    def test_the_canary_is_content_when_one_task_chose_to_fail_and_max_failures_counts_it(self) -> None:
        for limit, reason in (
            (None, ""),
            (5, "max_failures: 6 of 100 tasks of step 'sim' failed, 5 are allowed"),
        ):
            b = self.start(step("sim", 100, max_failures=limit))
            b.finish(b.take(), (0, 1, SOFT_FAILED), busy_s=1.5)
            while (chunk := b.progress.take(0.0)) is not None:
                b.fail(chunk, busy_s=1.5 * (chunk.hi - chunk.lo))
            assert b.progress.stop_reason == reason

    def test_a_hard_failure_stops_everything(self) -> None:
        b = self.start(step("sim", 10))
        first, second = b.take(), b.take()
        b.finish(first, (0, 1, FAILED), stop="hard_fail", note="on purpose")
        assert "on purpose" in b.progress.stop_reason and b.progress.stop_now
        assert b.nothing_to_take()
        b.finish_ok(second)
        assert b.progress.num_running == 0
        assert b.progress.counts()["sim"].missing == 8

    def test_a_study_goes_on_when_a_task_asks_the_workers_to_stop(self) -> None:
        b = self.start(step("sim", 10), step("post", 10, same("sim")), step("other", 1))
        b.finish(b.take(), (0, 1, OK), stop="stop_workers")
        assert b.progress.stop_reason == "" and not b.progress.stop_now
        b.drive()
        assert b.progress.is_complete

    def test_the_first_reason_to_stop_stays(self) -> None:
        b = self.start(step("sim", 10))
        b.progress.stop("first")
        b.progress.stop("second", now=True)
        assert (b.progress.stop_reason, b.progress.stop_now) == ("first", True)
        assert b.nothing_to_take()

    # ------------------------------------------------------------------ restarts

    def test_a_restart_runs_exactly_what_is_missing(self) -> None:
        a = runs(10, (0, 5, OK), (5, 6, FAILED), (6, 7, INTERRUPTED))
        later = runs(10, (0, 3, OK))
        s = self.start(step("a", 10), step("b", 10, same("a")), outcomes={"a": a, "b": later})
        assert s.verdicts() == [
            Verdict(
                instance="b",
                lo=5,
                hi=6,
                outcome=Outcome.SKIPPED,
                cause="a task of 'a', which it depends on, did not end ok",
            )
        ]
        ran: dict[str, list[int]] = {"a": [], "b": []}
        for chunk in s.drive():
            ran[chunk.instance] += chunk.task_ids()
        assert {k: sorted(v) for k, v in ran.items()} == {"a": [6, 7, 8, 9], "b": [3, 4, 6, 7, 8, 9]}
        assert s.progress.is_complete

    def test_a_restart_remembers_who_chose_to_fail(self) -> None:
        a = runs(4, (0, 1, SOFT_FAILED), (1, 2, FAILED), (2, 3, OK))
        b = self.start(step("a", 4), step("b", 4, same("a")), step("end", 1, every("b")), outcomes={"a": a})
        assert [(v.instance, v.lo, v.hi) for v in b.verdicts()] == [("b", 1, 2)]
        assert sorted((c.instance, *c.task_ids()) for c in b.drive()) == [
            *(("a", 3), ("b", 0), ("b", 2), ("b", 3), ("end", 0)),
        ]
        ended = {"a": runs(2, (0, 2, SOFT_FAILED)), "b": runs(2, (0, 2, OK))}
        again = self.start(step("a", 2), step("b", 2, same("a")), step("end", 1, every("a")), outcomes=ended)
        assert [c.instance for c in again.drive()] == ["end"]

    def test_a_lost_chunk_keeps_who_chose_to_fail(self) -> None:
        b = self.start(step("a", 64, kind=StepKind.FUNCTION), step("b", 64, same("a")), workers=1)
        chunk = b.take()
        b.lose(chunk, [(chunk.lo, chunk.lo + 1, SOFT_FAILED)])
        assert b.progress.counts()["a"].soft_failed == 1
        assert b.take(instance="b").task_ids() == [chunk.lo]

    def test_a_restart_of_a_complete_study_has_nothing_to_do(self) -> None:
        done = {"a": runs(2, (0, 2, OK)), "b": runs(2, (0, 2, OK)), "c": runs(1, (0, 1, OK))}
        b = self.start(step("a", 2), step("b", 2, same("a")), step("c", 1, every("b")), outcomes=done)
        assert b.progress.is_complete and b.nothing_to_take()

    def test_a_ledger_of_another_size_is_refused(self) -> None:
        try:
            self.start(step("a", 2), outcomes={"a": runs(3, (0, 3, OK))})
        except ExecutionError as error:
            assert "the ledger has 3 tasks" in str(error)
        else:
            raise AssertionError("a ledger of another study was accepted")

    # ---------------------------------------------------------------------- size

    def test_the_state_of_a_hundred_million_tasks_stays_small(self) -> None:
        n = 10**8
        data = gather("data", ("post",), n, 10_000)
        sim = step("sim", n, kind=StepKind.FUNCTION)
        post = step("post", n, same("sim"), kind=StepKind.FUNCTION)
        progress = self.make(plan(sim, post, data), {}, num_workers=4)
        for _ in range(200):
            chunk = progress.take(0.0)
            assert chunk is not None
            done = ((chunk.lo, chunk.hi, OK),)
            progress.finished(ChunkResult(chunk=chunk, runs=done, busy_s=1e-3), 0.0)
        assert self.num_runs(progress) < 100
        self.check(progress)

    def test_scattered_failures_are_followed_to_the_end(self) -> None:
        n = 12_000  # more changes than one call of a server may follow
        scattered = runs(n, (0, n, OK))
        for task in range(0, n, 2):
            scattered.set(task, task + 1, FAILED)
        manual = step("gate", 1)
        post = step("post", n, same("sim"), every("gate"))
        b = self.start(step("sim", n), manual, post, outcomes={"sim": scattered})
        b.finish_ok(b.take(instance="gate"))
        counts = b.progress.counts()["post"]
        assert (counts.skipped, counts.ready) == (n // 2, n // 2)
        told = sorted((v.lo, v.hi) for v in b.verdicts())
        assert sum(hi - lo for lo, hi in told) == n // 2
        assert all(x[1] <= y[0] for x, y in pairwise(told))
        assert len(merged(told)) == n // 2
