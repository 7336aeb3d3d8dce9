"""What a task needs, and which cores, GPUs and nodes it gets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_plans import step

from merlin.batch.slurm import Slurm
from merlin.plan.fit import ONE_CORE, Capacity, Need, Placement, need_of, num_at_once
from merlin.plan.job_policy import job_request
from merlin.plan.launch import Launchers, declare_vlauncher, fill_launchers
from merlin.plan.plan import StepKind


def need(**resources: Any) -> Need:
    return need_of(step("a", 3, resources={key.replace("_", " "): value for key, value in resources.items()}))


def test_a_step_without_resources_needs_one_core() -> None:
    assert need() == ONE_CORE == Need(cores=1, gpus=0.0, nodes=1, is_exclusive=False, is_pinned=False)
    assert need(walltime="00:10:00", nodes=1, procs=1) == ONE_CORE


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"procs": 4}, Need(cores=4, is_pinned=True)),
        ({"procs": 4, "cores_per_task": 2}, Need(cores=8, is_pinned=True)),
        ({"cores_per_task": 1}, Need(is_pinned=True)),
        ({"gpus": 2}, Need(gpus=2.0)),
        ({"gpus": 0.5}, Need(gpus=0.5)),
        ({"procs": 2, "gpus_per_task": 2}, Need(cores=2, gpus=4.0, is_pinned=True)),
        ({"procs": 2, "gpus_per_task": 2, "gpus": 1}, Need(cores=2, gpus=1.0, is_pinned=True)),
        ({"nodes": 2, "exclusive": True}, Need(cores=2, nodes=2, is_exclusive=True, is_pinned=True)),
        ({"nodes": 4, "procs": 2}, Need(cores=2, nodes=4, is_pinned=True)),
        ({"gpus": "0.25", "procs": "3"}, Need(cores=3, gpus=0.25, is_pinned=True)),
        ({"procs": 10**400, "gpus": "1e99"}, ONE_CORE),
        ({"procs": "${N}", "gpus": "all"}, ONE_CORE),
        ({"batch.submit": True, "batch.type": "slurm", "procs": 64}, ONE_CORE),
    ],
)
def test_a_need_follows_from_the_resources_of_the_step(resources: dict[str, Any], expected: Need) -> None:
    assert need(**resources) == expected


def test_a_shard_needs_one_core_whatever_its_step_says() -> None:
    assert need_of(step("a", 3, kind=StepKind.AGGREGATE, resources={"procs": 8})) == ONE_CORE


def test_a_task_that_asks_for_more_than_the_machine_has_runs_alone_with_all_of_it() -> None:
    room = Capacity(range(4), nodes=["b"])
    assert room.place(Need(cores=64)).cores == (0, 1, 2, 3)
    assert not room.fits(ONE_CORE)
    assert room.is_short_of_cores(Need(cores=64))
    assert not room.is_short_of_cores(Need(cores=4))


def test_two_shares_of_a_device_leave_the_other_device_whole() -> None:
    room = Capacity(range(8), ["0", "1"])
    assert [room.place(Need(gpus=0.5)).gpus for _ in range(2)] == [("0",), ("0",)]
    assert room.place(Need(gpus=1)).gpus == ("1",)
    assert not room.fits(Need(gpus=0.1))


def test_three_thirds_fit_a_device() -> None:
    room = Capacity(range(8), ["GPU-7"])
    assert [room.place(Need(gpus=1 / 3)).gpus for _ in range(3)] == [("GPU-7",)] * 3


def test_a_task_of_several_nodes_has_them_for_itself() -> None:
    room = Capacity(range(4), nodes=["b", "c", "d"])
    first = room.place(Need(nodes=2, cores=32))
    assert first == Placement(nodes=("b", "c"))
    assert not room.fits(Need(nodes=2))
    assert room.place(ONE_CORE).cores == (0,)
    room.release(first)
    assert not room.fits(Need(nodes=4))  # it needs this machine, too, and something runs here


def test_gpus_that_do_not_exist_are_never_free() -> None:
    room = Capacity(range(4), ["0"])
    assert room.lacks(Need(gpus=2))
    assert not room.fits(Need(gpus=2))
    assert not room.lacks(Need(gpus=1))
    with pytest.raises(ValueError, match="2 GPUs"):
        room.place(Need(gpus=2))


def test_more_tasks_than_cores_share_the_cores() -> None:
    room = Capacity([2, 3], num_slots=4)
    assert sorted(room.place(ONE_CORE).cores[0] for _ in range(4)) == [2, 2, 3, 3]
    assert not room.fits(ONE_CORE)


def test_what_a_waiting_task_needs_is_kept_for_it() -> None:
    room = Capacity(range(4), ["0"])
    room.place(ONE_CORE)
    wide, gpu = Need(cores=4), Need(gpus=1)
    assert room.fits(ONE_CORE)
    assert not room.fits(ONE_CORE, wide)
    assert room.fits(ONE_CORE, gpu)
    assert room.fits(Need(cores=2), gpu)
    assert not room.fits(Need(cores=3), gpu)
    assert not room.fits(Need(gpus=0.1), gpu)


def needs() -> st.SearchStrategy[Need]:
    return st.builds(
        Need,
        cores=st.integers(1, 12),
        gpus=st.sampled_from([0.0, 0.0, 0.001, 0.25, 1 / 3, 0.5, 0.9999, 1.0, 2.0]),
        nodes=st.sampled_from([1, 1, 1, 2, 3, 9]),
        is_exclusive=st.booleans(),
    )


@given(
    num_cores=st.integers(1, 8),
    num_slots=st.integers(0, 12),
    gpus=st.integers(0, 3),
    nodes=st.integers(0, 3),
    events=st.lists(st.one_of(needs(), st.integers(0, 5)), max_size=60),
)
def test_nothing_is_held_twice_and_everything_comes_back(
    num_cores: int, num_slots: int, gpus: int, nodes: int, events: list[Need | int]
) -> None:
    room = Capacity(range(num_cores), [str(i) for i in range(gpus)], "abc"[:nodes], num_slots=num_slots)
    fresh = vars(room).copy() | {"_gpus": dict(room._gpus)}
    held: list[tuple[Need, Placement]] = []
    for event in events:
        if isinstance(event, int):
            if held:
                room.release(held.pop(event % len(held))[1])
        elif room.fits(event):
            assert not room.lacks(event)
            held.append((event, room.place(event)))
        elif not held:
            assert room.lacks(event), f"{event} does not fit an empty machine"
        _check(held, num_cores, max(num_cores, num_slots))
    for _, placement in held:
        room.release(placement)
    assert vars(room) == fresh


def _check(held: list[tuple[Need, Placement]], num_cores: int, num_slots: int) -> None:
    cores = Counter(core for _, placement in held for core in placement.cores)
    assert max(cores.values(), default=0) <= -(-num_slots // num_cores)
    assert sum(cores.values()) <= num_slots
    shares: Counter[str] = Counter()
    for want, placement in held:
        assert len(set(placement.gpus)) == len(placement.gpus)
        shares.update(dict.fromkeys(placement.gpus, round(1000 * placement.gpu_share)))
        if placement.gpus:
            assert len(placement.gpus) * placement.gpu_share >= want.gpus - 1e-3
        if not placement.nodes:
            assert len(placement.cores) >= min(want.cores, num_slots)
    assert max(shares.values(), default=0) <= 1000
    assert max(Counter(node for _, p in held for node in p.nodes).values(), default=1) == 1


@given(want=needs(), num_cores=st.integers(1, 9), num_gpus=st.integers(0, 3))
def test_as_many_run_at_once_as_a_machine_has_room_for(want: Need, num_cores: int, num_gpus: int) -> None:
    room = Capacity(range(num_cores), [str(i) for i in range(num_gpus)])
    num = 0
    while room.fits(want):
        room.place(want)
        num += 1
    assert num == num_at_once(want, num_cores=num_cores, num_gpus=num_gpus) or want.nodes > 1


def test_a_share_of_a_device_is_nothing_that_a_launcher_is_told() -> None:
    launchers = Launchers(schedulers={"slurm": Slurm()})
    for text in ("$(LAUNCHER) ./sim", "$(VLAUNCHER) ./sim"):
        asked = {"procs": 2, "gpus": 0.5, "batch.type": "slurm"}
        assert "gpu" not in fill_launchers(text, asked, launchers)
        assert "--gpus" in fill_launchers(text, asked | {"gpus": 1}, launchers)
    assert "MERLIN_GPUS=0\n" in declare_vlauncher("$(VLAUNCHER)", {"gpus": 0.5}, "")


def test_a_batch_job_gets_a_whole_device_for_a_share() -> None:
    instance = step("a", 1, resources={"gpus": 0.5, "batch.submit": True, "batch.type": "slurm"})
    assert job_request(instance, name="a", output="").gpus == 1
