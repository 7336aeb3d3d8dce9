"""What the workers of a user do for one study."""

from __future__ import annotations

from small_plans import every, plan, step

from merlin.execution.distributed.registry import OpenWork, RunningChunk, WorkerInfo
from merlin.views.serving import live_workers

OK = 0


PLAN = plan(step("sim", 10, queue="hot"), step("post", 10, every("sim", "sim"), queue="cold"), study_id="s1")


def worker(
    name: str, *queues: str, running: str = "", study: str = "s1", is_stopping: bool = False
) -> WorkerInfo:
    chunks = [RunningChunk(study=study, instance=running, lo=0, hi=5, since=1.0)] if running else []
    return WorkerInfo(
        name=name, host="h", pid=1, concurrency=4, started=0.0, version="", running=chunks,
        queues=[f"[merlin]_{queue}" for queue in queues], is_stopping=is_stopping,
    )  # fmt: skip


def test_slots_and_chunks_are_those_of_workers_with_a_queue_of_the_study() -> None:
    found = live_workers(
        PLAN,
        {"sim": {OK: 5}, "post": {}},
        [
            worker("a", "hot", running="sim"),
            worker("b", "cold", "hot", running="sim", study="another"),
            worker("c", "elsewhere"),
            worker("d", "hot", is_stopping=True),
        ],
        [OpenWork(queue="hot", num_at_once=2, waiting=["sim needs 1:00:00"])],
        None,
    )
    assert (found.num_slots, found.num_workers, found.num_ending) == (8, 2, 1)
    assert dict(found.running) == {"sim": 1}
    assert (found.idle_queues, found.num_open_queues, found.waiting) == ((), 1, ("sim needs 1:00:00",))


def test_a_queue_is_idle_if_something_could_run_there_and_nobody_stays_for_it() -> None:
    before = live_workers(PLAN, {"sim": {}, "post": {}}, [worker("a", "cold")], [], None)
    assert before.idle_queues == ("hot",)
    after = live_workers(PLAN, {"sim": {OK: 10}, "post": {}}, [worker("a", "hot")], [], None)
    assert after.idle_queues == ("cold",)
    ending = live_workers(
        PLAN, {"sim": {OK: 10}, "post": {}}, [worker("a", "cold", is_stopping=True)], [], None
    )
    assert ending.idle_queues == ("cold",)
