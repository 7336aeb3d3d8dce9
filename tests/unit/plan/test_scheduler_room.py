"""Tasks that need different amounts of cores and GPUs, and a scheduler that is asked for what fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from invariants import check
from scheduling import Bench, start
from small_plans import step

from merlin.plan.fit import Capacity, Placement, needs_of
from merlin.plan.tasks import Chunk
from merlin.plan.waiting_needs import PASSING_S


class Machine:
    """Runs what the scheduler gives it, where it has room."""

    def __init__(self, bench: Bench, room: Capacity) -> None:
        self.bench, self.room = bench, room
        self.needs = needs_of(bench.scheduler.plan)
        self.running: list[tuple[Chunk, Placement]] = []

    def take(self, now: float = 0.0) -> str:
        """The step of the chunk that starts; "" if none may."""
        chunk = self.bench.scheduler.take(now, room=self.room)
        check(self.bench.scheduler)
        if chunk is None:
            return ""
        self.running.append((chunk, self.room.place(self.needs[chunk.instance])))
        return chunk.instance

    def end(self, index: int = 0) -> None:
        chunk, placement = self.running.pop(index)
        self.room.release(placement)
        self.bench.finish_ok(chunk, busy_s=100.0)


def machine(*resources: dict[str, float], cores: int = 4, gpus: int = 0, num: int = 100) -> Machine:
    steps = [step(f"s{i}", num, resources=r, canary=0) for i, r in enumerate(resources)]
    return Machine(start(*steps), Capacity(range(cores), [str(i) for i in range(gpus)]))


def test_small_tasks_run_beside_a_wide_one() -> None:
    m = machine({"procs": 3}, {})
    assert [m.take() for _ in range(3)] == ["s0", "s1", ""]


def test_small_tasks_pass_a_wide_one_that_finds_no_room_but_not_for_ever() -> None:
    m = machine({}, {"procs": 4})
    assert [m.take(0.0) for _ in range(5)] == ["s0"] * 4 + [""]
    m.end()
    assert m.take(1.0) == "s0"  # the first time that the wide one was looked at
    m.end()
    assert m.take(PASSING_S + 2.0) == ""
    for _ in range(2):
        m.end()
        assert m.take(PASSING_S + 3.0) == ""
    m.end()
    assert m.take(PASSING_S + 4.0) == "s1"
    m.end()
    assert m.take(PASSING_S + 5.0) == "s0"  # and others have their turn again


def test_a_task_that_waits_for_a_gpu_holds_back_no_cores_beyond_its_own() -> None:
    m = machine({"gpus": 1}, {}, gpus=1, cores=4)
    assert [m.take(0.0), m.take(0.0)] == ["s0", "s1"]
    assert [m.take(PASSING_S + 1.0) for _ in range(3)] == ["s1", "", ""]


def test_half_a_gpu_is_enough_for_each_of_two_tasks() -> None:
    m = machine({"gpus": 0.5}, gpus=1)
    assert [m.take() for _ in range(3)] == ["s0", "s0", ""]
    assert [placement.gpus for _, placement in m.running] == [("0",), ("0",)]


@given(
    wants=st.lists(
        st.sampled_from([{}, {"procs": 2}, {"procs": 9}, {"gpus": 1}, {"gpus": 0.3}, {"exclusive": True}]),
        min_size=1,
        max_size=5,
    ),
    ends=st.lists(st.integers(0, 7), max_size=40),
    seconds=st.sampled_from([0.1, 3.0, 30.0]),
)
def test_every_step_runs_to_its_end_and_none_waits_for_ever(
    wants: list[dict[str, float]], ends: list[int], seconds: float
) -> None:
    m = machine(*wants, cores=3, gpus=1, num=20)
    now, last = 0.0, dict.fromkeys(m.needs, 0.0)
    ends = ends + [0] * 500
    while not m.bench.scheduler.is_complete:
        while name := m.take(now):
            last[name] = now
        assert m.running, "nothing runs, and tasks are missing"
        counts = m.bench.scheduler.counts()
        for name, since in last.items():
            if counts[name].ready:  # every need has its turn before any other has it twice
                same = [other for other in last if m.needs[other] == m.needs[name]]
                assert now - max(last[o] for o in same) <= (PASSING_S + 12 * seconds) * (1 + len(wants)), (
                    since
                )
        m.end(ends.pop(0) % len(m.running))
        now += seconds
