"""Attempts, retries, lost workers, and reports that come twice."""

from __future__ import annotations

import pytest
from invariants import check
from msgspec.structs import replace
from scheduling import FAILED, INTERRUPTED, OK, SOFT_FAILED, start
from small_plans import same, step

from merlin.errors import ExecutionError
from merlin.plan.failure_limits import LOSS_LIMIT
from merlin.plan.plan import StepKind
from merlin.plan.tasks import Chunk, ChunkResult, Deferred


def test_interrupted_tasks_run_again_with_a_higher_attempt() -> None:
    b = start(step("sim", 1))
    b.finish(b.take(), (0, 1, INTERRUPTED))
    again = b.take()
    assert again.attempt == 2
    b.finish_ok(again)
    assert b.scheduler.is_complete


def test_the_first_attempt_outranks_what_the_ledger_holds() -> None:
    b = start(step("a", 1), step("b", 1, same("a")), first_attempt=7)
    chunk = b.take()
    assert chunk.attempt == 7
    b.fail(chunk)
    assert b.verdict().attempt == 7


def test_a_deferred_chunk_waits_for_its_time() -> None:
    b = start(step("sim", 1))
    chunk = b.take(10.0)
    later = Chunk(instance="sim", lo=0, hi=1, retries=1, use_restart=True)
    b.finish(chunk, deferred=(Deferred(chunk=later, delay_s=5.0),), now=10.0)
    assert b.scheduler.next_wakeup() == 15.0
    assert b.nothing_to_take(14.9)
    again = b.take(15.0)
    assert (again.retries, again.use_restart, again.attempt) == (1, True, 2)
    assert b.scheduler.next_wakeup() is None


def test_a_lost_chunk_keeps_what_the_ledger_holds_and_is_bisected() -> None:
    b = start(step("sim", 1000, kind=StepKind.FUNCTION))
    chunk = b.take()
    assert (chunk.lo, chunk.hi) == (0, 64)
    b.lose(chunk, [(0, 4, OK), (4, 5, FAILED)])
    halves = [b.take(), b.take()]
    assert [(c.lo, c.hi, c.attempt) for c in halves] == [(5, 34, 2), (34, 64, 2)]
    assert b.scheduler.counts()["sim"].ok == 4


def test_one_bad_sample_costs_only_itself_after_crash_limit_deaths() -> None:
    bad = 17
    b = start(step("sim", 64, kind=StepKind.FUNCTION, crash_limit=3), workers=1)
    deaths = []
    while (chunk := b.scheduler.take(0.0)) is not None:
        if chunk.lo <= bad < chunk.hi:
            deaths.append(chunk)
            b.lose(chunk, signal="SIGSEGV")
        else:
            b.finish_ok(chunk)
    assert b.scheduler.is_complete
    assert b.scheduler.counts()["sim"].failed == 1
    verdict = b.verdict()
    assert (verdict.lo, verdict.hi, verdict.outcome) == (bad, bad + 1, FAILED)
    assert verdict.cause == "killed its worker 3 times when it ran alone (SIGSEGV)"
    assert [c.isolate for c in deaths[-3:]] == [True] * 3
    attempts = [c.attempt for c in deaths]
    assert attempts == sorted(set(attempts))


def test_losses_that_are_not_its_fault_do_not_count_as_deaths() -> None:
    b = start(step("sim", 1, crash_limit=2))
    for _ in range(LOSS_LIMIT - 1):
        b.lose(b.take(), infrastructure=True)
    b.lose(b.take(), signal="SIGSEGV")
    b.finish_ok(b.take())
    assert b.scheduler.counts()["sim"].ok == 1 and b.verdicts() == []


def test_a_task_whose_worker_is_always_lost_fails_in_the_end() -> None:
    b = start(step("sim", 1))
    for _ in range(LOSS_LIMIT):
        b.lose(b.take(), infrastructure=True)
    verdict = b.verdict()
    assert verdict.outcome == FAILED
    assert verdict.cause == f"its worker was lost {LOSS_LIMIT} times when it ran alone"
    assert b.scheduler.is_complete


def test_a_chunk_given_back_waits_as_it_was() -> None:
    b = start(step("sim", 1))
    chunk = b.take()
    assert b.scheduler.give_back(chunk)
    check(b.scheduler)
    again = b.take()
    assert replace(again, lease=chunk.lease) == chunk


def test_an_outcome_for_a_task_that_does_not_run_is_refused() -> None:
    b = start(step("sim", 10, kind=StepKind.FUNCTION), workers=1)
    chunk = b.take()
    twice = Deferred(chunk=Chunk(instance="sim", lo=0, hi=1), delay_s=0.0)
    with pytest.raises(ExecutionError, match="does not run"):
        b.scheduler.finished(ChunkResult(chunk=chunk, runs=((0, 1, OK),), deferred=(twice,)), 0.0)


def test_every_hand_out_has_its_own_lease() -> None:
    b = start(step("sim", 3))
    leases = [b.take().lease for _ in range(3)]
    assert len(set(leases)) == 3 and "" not in leases


def test_a_chunk_that_ends_twice_is_counted_once() -> None:
    b = start(step("sim", 2))
    chunk = b.take()
    assert b.finish_ok(chunk)
    assert not b.finish_ok(chunk) and not b.fail(chunk)
    assert not b.lose(chunk)
    assert not b.scheduler.give_back(chunk)
    check(b.scheduler)
    counts = b.scheduler.counts()["sim"]
    assert (counts.ok, counts.failed, counts.ready) == (1, 0, 1)


def test_a_lost_chunk_keeps_who_chose_to_fail() -> None:
    b = start(step("a", 64, kind=StepKind.FUNCTION), step("b", 64, same("a"), queue="b"), workers=1)
    chunk = b.take()
    b.lose(chunk, [(chunk.lo, chunk.lo + 1, SOFT_FAILED)])
    assert b.scheduler.counts()["a"].soft_failed == 1
    assert b.take(queue="b").task_ids() == [chunk.lo]
