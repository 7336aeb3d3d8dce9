"""Owners of studies between any two of their statements: whoever comes next goes on without loss, and nothing twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster import LEASE_S, Cluster
from small_plans import step
from thread_processes import Work
from waiting import wait_until

from merlin.errors import (
    ExecutionError,
    LedgerError,
    OwnershipLostError,
    RedisUnreachableError,
    StudyGoneError,
)
from merlin.execution.conductor import Conductor
from merlin.execution.distributed import control, open_study, owners, ownership, workforce
from merlin.execution.distributed.contracts import Offer
from merlin.execution.distributed.messages import open_chunk, seal_report
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.tools import Tools
from merlin.ledger.records import RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.pieces import pieces_of
from merlin.plan.reopen import Again
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk, ChunkResult, Deferred, Outcome
from merlin.status.snapshot import CANCELLED, is_published
from merlin.testing.memory import MemoryBackend

QUICKLY: dict[Any, dict[str, float]] = {
    owners: {"WAIT_S": 0.02, "TICK_S": 0.01, "ASK_S": 0.02, "LIST_S": 0.05, "NOTICE_S": 0.0, "RETRY_S": 0.01},
    ownership: {"RENEW_S": 0.05, "EXPIRE_S": 0.01, "RETRY_S": 0.01},
    workforce: {"SLOTS_S": 0.02},
}


class Hands:
    """A worker made by hand: takes every offer, commits and reports what it is told."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leases = cluster.tools().backend.leases(cluster.study.id)

    def take(self) -> list[Chunk]:
        key, study = self.cluster.config.key, self.cluster.study.id
        found: list[Offer] = [o for o in self.cluster.mailbox().offers() if not o.worker]
        return [open_chunk(o.envelope, study, o.lease, key) for o in found if self.leases.take(o.lease, "w")]

    def commit(self, chunk: Chunk, outcome: Outcome) -> None:
        workspace = self.cluster.workspace
        with LedgerWriter(
            workspace.ledger_dir, "w", session=self.cluster.session, study_id=self.cluster.study.id
        ) as ledger:
            ledger.append(
                *(
                    RangeRecord(instance=chunk.instance, lo=a, hi=b, outcome=outcome, attempt=chunk.attempt)
                    for a, b in pieces_of(chunk)
                )
            )

    def end(self, chunk: Chunk, outcome: Outcome = Outcome.OK) -> None:
        self.commit(chunk, outcome)
        runs = tuple((a, b, int(outcome)) for a, b in pieces_of(chunk))
        self.report(chunk, result=ChunkResult(chunk=chunk, runs=runs))

    def report(self, chunk: Chunk, **report: Any) -> None:
        text = seal_report(
            ChunkReport(chunk=chunk, worker="w", **report), self.cluster.study.id, self.cluster.config.key
        )
        assert self.leases.settle(chunk.lease, text)


def own(cluster: Cluster, tools: Tools | None = None) -> Ownership:
    """Own the study by force, as if whoever owned it had been killed."""
    tools = tools or cluster.tools()
    mailbox = tools.backend.mailbox(cluster.study.id)
    standing = mailbox.own(cluster.session, force=True)
    return Ownership(cluster.study, cluster.session, mailbox, standing, tools)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Cluster]:
    return lambda *instances: Cluster(tmp_path, *instances).publish()


@pytest.fixture
def make_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """For workers that run."""
    for module, times in QUICKLY.items():
        for name, seconds in times.items():
            monkeypatch.setattr(module, name, seconds)
    monkeypatch.setenv("MERLIN_LEASE_S", "1")
    made: list[Cluster] = []

    def make(*instances: Any) -> Cluster:
        made.append(Cluster(tmp_path, *instances).publish())
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


Make = Callable[..., Cluster]


# ----------------------------------------------------------- what an heir has to know


def test_a_limit_of_failures_that_the_last_owner_did_not_hear_of_stops_the_study(make: Make) -> None:
    cluster = make(step("sim", 50, max_failures=0))
    hands = Hands(cluster)
    own(cluster).offer()
    (chunk,) = hands.take()
    hands.end(chunk, Outcome.FAILED)  # and the owner is killed
    heir = own(cluster)
    heir.work(0.0)
    assert heir.is_over
    assert cluster.data_of("run_stopped")[0]["reason"].startswith("max_failures")


