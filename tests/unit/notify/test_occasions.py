"""When somebody is to be told: decided from numbers, times, and what was told before."""

from __future__ import annotations

from merlin.notify.occasions import NOTHING_TOLD, Occasion, Occasions, Told
from merlin.plan.notify_rule import NotifyRule
from merlin.plan.task_states import TaskCounts


def counts(ok: int = 0, failed: int = 0, skipped: int = 0, planned: int = 100) -> TaskCounts:
    ready = planned - ok - failed - skipped
    return TaskCounts(
        planned=planned, ok=ok, failed=failed, skipped=skipped, running=0, ready=ready, waiting=0, queued=0
    )


def rule(*when: str, **more: float | None) -> NotifyRule:
    return NotifyRule(when=when, channel="cmd", to=("true",), **more)


def occasions(*rules: NotifyRule, told: Told = NOTHING_TOLD, quiet_s: float = 0.0) -> Occasions:
    return Occasions(rules, told, now=0.0, quiet_s=quiet_s)


def events(found: list[Occasion]) -> list[tuple[int, str]]:
    return [(occasion.rule, occasion.event) for occasion in found]


def test_failures_are_told_once_when_they_pass_the_threshold() -> None:
    share, number, first = rule("failures", above=0.05), rule("failures", above=12), rule("failures")
    watch = occasions(share, number, first)
    assert events(watch.look(counts(ok=3), 1.0)) == []
    assert events(watch.look(counts(failed=1), 2.0)) == [(2, "failures")]
    assert events(watch.look(counts(failed=5), 3.0)) == []
    assert events(watch.look(counts(failed=6), 4.0)) == [(0, "failures")]
    assert events(watch.look(counts(failed=13), 5.0)) == [(1, "failures")]
    assert events(watch.look(counts(failed=100), 6.0)) == []


def test_failures_that_ran_again_and_failed_again_are_told_again() -> None:
    watch = occasions(rule("failures", above=2))
    assert len(watch.look(counts(failed=3), 1.0)) == 1
    assert watch.look(counts(failed=0), 2.0) == []
    assert len(watch.look(counts(failed=4), 3.0)) == 1


def test_a_restart_does_not_repeat_failures_that_were_told() -> None:
    watch = occasions(rule("failures", above=2), told=Told(of_failures=frozenset({0})))
    assert watch.look(counts(failed=3), 1.0) == []
    assert watch.end("failed", counts(failed=3, ok=97), "") == []


def test_all_tasks_may_fail_without_a_word_if_the_rule_says_so() -> None:
    assert occasions(rule("failures", above=None)).look(counts(failed=100), 1.0) == []


def test_the_last_failures_are_told_with_the_end() -> None:
    watch = occasions(rule("failed", "failures"))
    assert events(watch.end("failed", counts(ok=99, failed=1), "")) == [(0, "failures"), (0, "failed")]


def test_a_stall_is_told_when_nothing_has_ended_for_the_time_of_the_rule() -> None:
    watch = occasions(rule("stall", after_s=60.0))
    assert watch.look(counts(ok=1), 50.0) == []
    assert watch.look(counts(ok=2), 70.0) == []
    assert watch.next_wakeup() == 130.0
    assert watch.look(counts(ok=2), 129.0) == []
    (stall,) = watch.look(counts(ok=2), 130.0)
    assert stall.reason == "no task has ended for 1 min 00 s, and 98 are missing"
    assert watch.next_wakeup() is None
    assert watch.look(counts(ok=2), 500.0) == []


def test_a_second_stall_is_told_too() -> None:
    watch = occasions(rule("stall", after_s=60.0))
    assert len(watch.look(counts(), 60.0)) == 1
    assert watch.look(counts(ok=1), 70.0) == []
    assert watch.next_wakeup() == 130.0
    assert len(watch.look(counts(ok=1), 130.0)) == 1


def test_a_study_without_work_left_does_not_stall() -> None:
    watch = occasions(rule("stall", after_s=60.0))
    assert watch.look(counts(ok=100), 1000.0) == []
    assert watch.next_wakeup() is None


def test_tasks_that_only_the_ledger_knows_to_have_ended_put_a_stall_off() -> None:
    watch = occasions(rule("stall", after_s=60.0))
    watch.look(counts(), 30.0)
    watch.stir(60.0)
    assert watch.look(counts(), 61.0) == []
    assert watch.next_wakeup() == 120.0


def test_a_stall_began_before_the_owner_that_notices_it() -> None:
    assert len(occasions(rule("stall", after_s=60.0), quiet_s=59.0).look(counts(), 1.0)) == 1


def test_what_the_last_owner_told_in_this_run_is_not_repeated() -> None:
    told = Told(in_run=frozenset({Occasion(0, "stall", "7"), Occasion(1, "finished")}))
    watch = occasions(rule("stall", after_s=60.0), rule("finished", "failed"), told=told)
    assert watch.look(counts(ok=7), 100.0) == []
    assert watch.end("finished", counts(ok=100), "") == []


def test_only_the_rules_that_wait_for_an_end_are_told_of_it() -> None:
    watch = occasions(rule("finished"), rule("failed", "stopped"), rule("stall"))
    assert events(watch.end("stopped", counts(ok=5), "enough")) == [(1, "stopped")]
    assert watch.end("stopped", counts(ok=5), "enough") == []


def test_a_refusal_is_told_once_for_each_reason_whatever_numbers_are_in_it() -> None:
    watch = occasions(rule("refused"))
    assert len(watch.look(counts(), 1.0, "job 17 is over the limit")) == 1
    assert watch.look(counts(), 2.0, "job 18 is over the limit") == []
    assert watch.look(counts(), 3.0) == []
    (second,) = watch.look(counts(), 4.0, "no such partition: debug")
    assert second.reason == "no such partition: debug"
