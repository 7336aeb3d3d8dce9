"""When a worker of an allocation has no reason to stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, run_ok
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from small_plans import every, plan, same, step
from small_plans import step as planned
from waiting import wait_until

from merlin.batch.here import Here
from merlin.errors import ExecutionError
from merlin.execution.distributed import idle_watch, owners, stay, upkeep, workforce
from merlin.execution.distributed.idle_watch import VARIABLE, first_wait_s
from merlin.execution.distributed.registry import OpenWork, RunningChunk, StudyInfo, WorkerInfo
from merlin.execution.distributed.stay import FIRST_S, GRACE_S, Idleness, is_needed, wanted
from merlin.execution.walltime import MARGIN_S
from merlin.plan.fit import ONE_CORE, Need
from merlin.plan.schedule import Scheduler
from merlin.views.published import slots_of

NOW = 1000.0
CHUNK = RunningChunk(study="s", instance="sim", lo=0, hi=1, since=NOW)


def worker(name: str, job: str = "1", **more: Any) -> WorkerInfo:
    more = {"queues": ["sim"], "concurrency": 4, "started": 0.0} | more
    return WorkerInfo(name=name, host="h", pid=1, version="1", job=job, scheduler="slurm" * bool(job), **more)


def needed(me: WorkerInfo, others: Sequence[WorkerInfo] = (), **wants: int) -> bool:
    return is_needed(me, [me, *others], [OpenWork(queue=q, num_at_once=n) for q, n in wants.items()], NOW)


def test_a_worker_stays_for_work_in_its_queues_and_for_no_other() -> None:
    assert needed(worker("a"), sim=1) and not needed(worker("a"), post=9) and not needed(worker("a"))


def test_a_worker_does_not_stay_for_what_it_has_no_time_for() -> None:
    me = worker("a", ends=NOW + MARGIN_S + 60)
    assert is_needed(me, [me], [OpenWork(queue="sim", num_at_once=9, need_s=59)], NOW)
    assert not is_needed(me, [me], [OpenWork(queue="sim", num_at_once=9, need_s=61)], NOW)


def test_a_worker_of_a_bad_node_leaves_the_study_to_others() -> None:
    me = worker("a", node="n1")
    assert not is_needed(me, [me], [OpenWork(queue="sim", num_at_once=9, avoid=("n1",))], NOW)
    assert is_needed(me, [me], [OpenWork(queue="sim", num_at_once=9, avoid=("n2", "h"))], NOW)
    other = worker("b", "0", node="n2")
    assert is_needed(me, [me, other], [OpenWork(queue="sim", num_at_once=1, avoid=("n2",))], NOW)


def test_surplus_allocations_leave_as_a_whole_those_first_that_do_nothing_and_came_last() -> None:
    old, new = worker("old", "1"), [worker("n1", "2", started=9.0), worker("n2", "2", started=9.0)]
    assert needed(old, new, sim=4)
    assert not needed(new[0], [old, new[1]], sim=4) and needed(new[0], [old, new[1]], sim=5)
    busy = replace(new[1], running=[CHUNK])
    assert needed(new[0], [old, busy], sim=4), "nobody gets a part of an allocation back"
    assert not needed(old, [new[0], busy], sim=8)
    assert needed(old, [replace(w, is_stopping=True) for w in (new[0], busy)], sim=1)
    assert needed(old, [replace(w, age_s=99.0) for w in (new[0], busy)], sim=1)


def test_as_many_workers_stay_as_tasks_of_several_cores_need() -> None:
    alive = [worker(f"w{i}", str(i), concurrency=6, cores=6, started=float(i)) for i in range(4)]

    def staying(num: int, need: Need) -> list[str]:
        wants = [OpenWork(queue="sim", num_at_once=num, need=need)]
        return [me.name for me in alive if is_needed(me, alive, wants, NOW)]

    assert staying(2, ONE_CORE) == ["w0"]
    assert staying(2, Need(cores=4)) == ["w0", "w1"]
    assert staying(4, Need(cores=3)) == ["w0", "w1"]
    assert staying(3, Need(is_exclusive=True)) == ["w0", "w1", "w2"]
    assert staying(2, Need(nodes=2, cores=2)) == ["w0", "w1", "w2", "w3"]


def test_a_worker_without_devices_leaves_when_only_work_for_devices_is_left() -> None:
    plain, able = worker("plain"), worker("able", "2", started=9.0, gpus=["0", "1"])
    wants = [OpenWork(queue="sim", num_at_once=9, need=Need(gpus=1))]
    assert not is_needed(plain, [plain, able], wants, NOW)
    assert is_needed(able, [plain, able], wants, NOW)
    other = worker("other", "3", started=10.0, gpus=["0"])
    two = [OpenWork(queue="sim", num_at_once=2, need=Need(gpus=1))]
    assert not is_needed(other, [plain, able, other], two, NOW)
    assert is_needed(other, [plain, able, other], wants, NOW)


def test_a_task_takes_the_slots_that_it_leaves_no_room_on() -> None:
    six = worker("a", concurrency=6, cores=6, gpus=["0", "1"])
    assert slots_of(ONE_CORE, [six]) == slots_of(ONE_CORE, []) == 1
    assert slots_of(Need(cores=4), [six]) == 6 and slots_of(Need(cores=4), []) == 4
    assert slots_of(Need(gpus=1), [six, worker("b")]) == 3


def test_workers_outside_of_allocations_stay_and_so_others_may_leave() -> None:
    assert needed(worker("a", ""), [worker("b")], sim=1)
    assert not needed(worker("b"), [worker("a", "")], sim=4)


def test_those_that_serve_less_or_other_queues_replace_nobody() -> None:
    me = worker("a", started=9.0, queues=["sim", "post"])
    assert needed(me, [worker("b", "2")], sim=1, post=1)
    other = worker("b", "2", queues=["sim", "post", "more"])
    assert not needed(me, [other], sim=1, post=1)
    assert needed(me, [other], sim=1, post=1, more=99)


@given(
    st.lists(
        st.tuples(st.sampled_from("123"), st.integers(1, 4), st.booleans(), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 20),
)
def test_those_that_stay_have_the_slots_for_everything(
    drawn: list[tuple[str, int, bool, int]], num_at_once: int
) -> None:
    """Those that leave say so one after the other, as the registry shows it."""
    alive = [
        worker(f"w{i}", job, concurrency=num, running=[CHUNK] * is_busy, started=float(start))
        for i, (job, num, is_busy, start) in enumerate(drawn)
    ]
    before = sum(w.concurrency for w in alive)
    for i in range(len(alive)):
        others = [*alive[:i], *alive[i + 1 :]]
        if not needed(alive[i], others, sim=num_at_once):
            assert not alive[i].running
            alive[i] = replace(alive[i], is_stopping=True)
    left = sum(w.concurrency for w in alive if not w.is_stopping)
    assert left >= min(before, num_at_once)
    assert not all(w.is_stopping for w in alive)


def test_a_study_of_which_nobody_has_said_what_it_wants_keeps_every_worker() -> None:
    studies = [
        StudyInfo(study_id=id, name="n", workspace="/w", plan="p", queues=["sim"], session="1", published=0.0)
        for id in ("told", "new")
    ]
    work = {"told": [OpenWork(queue="sim", num_at_once=0), OpenWork(queue="post", num_at_once=3)], "gone": []}
    assert wanted(studies, work, "[merlin]_{}".format) == [
        OpenWork(queue="[merlin]_post", num_at_once=3),
        OpenWork(queue="[merlin]_sim", num_at_once=stay.MANY),
    ]


def test_a_grace_period_begins_with_the_last_work_and_is_longer_before_the_first() -> None:
    idle = Idleness(0.0)
    assert not idle.checked(False, FIRST_S - 1, 1) and idle.checked(False, FIRST_S, 1)
    idle.busy(100.0)
    assert not idle.checked(False, 100.0 + GRACE_S / 2, 1) and idle.checked(False, 100.0 + GRACE_S, 1)
    assert not idle.checked(True, 200.0, 1) and not idle.is_due(200.0) and idle.is_due(201.0)
    idle.checked(True, 300.0, 10_000)
    assert not idle.is_due(301.0) and idle.is_due(600.0)


def test_workers_leave_in_allocations_or_when_they_are_asked_to() -> None:
    assert first_wait_s({}, is_in_allocation=False) is None
    assert first_wait_s({}, is_in_allocation=True) == FIRST_S
    assert first_wait_s({VARIABLE: "0"}, is_in_allocation=True) is None
    assert first_wait_s({VARIABLE: "1"}, is_in_allocation=False) == stay.FIRST_ASKED_S
    with pytest.raises(ExecutionError, match=VARIABLE):
        first_wait_s({VARIABLE: "yes"}, is_in_allocation=False)


# ------------------------------------------------------------ what an owner says


def test_what_could_run_at_once_counts_those_that_will_become_ready() -> None:
    chain = [planned("a", 1, queue="q"), planned("b", 50, every("a"), queue="q")]
    scheduler = Scheduler(plan(*chain, planned("c", 50, same("b"), queue="other")), {}, num_workers=1)
    assert scheduler.open_work() == {("q", ONE_CORE): (50, 0.0), ("other", ONE_CORE): (50, 0.0)}
    long, short = {"walltime": "60"}, {"walltime": "9"}
    beside = [planned("a", 3, resources=long), planned("b", 4, resources=short)]
    assert Scheduler(plan(*beside), {}, num_workers=1).open_work() == {("merlin", ONE_CORE): (7, 9.0)}
    wide = {"procs": 2, "cores per task": 2}
    beside = [planned("a", 3, resources=wide), planned("b", 4)]
    assert Scheduler(plan(*beside), {}, num_workers=1).open_work() == {
        ("merlin", Need(cores=4)): (3, 0.0), ("merlin", ONE_CORE): (4, 0.0),
    }  # fmt: skip


# ------------------------------------------------------------------ real engines


def test_workers_of_an_allocation_leave_when_the_study_is_done_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((owners, "LIST_S"), (workforce, "SLOTS_S"), (upkeep, "TICK_S"), (stay, "CHECK_S")):
        monkeypatch.setattr(module, name, 0.05)
    here = Here(host="n1", cores=2, scheduler="slurm", job="7")
    cluster = Cluster(tmp_path, step("sim", 200), step("post", 200, same("sim")))
    try:
        plain = cluster.worker(run_ok).start()
        ours = cluster.worker(run_ok, here=here, first_wait_s=600.0).start()
        cluster.publish()
        cluster.wait_until_over()
        wait_until(lambda: ours.leaving.num_left, cluster.show)
        cluster.expect_all_ok()
        assert not plain.leaving.num_left and ours.engine.info().job == "7"
    finally:
        cluster.close()


def test_a_worker_that_announced_its_end_stays_when_there_is_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Registry:
        answers = [False, True, False, False]

        def num_workers(self, now: float) -> int:
            return 1

    registry, said = Registry(), list[bool]()
    watch = idle_watch.IdleWatch(
        registry,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        lambda: worker("a"),
        lambda: said.append(watch.is_announced),
        lambda: NOW,
        0.0,
    )
    monkeypatch.setattr(watch, "_is_needed", lambda: registry.answers.pop(0))
    assert not watch.is_useless(1e9) and said == [True, False]
    assert watch.is_useless(2e9) and said == [True, False, True]