def test_failures_of_a_process_that_died_afterwards_stop_the_study(make: Make) -> None:
    cluster = make(step("sim", 50, max_failures=0))
    hands = Hands(cluster)
    owner = own(cluster)
    owner.offer()
    (chunk,) = hands.take()
    hands.commit(chunk, Outcome.FAILED)
    hands.report(chunk, died="SIGSEGV")
    owner.work(0.0)
    assert owner.is_over


def test_a_failure_on_a_bad_node_that_took_its_chunk_just_then_runs_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 4))
    hands = Hands(cluster)
    owner = own(cluster)
    owner.offer()
    offers = owner._mailbox.offers

    def taken_meanwhile() -> list[Offer]:
        found = offers()
        for chunk in hands.take():
            hands.commit(chunk, Outcome.FAILED)
        return found

    monkeypatch.setattr(owner._mailbox, "offers", taken_meanwhile)
    monkeypatch.setattr(owner._workforce, "names_on", lambda node: {"w"})
    owner.owner.bad_nodes.quarantined["bad"] = "sim"
    owner._quarantine("bad")
    owner._write()
    assert cluster.outcomes() == {}


def test_a_death_counts_once_however_often_it_is_heard_of(make: Make) -> None:
    """The ledger has it already, and the server does not know yet that its letter was dealt with."""
    cluster = make(step("sim", 1, crash_limit=3))
    hands = Hands(cluster)
    for num in range(3):
        owner = own(cluster)
        owner.settle()
        owner.offer()
        assert cluster.outcomes() == {}, f"after {num} deaths"
        (chunk,) = hands.take()
        hands.report(chunk, died="SIGSEGV")
        owner.settle()
    assert cluster.outcomes() == {"FAILED": 1}
    (failure,) = cluster.ledger().failures()
    assert failure.failure.cause == "killed its worker 3 times when it ran alone (SIGSEGV)"


def test_a_letter_that_cannot_be_dealt_with_does_not_cost_what_came_before(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 1), step("post", 1))
    hands = Hands(cluster)
    owner = own(cluster)
    owner._workforce.slots = {"merlin": 2}
    owner._workforce.next_count = float("inf")
    owner.offer()
    first, second = hands.take()
    later = Deferred(chunk=Chunk(instance=first.instance, lo=0, hi=1, retries=7, attempt=1), delay_s=1000.0)
    hands.report(first, result=ChunkResult(chunk=first, runs=(), deferred=(later,)))
    hands.report(second, trouble="nobody foresaw this")
    reported = owner.owner.reported
    monkeypatch.setattr(
        owner.owner,
        "reported",
        lambda report, *more: 1 / 0 if report.trouble else reported(report, *more),
    )
    owner.work(0.0)
    assert owner.is_out_of_sync
    heir = own(cluster)
    assert heir.owner.scheduler.counts()[first.instance].queued == 1


def test_a_retry_that_is_due_while_no_slot_is_free_does_not_keep_the_owner_busy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 3))
    hands, waits = Hands(cluster), []
    owner = own(cluster)
    owner._workforce.next_count = float("inf")
    owner.offer()
    (chunk,) = hands.take()
    owner.work(0.0)
    later = Deferred(chunk=Chunk(instance="sim", lo=0, hi=1, retries=1), delay_s=-1.0)
    hands.report(chunk, result=ChunkResult(chunk=chunk, runs=(), deferred=(later,)))
    owner.work(0.0)
    letters = owner._mailbox.letters
    monkeypatch.setattr(owner._mailbox, "letters", lambda read, wait_s: waits.append(wait_s) or letters(read))  # type: ignore[func-returns-value]
    owner.work(9.0)
    assert waits == [9.0]
    hands.take()
    owner.work(0.0)
    assert [again.retries for again in hands.take()] == [1]


