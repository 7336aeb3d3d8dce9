"""How the scheduler cuts tasks into chunks."""

from __future__ import annotations

import pytest
from invariants import check
from scheduling import OK, start
from small_plans import gather, runs, same, step

from merlin.plan.cutting import MAX_PIECES
from merlin.plan.pieces import num_tasks, pieces_of
from merlin.plan.plan import StepKind
from merlin.plan.tasks import NO_OUTCOME, Chunk, ChunkResult


def test_chunks_grow_towards_the_target_and_shrink_at_the_tail() -> None:
    b = start(step("sim", 10_000))
    sizes = []
    while (chunk := b.scheduler.take(0.0)) is not None:
        sizes.append(chunk.hi - chunk.lo)
        b.finish_ok(chunk, busy_s=0.001 * sizes[-1])
    assert sizes[:5] == [1, 8, 64, 512, 1500]
    assert max(sizes) == 1500
    assert sizes[-6:] == [27, 14, 7, 3, 2, 1]  # of less work than 50 ms each worker gets an equal part
    left = 10_000
    for size in sizes:
        assert size <= max(50, -(-left // 4))
        left -= size


@pytest.mark.parametrize(("kind", "num_chunks"), [(StepKind.FUNCTION, 1), (StepKind.CMD, 4)])
def test_an_instance_of_a_fast_step_needs_few_chunks(kind: StepKind, num_chunks: int) -> None:
    """While others are ready, it is not shared among all workers; a script is tried alone first."""
    b = start(*(step(f"sim_{i}", 100, kind=kind, step="sim") for i in range(20)))
    chunks = []
    while (chunk := b.scheduler.take(0.0)) is not None:
        chunks.append(chunk)
        b.finish_ok(chunk, busy_s=1e-6 * num_tasks(chunk))
    for i in range(1, 19):
        assert len([chunk for chunk in chunks if chunk.instance == f"sim_{i}"]) == num_chunks
    last = [num_tasks(chunk) for chunk in chunks if chunk.instance == "sim_19"]
    assert last[-1] == 1 and len(last) > num_chunks  # nothing else is left: each worker gets some


def test_other_instances_of_a_step_are_trusted_only_so_far() -> None:
    n = 16 * 100
    b = start(*(step(f"sim_{i}", n, kind=StepKind.FUNCTION, step="sim") for i in range(9)), workers=100)
    first = b.take()
    b.finish_ok(first, busy_s=1e-6 * num_tasks(first))
    while (chunk := b.take()).instance == "sim_0":
        b.finish_ok(chunk, busy_s=1e-6 * num_tasks(chunk))
    assert num_tasks(chunk) == 8 * -(-n // 200)  # eight times what it gets if nothing is known
    b.finish_ok(chunk, busy_s=1.0 * num_tasks(chunk))
    assert num_tasks(b.take()) == 1  # it is slow


def test_scattered_tasks_share_a_chunk_with_holes() -> None:
    done = runs(1000, (0, 1000, OK))
    for task in range(0, 1000, 10):
        done.set(task, task + 1, NO_OUTCOME)
    b = start(step("sim", 1000, kind=StepKind.FUNCTION), outcomes={"sim": done})
    chunk = b.take()
    assert chunk.task_ids() == list(range(0, 250, 10))
    b.drive()
    b.finish_ok(chunk)
    assert b.scheduler.is_complete


def test_a_chunk_with_holes_does_not_reach_too_far() -> None:
    done = runs(100_000, (0, 100_000, OK), (5, 6, NO_OUTCOME), (50_000, 50_001, NO_OUTCOME))
    b = start(step("sim", 100_000, kind=StepKind.FUNCTION), outcomes={"sim": done}, workers=1)
    assert [(c.lo, c.hi) for c in b.take_all()] == [(5, 6), (50_000, 50_001)]


def test_holes_may_hold_tasks_that_another_chunk_runs() -> None:
    b = start(step("sim", 40, kind=StepKind.FUNCTION), workers=1)
    first = b.take()
    second = b.take()
    b.finish(first, (0, 5, OK), (7, 20, OK))  # 5 and 6 were not done
    again = b.take()
    assert (again.lo, again.hi, again.attempt) == (5, 7, 2)
    b.finish_ok(second)
    b.finish_ok(again)


def test_the_state_of_a_hundred_million_tasks_stays_small() -> None:
    n = 10**8
    data = gather("data", ("post",), n, 10_000)
    sim = step("sim", n, kind=StepKind.FUNCTION)
    post = step("post", n, same("sim"), kind=StepKind.FUNCTION)
    b = start(sim, post, data, workers=4)
    for _ in range(200):
        chunk = b.scheduler.take(0.0)
        assert chunk is not None
        b.scheduler.finished(ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.hi, OK),), busy_s=1e-3), 0.0)
    assert sum(len(list(b.scheduler.tasks(id))) for id in ("sim", "post", "data")) < 100
    check(b.scheduler)


def test_a_chunk_has_only_so_many_pieces() -> None:
    n = 6 * MAX_PIECES
    done = runs(2 * n, *((i, i + 1, OK) for i in range(0, 2 * n, 2)))
    b = start(step("sim", 2 * n, kind=StepKind.FUNCTION), outcomes={"sim": done}, workers=1)
    b.scheduler.adopt(Chunk(instance="sim", lo=0, hi=n, lease="large"))  # so the next ones are large, too
    chunk = b.take()
    assert len(pieces_of(chunk)) == num_tasks(chunk) == MAX_PIECES
