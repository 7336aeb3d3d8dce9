"""When the scheduler stops a study."""

from __future__ import annotations

from scheduling import FAILED, OK, SOFT_FAILED, start
from small_plans import same, step


def test_the_canary_stops_before_the_fan_out() -> None:
    b = start(step("sim", 1000))
    while (chunk := b.scheduler.take(0.0)) is not None:
        b.fail(chunk, note="exit code 1", busy_s=chunk.hi - chunk.lo)
    reason = "canary: the first 10 tasks of step 'sim' all failed; for example, exit code 1"
    assert b.scheduler.stop_reason == reason
    assert b.scheduler.counts()["sim"].failed == 10
    assert not b.scheduler.stop_now


def test_the_canary_is_content_when_one_task_ended_ok() -> None:
    b = start(step("sim", 100))
    b.finish_ok(b.take())
    while (chunk := b.scheduler.take(0.0)) is not None:
        b.fail(chunk)
    assert b.scheduler.stop_reason == ""
    assert b.scheduler.is_complete


def test_max_failures_stops_when_exceeded() -> None:
    for limit, failures, allowed in ((0.05, 6, "5%"), (5, 6, "5"), (0.0, 1, "0")):
        b = start(step("sim", 100, max_failures=limit, canary=0))
        while (chunk := b.scheduler.take(0.0)) is not None:
            b.fail(chunk, busy_s=1.5 * (chunk.hi - chunk.lo))
        assert b.scheduler.counts()["sim"].failed == failures
        assert b.scheduler.stop_reason == (
            f"max_failures: {failures} of 100 tasks of step 'sim' failed, {allowed} are allowed"
        )


def test_the_canary_is_content_when_one_task_chose_to_fail_and_max_failures_counts_it() -> None:
    for limit, reason in (
        (None, ""),
        (5, "max_failures: 6 of 100 tasks of step 'sim' failed, 5 are allowed"),
    ):
        b = start(step("sim", 100, max_failures=limit))
        b.finish(b.take(), (0, 1, SOFT_FAILED), busy_s=1.5)
        while (chunk := b.scheduler.take(0.0)) is not None:
            b.fail(chunk, busy_s=1.5 * (chunk.hi - chunk.lo))
        assert b.scheduler.stop_reason == reason


def test_a_hard_failure_stops_everything() -> None:
    b = start(step("sim", 10))
    first, second = b.take(), b.take()
    b.finish(first, (0, 1, FAILED), stop="hard_fail", note="on purpose")
    assert "on purpose" in b.scheduler.stop_reason and b.scheduler.stop_now
    assert b.nothing_to_take()
    b.finish_ok(second)
    assert b.scheduler.num_running == 0
    assert b.scheduler.counts()["sim"].missing == 8


def test_a_study_goes_on_when_a_task_asks_the_workers_to_stop() -> None:
    b = start(step("sim", 10), step("post", 10, same("sim")), step("other", 1))
    b.finish(b.take(), (0, 1, OK), stop="stop_workers")
    assert b.scheduler.stop_reason == "" and not b.scheduler.stop_now
    b.drive()
    assert b.scheduler.is_complete


def test_the_first_reason_to_stop_stays() -> None:
    b = start(step("sim", 10))
    b.scheduler.stop("first")
    b.scheduler.stop("second", now=True)
    assert (b.scheduler.stop_reason, b.scheduler.stop_now) == ("first", True)
    assert b.nothing_to_take()