def test_a_study_that_failed_hard_is_interrupted_by_the_heir_of_an_owner_that_died_just_then(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 1), step("post", 1))
    hands, died = Hands(cluster), RedisUnreachableError("away")

    def trouble(name: str, is_done: bool) -> None:
        if name == "withdraw" and not is_done:  # the ledger has it that the run has stopped
            raise died

    backend = MemoryBackend(cluster.server, lease_s=LEASE_S, trouble=trouble)
    tools = Tools(config=cluster.config, backend=backend, carrier=cluster.carrier, lease_s=LEASE_S)
    owner = own(cluster, tools)
    owner._workforce.slots, owner._workforce.next_count = {"merlin": 2}, float("inf")
    owner.offer()
    first, _ = hands.take()
    hands.report(first, result=ChunkResult(chunk=first, runs=(), stop="hard_fail"))
    with pytest.raises(RedisUnreachableError):
        owner.settle()
    heir = own(cluster)
    monkeypatch.setattr(ownership, "INTERRUPT_AGAIN_S", 0.0)
    for _ in range(2):  # a process that was about to start did not hear of the first one
        heir.settle()
        commands, _ = cluster.tools().backend.registry.receive("w")
        assert [command.op for command in commands] == ["interrupt"]


# --------------------------------------------------------------- owners that cannot work


def test_the_ledger_is_read_once_for_many_chunks_that_were_cut_off(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger of ten thousand segments takes a while, and thousands of chunks are interrupted when a job ends."""
    cluster = make(step("sim", 400))
    hands = Hands(cluster)
    owner = own(cluster)
    owner._workforce.slots, owner._workforce.next_count = {"merlin": 60}, float("inf")
    owner.offer()
    chunks = hands.take()
    assert len(chunks) == 60
    for chunk in chunks:
        hands.report(chunk, is_interrupted=True)
    reads: list[int] = []
    read = Conductor.read
    monkeypatch.setattr(Conductor, "read", lambda self: reads.append(1) or read(self))  # type: ignore[func-returns-value]
    owner.settle()
    assert owner.owner.scheduler.num_running == 0
    assert len(reads) <= 2


def test_an_owner_stays_it_while_it_deals_with_many_letters(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 400))
    hands = Hands(cluster)
    owner = own(cluster)
    owner._workforce.slots, owner._workforce.next_count = {"merlin": 20}, float("inf")
    owner.offer()
    for chunk in hands.take():
        hands.end(chunk)
    handle = owner._handle
    monkeypatch.setattr(ownership, "RENEW_S", 0.0)
    monkeypatch.setattr(owner, "_handle", lambda letter: (cluster.server.advance(1.0), handle(letter)))
    owner.settle()
    assert not cluster.mailbox().own(cluster.session).is_ours


def test_an_owner_that_cannot_write_lets_another_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may have lost the file system that the others see."""
    cluster = make(step("sim", 1))
    hands = Hands(cluster)
    owner = own(cluster)
    owner.offer()
    (chunk,) = hands.take()
    hands.report(chunk, died="SIGSEGV")
    monkeypatch.setattr(ownership, "RETRY_S", 0.0)
    monkeypatch.setattr(ownership, "MAX_TROUBLE_S", 0.2)

    def fail(*_: Any) -> None:
        raise LedgerError("stale file handle")

    monkeypatch.setattr(owner._conductor._ledger, "append", fail)

    def work() -> bool:
        owner.work(0.0)
        return False

    with pytest.raises(LedgerError):
        wait_until(work)
    assert cluster.mailbox().own(cluster.session).is_ours


def test_an_owner_whose_file_system_hangs_when_it_takes_over_does_not_stay_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 1))
    is_answering = threading.Event()
    read = Conductor.read
    monkeypatch.setattr(Conductor, "read", lambda self: is_answering.wait(60) and read(self))
    monkeypatch.setattr(ownership, "RENEW_S", 0.01)
    monkeypatch.setattr(ownership, "MAX_TAKE_OVER_S", 0.2)

    def take_over() -> None:
        with pytest.raises(OwnershipLostError):
            own(cluster)

    thread = threading.Thread(target=take_over, daemon=True)
    thread.start()

    def is_free() -> bool:
        cluster.server.advance(1.0)
        return cluster.mailbox().own(cluster.session).is_ours

    wait_until(lambda: any(s.until > cluster.server.now for s in cluster.server.studies.values()))
    wait_until(is_free)
    is_answering.set()
    thread.join(60)


