"""A scheduler that goes on where another one has stopped, queues, and steps that an operator ends."""

from __future__ import annotations

import pytest
from invariants import check
from msgspec.structs import replace
from scheduling import FAILED, INTERRUPTED, OK, Bench, start
from small_plans import every, runs, same, step

from merlin.errors import ExecutionError
from merlin.plan.memories import Death, Deferral
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Chunk, Deferred

SIM = step("sim", 128, kind=StepKind.FUNCTION)


def succeed(b: Bench, *chunks: Chunk, outcomes=None, **more: int) -> Bench:
    """Another scheduler, which adopts these chunks, with all that the first has told."""
    later = start(*b.scheduler.plan.instances, outcomes=outcomes, name="later.", **more)
    assert all(later.scheduler.adopt(chunk) for chunk in chunks)
    later.scheduler.remember(b.scheduler.memories())
    check(later.scheduler)
    return later


def retry(chunk: Chunk, lo: int, hi: int, *, delay_s: float = 0.0) -> Deferred:
    again = replace(chunk, lo=lo, hi=hi, retries=chunk.retries + 1, use_restart=True)
    return Deferred(chunk=again, delay_s=delay_s)


# ------------------------------------------------------------------------- adopt


def test_what_is_adopted_runs_on_and_is_not_handed_out() -> None:
    b = start(SIM, workers=1)
    chunk = replace(b.take(), lo=10, hi=20, attempt=5)
    later = succeed(b, chunk)
    assert later.scheduler.held(chunk.lease) == chunk
    assert later.take().holes == ((10, 20),)
    assert later.lose(chunk, [(10, 12, OK)])
    assert [(c.lo, c.hi, c.attempt) for c in (later.take(), later.take())] == [(12, 16, 6), (16, 20, 6)]


def test_of_what_is_adopted_only_that_runs_which_has_not_ended() -> None:
    b = start(SIM, workers=1)
    chunk = b.take()
    later = succeed(b, chunk, outcomes={"sim": runs(128, (0, 5, OK), (9, 11, FAILED), (63, 64, INTERRUPTED))})
    held = later.scheduler.held(chunk.lease)
    assert held is not None and held.task_ids() == [*range(5, 9), *range(11, 64)]
    assert later.finish(chunk, (0, 32, OK), (32, 64, INTERRUPTED))  # 9 and 10 stay failed
    counts = later.scheduler.counts()["sim"]
    assert (counts.ok, counts.failed, counts.queued) == (30, 2, 32)
    assert later.take().task_ids() == list(range(32, 64))


def test_what_has_ended_before_it_was_adopted_is_not_run_again_however_it_is_let_go() -> None:
    for let_go in (
        lambda b, chunk: b.scheduler.give_back(chunk),
        lambda b, chunk: b.lose(chunk, [(0, 64, OK)]),
        lambda b, chunk: b.finish_ok(chunk),
        lambda b, chunk: b.finish(chunk, deferred=(retry(chunk, 0, 64),)),
    ):
        b = start(SIM, workers=1)
        chunk = b.take()
        later = succeed(b, chunk, outcomes={"sim": runs(128, (0, 128, OK))})
        assert later.scheduler.is_complete and later.scheduler.num_running == 1
        assert let_go(later, chunk) and not let_go(later, chunk)
        assert later.nothing_to_take() and later.scheduler.memories() == []


def test_a_retry_of_tasks_that_have_ended_meanwhile_is_for_the_others() -> None:
    b = start(SIM, workers=1)
    chunk = b.take()
    later = succeed(b, chunk, outcomes={"sim": runs(128, (10, 20, FAILED))})
    later.finish(chunk, (0, 5, OK), (30, 64, OK), deferred=(retry(chunk, 5, 30),))
    again = later.take()
    assert (again.task_ids(), again.retries) == ([*range(5, 10), *range(20, 30)], 1)


