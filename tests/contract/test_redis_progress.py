"""What `RedisProgress` does beyond the contract: tickets, epochs, and everything a server can do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers import RedisServer, redis_server
from waiting import wait_until

from merlin.errors import (
    ExecutionError,
    ProgressFullError,
    ProgressGoneError,
    ProgressUnreachableError,
    StaleTicketError,
)
from merlin.execution.distributed.redis_progress import KEYS, RedisProgress, Ticket
from merlin.study.plan import Plan, StepKind
from merlin.study.tasks import Chunk, ChunkResult, Deferred, Outcome
from merlin.testing import redis_check
from merlin.testing.plans import every, gather, plan, same, step
from merlin.testing.progress import runs

OK, FAILED = int(Outcome.OK), int(Outcome.FAILED)
FUNCTION = StepKind.FUNCTION


class Study:
    """A plan, its progress and a client to look behind it."""

    def __init__(self, client: Any, plan: Plan, **options: Any) -> None:
        self.client, self.plan = client, plan
        self.progress = RedisProgress(client, "test", plan, **options)

    def open(self, **options: Any) -> bool:
        defaults: dict[str, Any] = {"session": "one", "first_attempt": 1}
        return self.progress.open(options.pop("outcomes", {}), **(defaults | options))

    def other(self, **options: Any) -> RedisProgress:
        """Another worker's view of the study."""
        return RedisProgress(self.client, "test", self.plan, **options)

    def check(self) -> None:
        redis_check.check(self.progress, self.client, self.plan)

    def finish(self, chunk: Chunk | None, outcome: int = OK, **more: Any) -> bool:
        assert chunk is not None
        return self.progress.finished(ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.hi, outcome),), **more))


Make = Callable[..., Study]