# ------------------------------------------------------------- commands between two statements


class Killed(BaseException):
    """In place of a signal that nobody can handle."""


def killed_at(cluster: Cluster, call: str, number: int) -> Tools:
    """For a process that is killed when it asks the server for this so often."""
    calls: list[str] = []

    def trouble(name: str, is_done: bool) -> None:
        if name == call and not is_done:
            calls.append(name)
            if len(calls) == number:
                raise Killed

    backend = MemoryBackend(cluster.server, lease_s=LEASE_S, trouble=trouble)
    return Tools(config=cluster.config, backend=backend, carrier=cluster.carrier, lease_s=LEASE_S)


@pytest.mark.parametrize(
    ("call", "number", "is_written"),
    [
        ("own", 1, False),
        ("time", 1, False),
        ("time", 2, True),
        ("advertise", 1, True),
        ("open", 1, True),
        ("own", 2, True),
        ("offer", 1, True),
        ("release", 1, True),
    ],
)
@pytest.mark.parametrize("has_owner", [True, False])
def test_a_restart_that_is_killed_anywhere_leaves_a_study_that_goes_on(
    make_live: Make, call: str, number: int, is_written: bool, has_owner: bool
) -> None:
    """The run still goes on, but nothing of it runs now."""
    cluster = make_live(step("sim", 3))
    hands = Hands(cluster)
    owner = own(cluster)
    owner.offer()
    (chunk,) = hands.take()
    hands.end(chunk, Outcome.FAILED)
    owner.settle()
    if not has_owner:
        owner.release()
    with suppress(Killed):
        again = Again(failed=True)
        open_study._Publisher(cluster.workspace, killed_at(cluster, call, number), again).open()
    cluster.messages()  # are lost
    cluster.worker().start()
    cluster.wait_until_over(pass_s=5.0)
    assert cluster.outcomes() == ({"OK": 3} if is_written else {"OK": 2, "FAILED": 1})


@pytest.mark.parametrize("call", ["own", "letters", "offer", "release"])
def test_a_command_that_slept_after_it_began_a_run_leaves_the_run_to_its_owner(make: Make, call: str) -> None:
    cluster = make(step("sim", 3))
    cluster.mailbox().drop()
    cluster.tools().backend.registry.withdraw(cluster.study.id)

    def trouble(name: str, is_done: bool) -> None:
        if name == call and not is_done:
            (info,) = cluster.server.open_studies.values()
            assert cluster.mailbox().own(info.session, force=True).is_ours

    backend = MemoryBackend(cluster.server, lease_s=LEASE_S, trouble=trouble)
    tools = Tools(config=cluster.config, backend=backend, carrier=cluster.carrier, lease_s=LEASE_S)
    opened = open_study._Publisher(cluster.workspace, tools, Again()).open()
    assert (opened.resumed, opened.planned, opened.is_complete) == (True, 3, False)


@pytest.mark.parametrize("call", ["advertise", "open", "release"])
def test_a_study_that_is_cancelled_while_it_is_published_again_is_over(make: Make, call: str) -> None:
    cluster = make(step("sim", 3))
    cluster.server.lose_studies()
    others = cluster.tools().backend

    def trouble(name: str, is_done: bool) -> None:
        if name == call and not is_done:
            control._record_stop(cluster.workspace, cluster.tools(), CANCELLED)
            others.mailbox(cluster.study.id).drop()
            others.registry.withdraw(cluster.study.id)

    backend = MemoryBackend(cluster.server, lease_s=LEASE_S, trouble=trouble)
    tools = Tools(config=cluster.config, backend=backend, carrier=cluster.carrier, lease_s=LEASE_S)
    with suppress(StudyGoneError):
        assert open_study.publish_again(cluster.study, tools) == "over"
    assert cluster.is_over()
    assert not is_published(cluster.ledger())


