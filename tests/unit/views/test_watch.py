"""What `merlin monitor` says and does, look by look."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from recording_observer import RecordingObserver
from small_plans import plan, step

from merlin.errors import ExecutionError
from merlin.plan.plan import StepInstance
from merlin.plan.task_states import TaskCounts, sum_by_step
from merlin.views.watch import IDLE_S, Look, Watch, follow, idle_queues


def counts(planned: int, ok: int, *, failed: int = 0, running: int = 0, waiting: int = 0) -> TaskCounts:
    ready = planned - ok - failed - running - waiting
    return TaskCounts(
        planned=planned,
        ok=ok,
        failed=failed,
        skipped=0,
        running=running,
        ready=ready,
        waiting=waiting,
        queued=0,
    )


def look(state: str = "running", **more) -> Look:
    fields = {"per_step": {"a": counts(10, 3)}, "num_workers": 1, "num_running": 1}
    return Look(state=state, **{**fields, **more})


def unreachable() -> Look:
    return Look(state="unreachable", per_step={}, reason="Redis at h:1 refuses connections")


def instance(id: str, queue: str) -> StepInstance:
    return step(id, 10, step=id.partition("/")[0], queue=queue)


def test_a_study_is_over_when_nothing_is_missing():
    watch = Watch()
    assert watch.update(look(), 0.0) == []
    assert not watch.over
    watch.update(look("complete", per_step={"a": counts(10, 9, failed=1)}), 1.0)
    assert watch.over == "ended"
    assert watch.per_step["a"].failed == 1


def test_chosen_steps_are_over_before_the_study_is():
    watch = Watch(["a"])
    watch.update(look(per_step={"a": counts(10, 10), "b": counts(10, 0)}), 0.0)
    assert watch.over == "ended"
    assert list(watch.per_step) == ["a"]


def test_a_stopped_study_is_over_once_its_last_chunk_has_ended():
    watch = Watch()
    watch.update(look("stopped", reason="5 tasks have failed", num_running=2), 0.0)
    assert not watch.over
    watch.update(look("stopped", reason="5 tasks have failed", num_running=0), 1.0)
    assert (watch.over, watch.reason) == ("stopped", "5 tasks have failed")


def test_a_stopped_study_does_not_wait_for_chunks_of_dead_workers():
    watch = Watch()
    watch.update(look("stopped", reason="x", num_running=2, num_workers=0), 0.0)
    assert watch.over == "stopped"


def test_a_cancelled_study_is_over():
    watch = Watch()
    watch.update(look("dropped", reason="cancelled"), 0.0)
    assert (watch.over, watch.reason) == ("dropped", "cancelled")


def test_trouble_with_the_servers_is_told_once_and_its_end_too():
    watch = Watch()
    watch.update(look(), 0.0)
    first = watch.update(unreachable(), 1.0)
    assert len(first) == 1
    assert "Redis at h:1 refuses connections" in first[0]
    assert watch.update(unreachable(), 2.0) == []
    assert watch.per_step["a"].ok == 3
    assert watch.update(look(), 3.0) == ["the servers answer again"]


def test_a_study_that_redis_lost_is_published_again_after_a_while():
    watch = Watch(gone_s=20)
    (note,) = watch.update(look("gone"), 0.0)
    assert "within 20 s" in note
    assert not watch.wants_republish
    assert watch.update(look("gone"), 19.0) == []
    assert not watch.wants_republish
    watch.update(look("gone"), 20.0)
    assert watch.wants_republish
    (note,) = watch.update(look(), 21.0)
    assert "published again" in note
    assert not watch.wants_republish


def test_work_without_workers_is_told_after_a_moment_and_once():
    watch = Watch(workers_command="merlin run-workers /w")
    alone = look(num_workers=0, idle_queues=("hot",))
    assert watch.update(alone, 0.0) == []
    assert watch.update(alone, IDLE_S - 0.1) == []
    (note,) = watch.update(alone, IDLE_S)
    assert "no worker serves queue hot" in note
    assert note.endswith("start some: merlin run-workers /w")
    assert watch.update(alone, 100.0) == []
    watch.update(look(), 101.0)
    assert watch.update(alone, 102.0) == []
    assert len(watch.update(alone, 102.0 + IDLE_S)) == 1


def test_counts_are_summed_over_the_instances_of_a_step_in_the_order_of_the_plan():
    made = plan(instance("b/1", "q"), instance("a", "q"), instance("b/2", "q"))
    sums = sum_by_step(made, {"a": counts(1, 1), "b/1": counts(10, 3), "b/2": counts(10, 4, failed=1)})
    assert list(sums) == ["b", "a"]
    assert (sums["b"].planned, sums["b"].ok, sums["b"].failed, sums["b"].ready) == (20, 7, 1, 12)


def test_a_queue_is_idle_if_something_could_run_or_did_and_nobody_serves_it():
    made = plan(instance("a", "hot"), instance("b", "cold"), instance("c", "late"), instance("d", "orphaned"))
    now = {
        "a": counts(10, 5),
        "b": counts(10, 5),
        "c": counts(10, 0, waiting=10),
        "d": counts(10, 5, running=5),
    }
    assert idle_queues(made, now, {"hot"}) == ("cold", "orphaned")


class Scripted:
    """A study that shows what it was given, one look after the other."""

    def __init__(self, *looks: Look, fails: int = 0) -> None:
        self.looks, self.fails = list(looks), fails
        self.num_published = self.num_settled = 0

    def look(self) -> Look:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def republish(self) -> str:
        if self.fails:
            self.fails -= 1
            raise ExecutionError("full")
        self.num_published += 1
        return "published with 1 message"

    def settle(self) -> None:
        self.num_settled += 1


def run(
    source: Scripted, watch: Watch, jobs: Callable[[], Sequence[str]] = tuple
) -> tuple[RecordingObserver, list[float]]:
    clock = iter(float(k) for k in range(100))
    observer, naps = RecordingObserver(), []
    follow(
        source, watch, observer, plan(instance("a", "q")),
        interval_s=0.5, clock=lambda: next(clock), sleep=naps.append, jobs=jobs,
    )  # fmt: skip
    return observer, naps


def test_the_display_is_started_once_and_follows_to_the_end():
    source = Scripted(unreachable(), look(), look(per_step={"a": counts(10, 7)}), look("complete"))
    observer, naps = run(source, Watch())
    assert observer.plan is not None
    assert [step.per_step["a"].ok for step in observer.steps] == [3, 7, 3]
    assert naps == [0.5, 0.5, 0.5]
    assert source.num_settled == 1


def test_what_has_changed_of_the_batch_jobs_is_told_now_and_then():
    source = Scripted(*[look()] * 30, look("complete"))
    answers = [("a: 2 pending",), ("a: 2 pending",), ("a: 1 pending", "b: 1 pending")]
    observer, _ = run(source, Watch(), lambda: answers.pop(0))
    assert observer.notes == ["a: 2 pending", "a: 1 pending", "b: 1 pending"]
    assert not answers


def test_a_lost_study_is_published_again_until_it_succeeds():
    source = Scripted(look(), look("gone"), look("gone"), look("gone"), look(), look("complete"), fails=1)
    observer, _ = run(source, Watch(gone_s=0))
    assert source.num_published == 2
    assert observer.notes.count("published with 1 message") == 2
    assert observer.notes[-1] == "the study is published again, from its ledger"


@pytest.mark.parametrize(("state", "num_settled"), [("stopped", 1), ("dropped", 0)])
def test_what_nobody_wrote_down_is_written_at_the_end_unless_the_study_was_dropped(state, num_settled):
    source = Scripted(look(state, reason="full disk", num_running=0))
    run(source, Watch())
    assert source.num_settled == num_settled
