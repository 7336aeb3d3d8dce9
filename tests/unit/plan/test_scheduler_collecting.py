"""Tasks whose outputs are only collected: they share no chunk with tasks that run, and teach nothing about them."""

from __future__ import annotations

from scheduling import Bench
from small_plans import plan, runs, step

from merlin.base.ranges import without
from merlin.plan.cutting import NUM_COLLECTED
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import FROM_FILES


def test_chunks_are_of_tasks_that_run_or_of_tasks_that_are_collected() -> None:
    size = 1000
    marks = {"sim": runs(size, (0, size, 0), (100, 800, FROM_FILES))}
    bench = Bench(Scheduler(plan(step("sim", size)), {}, num_workers=2, collect_only=marks))
    collected, ran = [], []
    for chunk in bench.drive():
        (collected if chunk.collect_only else ran).append(chunk)
    assert all(chunk.hi - chunk.lo <= NUM_COLLECTED for chunk in collected)
    assert sorted(task for chunk in collected for task in chunk.task_ids()) == list(range(100, 800))
    assert sorted(task for chunk in ran for task in chunk.task_ids()) == [*range(100), *range(800, size)]


def test_collecting_says_nothing_of_how_long_a_task_takes() -> None:
    marks = {"sim": runs(2000, (0, 2000, FROM_FILES), (1000, 2000, 0))}
    bench = Bench(Scheduler(plan(step("sim", 2000)), {}, num_workers=1, collect_only=marks))
    while (chunk := bench.take()).collect_only:
        bench.finish_ok(chunk, busy_s=0.001)
    assert chunk.hi - chunk.lo == 1  # the first chunk of unknown tasks


def test_without_takes_ranges_from_ranges() -> None:
    assert without([(0, 10)], [(2, 3), (5, 12)]) == [(0, 2), (3, 5)]
    assert without([(0, 2), (4, 6)], [(2, 4)]) == [(0, 2), (4, 6)]
    assert without([(0, 2)], [(0, 9)]) == [] and without([(3, 4)], []) == [(3, 4)]