def test_a_study_that_redis_has_lost_can_be_purged(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next worker would publish it again."""
    cluster = make(step("sim", 3))
    cluster.server.lose_studies()
    monkeypatch.setattr(control, "make_tools", lambda config: cluster.tools())
    assert control.stop(cluster.workspace, cluster.config, "purged") == 0
    assert cluster.data_of("run_stopped") == [{"reason": "purged"}]
    assert open_study.publish_again(cluster.study, cluster.tools()) == "over"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_is_damaged_of_one_study_does_not_cost_the_leases_of_another(make_live: Make) -> None:
    cluster = make_live(step("sim", 8))
    worker = cluster.worker(lambda work: work.hang(), concurrency=2).start()  # type: ignore[func-returns-value]
    wait_until(lambda: worker.num_running == 2, cluster.show)
    bad, good = worker.engine._runs.all()
    bad.study = SimpleNamespace(id="bad")  # type: ignore[assignment]
    worker.engine._upkeep.stop()
    renewed: list[Any] = []

    def renew(leases: Any) -> set[str]:
        renewed.append(set(leases))
        raise ExecutionError("damaged")

    bad.leases = SimpleNamespace(renew=renew)  # type: ignore[assignment]
    good.leases = SimpleNamespace(renew=lambda leases: renewed.append(set(leases)) or set())  # type: ignore[assignment]
    worker.engine._upkeep._renewed = worker.engine._upkeep._registered = 0.0
    before = cluster.server.workers[worker.name].last_beat
    cluster.server.advance(5.0)
    worker.engine._upkeep.tick(time.monotonic())
    assert renewed[:2] in ([{bad.chunk.lease}, {good.chunk.lease}], [{good.chunk.lease}, {bad.chunk.lease}])
    assert cluster.server.workers[worker.name].last_beat > before
    worker.vanish()


# --------------------------------------------------------------------------- messages


def test_a_lost_message_is_sent_again_though_another_study_always_fills_the_queue(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(step("sim", 1))
    owner = own(cluster)
    owner.offer()
    assert len(cluster.messages()) == 1  # lost
    cluster.carrier.send("merlin", [{"of": "another study"}])
    began, num_sent = owner._now(), []
    for after in range(0, 1000, 5):
        monkeypatch.setattr(owner, "_now", lambda: began + after)  # noqa: B023
        owner._look_for_overdue = 0.0
        num_sent += [after] * owner.offer()
    assert num_sent == [60, 180, 420, 900]


# ------------------------------------------------- a file system that shows records late


def test_what_a_dead_process_has_written_counts_though_its_owner_does_not_see_it_yet(
    make_live: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere its records are seen late: they come with the report, and an heir finds them in the letter."""
    cluster = make_live(step("post", 64))
    empty = cluster.ledger()
    monkeypatch.setattr(Conductor, "read", lambda self: setattr(self, "_replay", empty) or empty)

    def run(work: Work) -> None:
        work.commit((work.chunk.lo, work.chunk.hi))
        work.exit(1)

    worker = cluster.worker(run, concurrency=1)
    with control.owning(cluster.workspace, cluster.tools()) as owner:
        owner.offer()
    worker.engine.handle(wait_until(lambda: cluster.carrier.receive("merlin")))
    owner = own(cluster)
    owner.settle()
    assert owner.owner.scheduler.counts()["post"].ok == 1
    owner.offer()
    assert own(cluster).owner.scheduler.counts()["post"].ok == 1


def test_workers_that_find_their_redis_again_do_not_run_what_another_run_has_taken_over(make: Make) -> None:
    cluster = make(step("sim", 4))
    hands = Hands(cluster)
    own(cluster).offer()
    (chunk,) = hands.take()
    Conductor(cluster.workspace).close()  # as `merlin restart --local`, while Redis was away
    with pytest.raises(StudyGoneError, match="another run"):
        own(cluster)
    assert cluster.tools().backend.registry.studies() == []
    with pytest.raises(StudyGoneError):
        hands.leases.renew([chunk.lease])