def test_what_could_not_run_now_is_not_adopted() -> None:
    b = start(step("a", 4), step("b", 4, same("a")))
    lease = {"lease": "old"}
    assert not b.scheduler.adopt(Chunk(instance="b", lo=0, hi=1, **lease))  # it waits
    assert not b.scheduler.adopt(Chunk(instance="a", lo=3, hi=5, **lease))  # there is none
    chunk = b.take()
    assert not b.scheduler.adopt(replace(chunk, lease="old"))  # it runs
    b.finish(chunk, (0, 1, INTERRUPTED))
    assert not b.scheduler.adopt(Chunk(instance="a", lo=0, hi=2, **lease))  # it is to run again
    check(b.scheduler)
    assert b.scheduler.num_running == 0 and b.scheduler.counts()["a"].ready == 3
    with pytest.raises(ExecutionError, match="no step instance 'c'"):
        b.scheduler.adopt(Chunk(instance="c", lo=0, hi=1, **lease))


def test_sizes_are_learned_from_what_is_adopted() -> None:
    b = start(step("sim", 10_000))
    chunk = Chunk(instance="sim", lo=0, hi=800, lease="x")
    later = succeed(b, chunk, outcomes={"sim": runs(10_000, (0, 799, OK))})
    sizes = [c.hi - c.lo for c in (later.take(), later.take())]
    assert sizes == [800, 800]
    later.finish(chunk, (799, 800, OK), busy_s=1.6)  # for all of the 800
    assert len(later.take().task_ids()) == 750  # 1.5 s of work


# ---------------------------------------------------------------------- remember


def test_a_retry_outlives_the_scheduler() -> None:
    b = start(SIM, workers=1)
    chunk = b.take(0.0)
    b.finish(chunk, (0, 60, OK), deferred=(retry(chunk, 60, 64, delay_s=5.0),))
    later = succeed(b, outcomes={"sim": runs(128, (0, 61, OK), (64, 128, OK))}, first_attempt=3)
    assert later.nothing_to_take(4.9) and later.scheduler.next_wakeup() == 5.0
    again = later.take(5.0)
    assert (again.lo, again.hi, again.retries, again.use_restart, again.attempt) == (61, 64, 1, True, 3)
    assert later.scheduler.memories() == []  # they are written down already


def test_a_later_memory_outranks_and_what_is_adopted_is_not_remembered() -> None:
    memories = [
        Deferral(chunk=Chunk(instance="sim", lo=lo, hi=hi, retries=retries), not_before=1.0)
        for lo, hi, retries in ((0, 40, 1), (10, 20, 2), (15, 30, 3))
    ]
    b = start(SIM)
    b.scheduler.adopt(Chunk(instance="sim", lo=35, hi=128, lease="x"))
    b.scheduler.remember(memories)
    check(b.scheduler)
    assert b.nothing_to_take(0.0)
    found = sorted((c.lo, c.retries, c.task_ids()) for c in b.take_all(1.0))
    assert found == [
        (0, 1, [*range(10), *range(30, 35)]),
        (10, 2, [*range(10, 15)]),
        (15, 3, [*range(15, 30)]),
    ]


def test_deaths_count_across_schedulers() -> None:
    b = start(step("sim", 1, crash_limit=3))
    b.lose(b.take())
    (death,) = b.scheduler.memories()
    assert death == Death(instance="sim", task=0, infrastructure=False, lease="1")
    later = start(step("sim", 1, crash_limit=3))
    later.scheduler.remember(replace(death, lease=lease) for lease in ("x", "y", "x"))
    later.lose(later.take(), signal="SIGSEGV")
    assert later.verdict().cause == "killed its worker 3 times when it ran alone (SIGSEGV)"


def test_thousands_of_memories_are_taken_in_at_once() -> None:
    n = 20_000
    b = start(step("sim", n, kind=StepKind.FUNCTION), *(step(f"s{k}", 1) for k in range(9)))
    memories = [
        Deferral(chunk=Chunk(instance="sim", lo=i, hi=i + 1, retries=i % 2), not_before=0.0) for i in range(n)
    ]
    b.scheduler.remember(memories)
    assert b.scheduler.counts()["sim"].queued == n


# -------------------------------------------------------------------------- fail