@pytest.fixture
def careful_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One that still knows everything when it was killed and starts again."""
    with redis_server(tmp_path, appendfsync="always") as server:
        yield server


@pytest.fixture
def make(any_redis: RedisServer) -> Iterator[Make]:
    with any_redis.client() as client:

        def make(*instances: Any, opened: bool = True, **options: Any) -> Study:
            study = Study(client, plan(*instances), **options)
            if opened:
                study.open()
            return study

        yield make


def test_a_study_that_an_earlier_version_opened_goes_on(make: Make) -> None:
    """It knew of no soft failures."""
    study = make(step("sim", 2), step("post", 2, same("sim")))
    key = study.progress.keys[KEYS.index("inst")]
    for name, text in study.client.hgetall(key).items():
        state = json.loads(text)
        state.pop("soft_failed", None)
        study.client.hset(key, name, json.dumps(state))
    assert study.progress.counts()["sim"].failed == 0
    for outcome in (int(Outcome.SOFT_FAILED), OK):
        study.finish(study.progress.take(instance="sim"), outcome)
    assert study.progress.counts()["sim"].failed == 1
    while chunk := study.progress.take():
        study.finish(chunk)
    assert study.progress.is_complete


# ------------------------------------------------------------------------- tickets


def test_a_study_of_any_size_starts_with_one_ticket_per_ready_instance(make: Make) -> None:
    study = make(step("sim", 10**8), step("other", 5), step("post", 10**8, same("sim")))
    tickets = study.progress.tickets(1)
    assert {(t.instance, t.lo, t.hi, t.num, t.level) for t in tickets} == {
        ("sim", 0, 10**8, 10**8, "expand"),
        ("other", 0, 5, 5, "expand"),
    }
    assert study.progress.tickets(1) == []
    study.check()


def test_a_ticket_leads_to_a_chunk_of_its_instance(make: Make) -> None:
    study = make(step("first", 10), step("second", 10))
    for ticket in sorted(study.progress.tickets(1), key=lambda t: t.instance, reverse=True):
        chunk = study.progress.take_ticket(ticket.id, worker="w", num_workers=4)
        assert chunk is not None and chunk.instance == ticket.instance
    assert {h.worker for h in study.progress.holdings()} == {"w"}
    study.check()


def test_a_ticket_is_good_once(make: Make) -> None:
    study = make(step("sim", 100))
    (ticket,) = study.progress.tickets(1)
    assert study.progress.take_ticket(ticket.id, worker="w")
    with pytest.raises(StaleTicketError, match=ticket.id):
        study.progress.take_ticket(ticket.id, worker="w")
    with pytest.raises(StaleTicketError):
        study.other().take_ticket("no such ticket", worker="w")
    assert study.progress.counters()["duplicates"] == 2
    assert study.progress.num_running == 1


def test_tickets_spread_as_far_as_there_are_chunks_to_come(make: Make) -> None:
    study = make(step("sim", 3))
    assert len(study.progress.tickets(100, 8)) == 3
    wide = make(step("sim", 1000))
    assert len(wide.progress.tickets(4, 8, limit=2)) == 2
    assert len(wide.progress.tickets(4, 8)) == 2
    assert wide.progress.tickets(4, 8) == []


def test_a_used_ticket_makes_room_for_another(make: Make) -> None:
    study = make(step("sim", 1000))
    (ticket,) = study.progress.tickets(1)
    study.progress.take_ticket(ticket.id, worker="w")
    (again,) = study.progress.tickets(1)
    assert again.level == "run" and again.lo == 1
    study.check()


def test_levels_put_repeats_first_and_first_messages_last(make: Make) -> None:
    study = make(step("sim", 10), step("post", 10, same("sim")))
    levels: dict[str, str] = {t.instance: t.level for t in study.progress.tickets(1)}
    assert levels == {"sim": "expand"}
    chunk = study.progress.take()
    study.finish(chunk)
    levels = {t.instance: t.level for t in study.progress.tickets(2)}
    assert levels == {"sim": "run", "post": "run"}
    lost = study.progress.take(instance="post")
    assert lost is not None
    study.progress.lost(lost, [])
    assert [t.level for t in study.progress.tickets(3) if t.instance == "post"] == []  # one is out already
    study.progress.reissue(0.0)
    assert [t.level for t in study.progress.tickets(1) if t.instance == "post"] == ["retry"]


def test_a_ticket_for_work_that_is_gone_is_used_up_quietly(make: Make) -> None:
    study = make(step("sim", 1))
    (ticket,) = study.progress.tickets(1)
    assert study.progress.take(worker="faster")
    assert study.progress.take_ticket(ticket.id, worker="slower") is None
    study.check()


def test_work_may_be_taken_among_some_instances(make: Make) -> None:
    study = make(step("a", 10), step("b", 10), step("c", 10))
    chunk = study.progress.take_among(["c", "b"], worker="w")
    assert chunk is not None and chunk.instance == "b"
    assert study.progress.take_among([], worker="w") is None
    for _ in range(9):
        study.progress.take_among(["b"], worker="w")
    assert study.progress.take_among(["b"], worker="w") is None
    study.check()


def test_lost_messages_are_issued_again_and_the_old_ones_are_refused(make: Make) -> None:
    study = make(step("sim", 10), step("other", 10), clock="caller")
    old = study.progress.tickets(1, now=100.0)
    assert study.progress.reissue(60.0, now=150.0) == []
    assert study.progress.tickets(1, now=150.0) == []
    assert study.progress.reissue(60.0, ["other"], now=161.0) == ["other"]
    assert [t.instance for t in study.progress.tickets(1, now=161.0)] == ["other"]
    assert study.progress.reissue(60.0, now=162.0) == ["sim"]
    new = study.progress.tickets(1, now=162.0)
    assert [t.instance for t in new] == ["sim"]
    for ticket in old:
        with pytest.raises(StaleTicketError):
            study.progress.take_ticket(ticket.id, worker="w")
    assert study.progress.take_ticket(new[0].id, worker="w")
    assert study.progress.counters()["tickets_lost"] == 2
    study.check()


def test_a_stopped_study_issues_no_tickets_and_uses_up_those_that_are_out(make: Make) -> None:
    study = make(step("sim", 10))
    (ticket,) = study.progress.tickets(1)
    study.progress.stop("enough")
    assert study.progress.take_ticket(ticket.id, worker="w") is None
    assert study.progress.tickets(5) == []
    assert study.progress.state().state == "stopped"


def test_deferred_work_gets_its_ticket_when_its_time_has_come(make: Make) -> None:
    study = make(step("sim", 1), clock="caller")
    chunk = study.progress.take(100.0)
    assert chunk is not None
    later = Deferred(chunk=replace(chunk, retries=1), delay_s=5.0)
    study.progress.finished(ChunkResult(chunk=chunk, runs=(), deferred=(later,)), 100.0)
    assert study.progress.tickets(1, now=104.0) == []
    assert study.progress.state().wakeup_s == pytest.approx(1.0)
    (ticket,) = study.progress.tickets(1, now=105.5)
    assert ticket.level == "retry"
    again = study.progress.take_ticket(ticket.id, worker="w", now=106.0)
    assert again is not None and again.retries == 1
    assert study.progress.counters()["retries"] == 1


# -------------------------------------------------------------------------- epochs


def test_opening_again_voids_leases_tickets_and_verdicts_of_before(make: Make) -> None:
    study = make(step("sim", 10, canary=0), step("post", 10, same("sim")))
    (ticket,) = study.progress.tickets(1)
    held, failing = study.progress.take(), study.progress.take()
    study.finish(failing, FAILED)
    old_verdicts = study.progress.verdicts()
    epoch = study.progress.epoch
    study.open(session="two", outcomes={"sim": runs(10, (1, 2, FAILED))})
    study.check()
    assert (study.progress.session, study.progress.num_running) == ("two", 0)
    assert study.progress.epoch != epoch
    assert not study.finish(held)
    assert held is not None and study.progress.beat([held]) == [held]
    with pytest.raises(StaleTicketError):
        study.progress.take_ticket(ticket.id, worker="w")
    new_verdicts = study.progress.verdicts()
    assert new_verdicts == old_verdicts  # it is the same skip, decided anew
    study.progress.written(old_verdicts)
    assert study.progress.verdicts() == new_verdicts
    study.progress.written(new_verdicts)
    assert study.progress.verdicts() == []


def test_only_one_of_many_publishes_a_lost_study(make: Make) -> None:
    study = make(step("sim", 10), opened=False)
    opened = [study.open(session=str(i), only_if_gone=True) for i in range(5)]
    assert opened == [True, False, False, False, False]
    assert study.progress.session == "0"


def test_verdicts_that_another_worker_has_not_seen_stay(make: Make) -> None:
    study = make(step("sim", 4, canary=0), step("post", 4, same("sim")))
    study.finish(study.progress.take(), FAILED)
    seen = study.progress.verdicts()
    study.finish(study.progress.take(), FAILED)
    study.other().written(seen)
    assert [v.lo for v in study.progress.verdicts()] == [1]


def test_the_state_tells_how_the_study_stands(make: Make) -> None:
    study = make(step("sim", 1), opened=False)
    assert study.progress.state().state == "gone" and not study.progress.exists()
    study.open(session="s7")
    state = study.progress.state()
    assert (state.state, state.session, state.has_work, state.num_running) == ("running", "s7", True, 0)
    assert abs(state.created - time.time()) < 60 and state.now >= state.created
    chunk = study.progress.take()
    state = study.progress.state()
    assert (state.has_work, state.num_running) == (False, 1)
    study.finish(chunk)
    assert study.progress.state().state == "complete"


def test_a_complete_study_goes_away_by_itself_some_day(make: Make) -> None:
    study = make(step("sim", 1))
    assert all(study.client.ttl(key) == -1 for key in study.client.keys("merlin:test:*"))
    study.finish(study.progress.take())
    left = study.client.keys("merlin:test:*")
    assert left and all(0 < study.client.ttl(key) <= 7 * 24 * 3600 for key in left)
    study.open()
    assert all(study.client.ttl(key) == -1 for key in study.client.keys("merlin:test:*"))


def test_opening_leaves_nothing_but_the_documented_keys(make: Make) -> None:
    study = make(step("sim", 10**6), step("post", 10**6, same("sim")), gather("data", ("post",), 10**6, 10))
    study.progress.tickets(3)
    assert set(study.client.keys("*")) <= set(study.progress.keys)


def test_two_studies_and_two_users_do_not_see_each_other(make: Make) -> None:
    study = make(step("sim", 10))
    theirs = RedisProgress(study.client, "them", study.plan)
    with pytest.raises(ProgressGoneError):
        theirs.take()
    theirs.open({}, session="theirs", first_attempt=1)
    theirs.stop("theirs")
    assert study.progress.state().state == "running"


# ------------------------------------------------------------------------- dropping


def test_a_dropped_study_stays_dropped_until_somebody_opens_it(make: Make) -> None:
    study = make(step("sim", 10))
    chunk = study.progress.take()
    assert chunk is not None
    assert study.progress.drop("cancelled")
    state = study.progress.state()
    assert (state.state, state.reason) == ("dropped", "cancelled")
    assert not study.open(only_if_gone=True)
    calls: list[Callable[[], Any]] = [
        study.progress.take,
        study.progress.counts,
        study.progress.verdicts,
        lambda: study.progress.beat([chunk]),
        lambda: study.finish(chunk),
        lambda: study.progress.tickets(1),
        lambda: study.progress.take_ticket("t", worker="w"),
        lambda: study.progress.stop("x"),
    ]
    for call in calls:
        with pytest.raises(ProgressGoneError, match="was cancelled") as caught:
            call()
        assert caught.value.reason == "cancelled"
    assert len(study.client.keys("*")) <= 2
    assert study.open()
    assert study.progress.take()


def test_a_study_that_was_lost_can_be_dropped_too(make: Make) -> None:
    study = make(step("sim", 10), opened=False)
    assert not study.progress.drop("purged")
    assert study.progress.state().reason == "purged"


# ------------------------------------------------------------------- failing steps


def test_failing_a_step_ends_its_tasks_whatever_they_were_doing(make: Make) -> None:
    study = make(step("sim", 20, canary=0, max_failures=1), clock="caller")
    running, done, again, later = (study.progress.take(0.0) for _ in range(4))
    assert running and done and again and later
    study.finish(done)
    study.progress.lost(again, [], 0.0)
    deferred = Deferred(chunk=replace(later, retries=1), delay_s=50.0)
    study.progress.finished(ChunkResult(chunk=later, runs=(), deferred=(deferred,)), 0.0)
    (ticket,) = study.progress.tickets(1, now=0.0)

    assert study.progress.fail(["sim"], "nobody wants it") == 19
    study.check()
    counts = study.progress.counts()["sim"]
    assert (counts.ok, counts.failed, counts.missing) == (1, 19, 0)
    verdicts = study.progress.verdicts()
    assert [(v.lo, v.hi) for v in verdicts] == [(0, 1), (2, 20)]
    assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.FAILED, "nobody wants it")}
    assert study.progress.state().state == "complete"
    assert study.progress.beat([running]) == [running]
    assert not study.finish(running)
    assert study.progress.take_ticket(ticket.id, worker="w", now=100.0) is None
    assert study.progress.expired(1000.0) == []
    assert study.progress.fail(["sim"], "again") == 0


def test_the_verdict_outranks_what_a_running_attempt_may_still_write(make: Make) -> None:
    study = make(step("sim", 1))
    for _ in range(2):
        study.progress.lost(study.progress.take(), [], infrastructure=True)  # type: ignore[arg-type]
    running = study.progress.take()
    assert running is not None and running.attempt == 3
    study.progress.fail(["sim"], "cancelled")
    (verdict,) = study.progress.verdicts()
    assert verdict.attempt == 4


def test_what_depends_on_a_failed_step_is_skipped_or_goes_on(make: Make) -> None:
    study = make(
        step("a", 4),
        step("b", 4, on_failure="continue"),
        step("after_a", 4, same("a")),
        step("after_b", 4, same("b")),
        step("all_a", 1, every("a")),
    )
    held = study.progress.take(instance="a")
    study.progress.fail(["a", "b"], "cancelled")
    study.check()
    counts = study.progress.counts()
    assert (counts["a"].failed, counts["b"].failed) == (4, 4)
    assert (counts["after_a"].skipped, counts["all_a"].skipped) == (4, 1)
    assert counts["after_b"].ready == 4
    assert [t.instance for t in study.progress.tickets(1)] == ["after_b"]
    assert not study.finish(held)
    assert study.progress.state().state == "running"


def test_failing_a_step_and_its_source_judges_each_task_once(make: Make) -> None:
    study = make(step("a", 4), step("b", 4, same("a")), step("c", 2, every("b")))
    assert study.progress.fail(["b", "a"], "cancelled") == 8
    study.check()
    verdicts = {(v.instance, v.lo, v.hi, v.outcome) for v in study.progress.verdicts()}
    assert verdicts == {
        ("a", 0, 4, Outcome.FAILED),
        ("b", 0, 4, Outcome.FAILED),
        ("c", 0, 2, Outcome.SKIPPED),
    }


def test_other_steps_go_on_when_one_is_failed(make: Make) -> None:
    study = make(step("a", 4), step("b", 4))
    held = study.progress.take(instance="b")
    study.progress.fail(["a"], "cancelled")
    assert study.finish(held)
    study.check()
    assert study.progress.stop_reason == ""
    with pytest.raises(ExecutionError, match="no such step"):
        study.progress.fail(["no such step"], "cancelled")


def test_a_step_that_is_scattered_over_many_runs_fails_at_once(make: Make) -> None:
    n = 20_000
    every_other = [(t, t + 1, OK) for t in range(0, n, 2)]
    study = make(step("sim", n), step("post", n, same("sim")), opened=False)
    study.open(outcomes={"sim": runs(n, *every_other)})
    assert study.progress.fail(["sim"], "cancelled") == n // 2
    counts = study.progress.counts()
    assert (counts["sim"].missing, counts["post"].skipped, counts["post"].ready) == (0, n // 2, n // 2)
    study.check()


# ------------------------------------------------------------------ what servers do


def test_a_server_without_memory_is_noticed_by_every_call(make: Make) -> None:
    study = make(step("sim", 10))
    chunk = study.progress.take()
    study.client.flushall()
    for call in (study.progress.take, study.progress.counts, lambda: study.finish(chunk)):
        with pytest.raises(ProgressGoneError) as caught:
            call()
        assert caught.value.reason == ""
    assert study.client.keys("*") == []
    assert study.open(only_if_gone=True)
    assert not study.finish(chunk)


@pytest.mark.parametrize("name", ["meta", "graph", "inst", "runs"])
def test_a_server_that_evicts_keys_has_lost_the_study(make: Make, name: str) -> None:
    study = make(step("sim", 10))
    study.client.delete(next(key for key in study.progress.keys if key.endswith(f":{name}")))
    with pytest.raises(ProgressGoneError):
        study.progress.take()
    assert study.progress.state().state == "gone"
    assert study.open(only_if_gone=True)
    study.check()


def test_scripts_that_the_server_has_forgotten_are_sent_again(make: Make) -> None:
    study = make(step("sim", 10))
    study.progress.take()
    study.client.script_flush()
    assert study.progress.take()


def test_a_full_server_changes_nothing_and_says_so(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        study = Study(client, plan(step("sim", 10, canary=0), step("post", 10, same("sim"))))
        study.open()
        first, second = study.progress.take(), study.progress.take()
        assert first is not None and second is not None
        (ticket,) = study.progress.tickets(1)
        before = study.progress.counts()
        client.config_set("maxmemory", 1)
        calls: list[Callable[[], Any]] = [
            study.progress.take,
            lambda: study.finish(first, FAILED),
            lambda: study.progress.lost(first, []),
            lambda: study.progress.give_back(first),
            lambda: study.progress.beat([first]),
            lambda: study.progress.tickets(5),
            lambda: study.progress.take_ticket(ticket.id, worker="w"),
            lambda: study.progress.reissue(0.0),
            lambda: study.progress.stop("x"),
            lambda: study.progress.fail(["sim"], "x"),
            study.open,
            lambda: study.open(outcomes={"sim": runs(10, (0, 10, OK))}),
        ]
        for call in calls:
            with pytest.raises(ProgressFullError, match="full"):
                call()
        assert study.progress.counts() == before and study.progress.state().num_running == 2
        client.config_set("maxmemory", 0)
        study.check()
        assert set(client.keys("*")) <= set(study.progress.keys)
        assert study.finish(first, FAILED) and study.finish(second)
        assert study.progress.take_ticket(ticket.id, worker="w")
        study.check()


def test_a_server_that_is_killed_goes_on_from_its_append_only_file(careful_redis: RedisServer) -> None:
    with careful_redis.client() as client:
        study = Study(client, plan(step("sim", 10), step("post", 10, same("sim"))))
        study.open()
        study.finish(study.progress.take())
        held = study.progress.take(instance="sim")
        careful_redis.kill9()
        with pytest.raises(ProgressUnreachableError, match=str(careful_redis.port)):
            study.progress.take()
        careful_redis.start_again()
        assert study.progress.state().state == "running"
        study.check()
        assert study.finish(held)
        study.check()


def test_a_server_that_comes_back_with_an_old_snapshot_has_lost_the_study(tmp_path: Path) -> None:
    with redis_server(tmp_path, appendonly=False) as server, server.client() as client:
        study = Study(client, plan(step("sim", 10)))
        study.open()
        client.save()
        study.finish(study.progress.take())
        server.kill9()
        server.start_again()
        fresh = study.other()
        with pytest.raises(ProgressGoneError, match="restarted"):
            fresh.take()
        assert fresh.state().state == "gone"
        assert study.open(only_if_gone=True, outcomes={"sim": runs(10, (0, 1, OK))})
        assert not study.open(only_if_gone=True)
        chunk = fresh.take()
        assert chunk is not None and chunk.lo == 1


def test_a_server_that_has_gone_back_in_time_is_noticed_by_who_saw_more(make: Make) -> None:
    study = make(step("sim", 10))
    meta = study.progress.keys[0]
    before = study.client.hget(meta, "revision")
    study.progress.take()
    study.client.hset(meta, "revision", before)
    with pytest.raises(ProgressGoneError, match="gone back"):
        study.progress.counts()
    assert study.progress.state().state == "gone"
    assert study.open(only_if_gone=True)
    assert study.progress.take()


def test_a_server_that_does_not_answer_is_named(own_redis: RedisServer) -> None:
    with own_redis.client() as patient, own_redis.client(socket_timeout=0.3) as client:
        study = Study(patient, plan(step("sim", 10)))
        study.open()
        study.client = client
        impatient = study.other()
        own_redis.pause()
        with pytest.raises(ProgressUnreachableError, match=f"127.0.0.1:{own_redis.port}") as caught:
            impatient.take()
        assert own_redis.password is not None and own_redis.password not in str(caught.value)
        own_redis.resume()


def test_a_call_whose_reply_was_lost_may_be_repeated(make: Make) -> None:
    """The client library sends the same command again after a broken connection."""
    study = make(step("sim", 10))
    (ticket,) = study.progress.tickets(1)
    args: dict[str, Any] = {"lease": "l", "lease_s": 60.0, "worker": "w", "workers": 0, "ticket": ticket.id}
    first = study.progress._look("take", **args)
    again = study.progress._look("take", **args)
    assert first["chunk"] == again["chunk"]
    assert study.progress.num_running == 1
    assert study.progress.counters() == {}
    study.check()


def test_a_sweep_whose_reply_was_lost_may_be_repeated(make: Make) -> None:
    study = make(step("sim", 3), clock="caller")
    for _ in range(3):
        study.progress.take(0.0)
    study.progress._now = 100.0
    args: dict[str, Any] = {"token": "t", "lease_s": 60.0, "worker": "w", "limit": 2}
    first = study.progress._look("expired", **args)
    assert study.progress._look("expired", **args)["taken"] == first["taken"]
    assert len(study.progress.expired(100.0)) == 1
    study.check()


@pytest.mark.parametrize("report", ["finished", "lost", "given back"])
def test_a_report_whose_answer_was_lost_may_be_repeated(make: Make, report: str) -> None:
    study = make(step("sim", 4, canary=0), step("post", 4, same("sim")))
    chunk = study.progress.take()
    assert chunk is not None
    reports: dict[str, Callable[[], bool]] = {
        "finished": lambda: study.finish(chunk, FAILED),
        "lost": lambda: study.progress.lost(chunk, []),
        "given back": lambda: study.progress.give_back(chunk),
    }
    assert reports[report]()
    before = (study.progress.counts(), study.progress.verdicts(), study.progress.counters())
    assert reports.pop(report)()
    assert not any(other() for other in reports.values())
    assert (study.progress.counts(), study.progress.verdicts(), study.progress.counters()) == before
    study.check()


def test_a_report_about_a_lease_that_was_taken_over_stays_refused(make: Make) -> None:
    study = make(step("sim", 4), clock="caller")
    held = study.progress.take(0.0)
    (mine,) = study.progress.expired(100.0)
    assert study.progress.lost(mine, [], 100.0, infrastructure=True)
    assert not study.finish(held)
    study.open(session="two")
    assert not study.progress.lost(mine, [], 100.0)


def test_reports_are_remembered_for_minutes_and_not_for_ever(make: Make) -> None:
    study = make(step("sim", 10), clock="caller")
    first, second = study.progress.take(0.0), study.progress.take(0.0)
    assert first is not None and second is not None
    done = [ChunkResult(chunk=c, runs=((c.lo, c.hi, OK),)) for c in (first, second)]
    assert study.progress.finished(done[0], 0.0)
    assert study.progress.finished(done[0], 300.0)
    assert study.progress.finished(done[1], 700.0)
    assert not study.progress.finished(done[0], 700.0)


def test_clients_that_do_not_decode_are_served_as_well(any_redis: RedisServer) -> None:
    with any_redis.client(decode_responses=False) as client:
        study = Study(client, plan(step("sim", 2)))
        study.open()
        study.progress.count("refused")
        assert study.progress.counters() == {"refused": 1}
        assert study.finish(study.progress.take())
        assert study.progress.counts()["sim"].ok == 1


def test_every_key_and_every_script_is_documented() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "progress-keys.md").read_text(encoding="utf-8")
    scripts = {f.stem for f in (root / "merlin" / "execution" / "distributed" / "lua").glob("*.lua")}
    missing = [name for name in {*KEYS, *scripts} if f"| `{name}` |" not in text]
    assert not missing


def test_a_plan_too_large_to_count_is_refused(make: Make) -> None:
    with pytest.raises(ExecutionError, match="tasks"):
        make(step("a", 2**50), step("b", 1))


# -------------------------------------------------------------------------- leases


def test_leases_run_on_the_servers_clock(make: Make) -> None:
    study = make(step("sim", 2), lease_s=600.0)
    held = study.progress.take(now=1e12, worker="gone")  # whatever a worker believes
    assert held is not None and study.progress.expired(now=1e12) == []
    assert study.other(lease_s=0.2).beat([held]) == []  # from now on it lasts no longer
    (mine,) = wait_until(study.progress.expired)
    assert mine == held
    assert study.progress.counters() == {"expired": 1}
    assert study.progress.lost(mine, [], infrastructure=True)
    assert not study.finish(held)
    assert study.progress.counters() == {"expired": 1, "losses": 1}
    study.check()


def test_no_more_is_taken_over_than_can_be_dealt_with(make: Make) -> None:
    study = make(step("sim", 10), clock="caller")
    for _ in range(10):
        study.progress.take(0.0)
    assert len(study.progress.expired(100.0, limit=3)) == 3
    assert len(study.progress.expired(100.0)) == 7
    study.check()


def test_holdings_tell_who_runs_what(make: Make) -> None:
    study = make(step("sim", 10), clock="caller")
    first = study.progress.take(100.0, worker="one")
    second = study.progress.take(110.0, worker="two")
    found = study.progress.holdings()
    assert [(h.worker, h.chunk, h.since) for h in found] == [("one", first, 100.0), ("two", second, 110.0)]
    assert [h.expires_s for h in found] == [50.0, 60.0]
    assert [h.chunk.lease for h in found] == [first.lease, second.lease]  # type: ignore[union-attr]


# -------------------------------------------------------------------------- racing


def race(progress: RedisProgress, note: Callable[[Chunk], None], seed: int) -> None:
    """A worker: runs whatever there is, now and then badly, until nothing is left."""
    number = seed
    while True:
        chunk = progress.take(worker=str(seed))
        if chunk is None:
            state = progress.state()
            if state.state == "complete":
                return
            continue
        number = (number * 1103515245 + 12345) % 2**31
        if number % 11 == 0:
            progress.give_back(chunk)
        elif number % 11 == 1:
            progress.lost(chunk, [], infrastructure=True)
        else:
            note(chunk)
            done = []
            at = chunk.lo
            for a, b in (*chunk.holes, (chunk.hi, chunk.hi)):
                done += [(at, a, OK)] if a > at else []
                at = b
            assert progress.finished(ChunkResult(chunk=chunk, runs=tuple(done), busy_s=0.1 * chunk.hi))


RACED = (
    step("sim", 300, kind=FUNCTION),
    step("post", 300, same("sim")),
    gather("data", ("post",), 300, 25),
    step("end", 3, every("data")),
)


def expect_each_once(study: Study, chunks: list[Chunk]) -> None:
    for instance in study.plan.instances:
        tasks = sorted(t for c in chunks if c.instance == instance.id for t in c.task_ids())
        assert tasks == list(range(instance.num_tasks)), instance.id
    study.check()


def test_threads_that_race_run_every_task_once(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        study = Study(client, plan(*RACED))
        study.open()
        chunks: list[Chunk] = []
        shared = study.other()
        progresses = [shared, shared, study.other(), study.other(), study.other()]
        threads = [
            threading.Thread(target=race, args=(p, chunks.append, i)) for i, p in enumerate(progresses)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect_each_once(study, chunks)


def test_processes_that_race_run_every_task_once(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        study = Study(client, plan(*RACED))
        study.open()
        argv = [sys.executable, __file__]
        # not in the command line: another test looks for the password in those of all processes
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "REDIS_URL": any_redis.url}
        workers = [
            subprocess.Popen([*argv, str(seed)], stdout=subprocess.PIPE, text=True, env=env)
            for seed in range(3)
        ]
        lines = [line for worker in workers for line in worker.communicate(timeout=120)[0].splitlines()]
        assert [worker.returncode for worker in workers] == [0, 0, 0]
        chunks = [
            Chunk(instance=d["instance"], lo=d["lo"], hi=d["hi"], holes=tuple(map(tuple, d["holes"])))
            for d in map(json.loads, lines)
        ]
        expect_each_once(study, chunks)


def test_of_many_who_use_the_same_ticket_one_gets_the_chunk(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        study = Study(client, plan(step("sim", 100)))
        study.open()
        (ticket,) = study.progress.tickets(1)
        got: list[Chunk | None] = []

        def use(ticket: Ticket) -> None:
            try:
                got.append(study.progress.take_ticket(ticket.id, worker="w"))
            except StaleTicketError:
                pass

        threads = [threading.Thread(target=use, args=(ticket,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1 and got[0] is not None
        assert study.progress.counters()["duplicates"] == 7


class Ledger:
    """What threads have committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.commits: list[Chunk] = []

    def commit(self, chunk: Chunk) -> None:
        with self._lock:
            self.commits.append(chunk)

    def done(self, chunk: Chunk) -> list[tuple[int, int, int]]:
        with self._lock:
            mine = set(chunk.task_ids())
            all_done = {t for c in self.commits if c.instance == chunk.instance for t in c.task_ids()}
        return [(t, t + 1, OK) for t in sorted(mine & all_done)]


def insist(call: Callable[[], Any]) -> Any:
    """Repeat a call until it is answered."""

    def answer() -> Any:
        try:
            return [call()]
        except ProgressUnreachableError:
            return None

    return wait_until(answer)[0]


def work_through_outages(progress: RedisProgress, ledger: Ledger) -> None:
    """A worker and sweeper whose server comes and goes."""
    while insist(progress.state).state != "complete":
        for mine in insist(progress.expired):
            insist(lambda: progress.lost(mine, ledger.done(mine), infrastructure=True))  # noqa: B023
        chunk = insist(lambda: progress.take(worker="w"))
        if chunk is None or insist(lambda: progress.beat([chunk])):  # noqa: B023
            continue
        ledger.commit(chunk)
        result = ChunkResult(chunk=chunk, runs=tuple(ledger.done(chunk)), busy_s=10.0)
        insist(lambda: progress.finished(result))  # noqa: B023


def test_a_server_that_is_killed_again_and_again_costs_nothing_but_time(careful_redis: RedisServer) -> None:
    lease_s = 8.0  # for so long this process may stand still between looking at a lease and committing
    with careful_redis.client() as client:
        study = Study(client, plan(step("sim", 400), step("post", 400, same("sim"))), lease_s=lease_s)
        study.open()
        ledger = Ledger()
        threads = [
            threading.Thread(target=work_through_outages, args=(study.other(lease_s=lease_s), ledger))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for kill in range(1, 6):
            wait_until(lambda: len(ledger.commits) > 100 * kill)  # noqa: B023
            careful_redis.kill9()
            careful_redis.start_again()
        for thread in threads:
            thread.join()
        expect_each_once(study, ledger.commits)


# ---------------------------------------------------------------------------- size


def test_memory_does_not_grow_with_the_number_of_tasks(any_redis: RedisServer) -> None:
    used = []
    with any_redis.client() as client:
        for n in (10**3, 10**8):
            client.flushall()
            data = gather("data", ("post",), n, n // 100)
            study = Study(
                client,
                plan(step("sim", n, kind=FUNCTION), step("post", n, same("sim"), kind=FUNCTION), data),
            )
            study.open(num_workers_hint=4)
            for _ in range(30):
                chunk = study.progress.take(worker="w")
                assert chunk is not None
                study.finish(chunk, busy_s=10.0)
                study.progress.take(worker="w")
                study.progress.tickets(4)
            study.check()
            used.append(sum(client.memory_usage(key) for key in client.keys("*")))
    small, large = used
    assert large < 1.5 * small and large < 64_000, used


if __name__ == "__main__":
    import redis

    def tell(chunk: Chunk) -> None:
        print(json.dumps({"instance": chunk.instance, "lo": chunk.lo, "hi": chunk.hi, "holes": chunk.holes}))

    url = os.environ["REDIS_URL"]
    race(RedisProgress(redis.Redis.from_url(url), "test", plan(*RACED)), tell, int(sys.argv[1]))