def chain(**more) -> tuple[StepInstance, ...]:
    return (step("a", 8, **more), step("b", 8, same("a"), queue="b"), step("c", 1, every("b"), queue="c"))


def test_a_step_that_is_failed_ends_whatever_it_did_and_what_depends_on_it_is_skipped() -> None:
    b = start(*chain())
    done, lost, retried, deferred, held = (b.take(queue="merlin") for _ in range(5))
    b.finish_ok(done)
    b.lose(lost)
    b.finish(retried, deferred=(retry(retried, 2, 3),))
    b.finish(deferred, deferred=(retry(deferred, 3, 4, delay_s=99.0),))
    (again,) = [c for c in (b.take(queue="merlin"), b.take(queue="merlin")) if c.lo == 1]
    b.lose(again)
    void = b.scheduler.fail(["a"], "cancelled")
    check(b.scheduler)
    assert held in void and all(not b.finish_ok(chunk) for chunk in void)
    verdicts = b.scheduler.decided_outcomes()
    assert {(v.instance, v.lo, v.hi, v.outcome) for v in verdicts} == {("a", 1, 8, 1), ("b", 1, 8, 2)}
    assert {v.attempt for v in verdicts if v.instance == "a"} == {4}  # more than any worker may still write
    assert [c.instance for c in b.drive()] == ["b", "c"] and b.scheduler.is_complete
    assert b.scheduler.next_wakeup() is None


def test_what_follows_a_failed_step_goes_on_if_the_step_says_so() -> None:
    b = start(*chain(on_failure="continue"))
    held = b.take()
    assert b.scheduler.fail(["a", "c"], "cancelled") == [held]
    assert {c.instance for c in b.drive()} == {"b"} and b.scheduler.is_complete


def test_a_step_that_waits_or_has_ended_may_be_failed_and_one_that_does_not_exist_may_not() -> None:
    b = start(*chain())
    assert b.scheduler.fail(["b"], "cancelled") == [] and b.verdicts() == [("b", 0, 8), ("c", 0, 1)]
    assert b.scheduler.fail(["b"], "cancelled") == [] and b.verdicts() == []
    assert {c.instance for c in b.drive()} == {"a"}
    with pytest.raises(ExecutionError, match="no step instance 'd'"):
        b.scheduler.fail(["d"], "cancelled")


# ------------------------------------------------------------------------ queues


def test_each_queue_gets_its_own_best_ranked_chunk() -> None:
    b = start(
        step("a", 2, queue="cpu"), step("b", 2, same("a"), queue="gpu"), step("c", 2, same("a"), queue="cpu")
    )
    assert b.nothing_to_take(queue="gpu") and b.nothing_to_take(queue="no such queue")
    b.finish_ok(b.take(queue="cpu"))
    assert [b.take(queue="cpu").instance for _ in range(2)] == ["c", "a"]  # deeper steps first
    assert b.take(queue="gpu").instance == "b"
    assert b.nothing_to_take(queue="cpu") and b.nothing_to_take(queue="gpu")


def test_a_retry_comes_back_in_its_own_queue() -> None:
    b = start(step("a", 1, queue="cpu"), step("b", 1, queue="gpu"))
    chunk = b.take(queue="gpu")
    b.finish(chunk, deferred=(retry(chunk, 0, 1, delay_s=1.0),))
    assert b.take(2.0, queue="cpu").instance == "a" and b.nothing_to_take(2.0, queue="cpu")
    assert b.take(2.0, queue="gpu").retries == 1


def test_with_another_target_and_more_workers_chunks_have_other_sizes() -> None:
    b = start(step("sim", 10**6), workers=1)
    for _ in range(6):
        chunk = b.take()
        b.finish_ok(chunk, busy_s=0.01 * len(chunk.task_ids()))
    assert len(b.take().task_ids()) == 150
    b.scheduler.target_s = 15.0
    for _ in range(2):
        chunk = b.take()
        b.finish_ok(chunk, busy_s=0.01 * len(chunk.task_ids()))
    assert len(b.take().task_ids()) == 1500
    b.scheduler.num_workers = 1000
    assert 450 < len(b.take().task_ids()) < 500  # half of what is left for each of them
