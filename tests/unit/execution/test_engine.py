"""Workers with real engines, owners and ledgers, against a server, a broker and processes that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster import LEASE_S, Cluster, Worker, run_ok
from msgspec.structs import replace
from small_plans import same, step
from thread_processes import Work
from waiting import wait_until

from merlin.errors import ExecutionError, RedisUnreachableError, StudyGoneError
from merlin.execution.distributed import admission, chunk_runs, leaving, owners, ownership, upkeep, workforce
from merlin.execution.distributed.chunk_runs import MAX_FAILED_STARTS
from merlin.execution.distributed.control import owning
from merlin.execution.distributed.leaving import lease_s
from merlin.execution.distributed.worker_pool import ChunkRun
from merlin.execution.machine import Machine
from merlin.execution.wire import Crash, Error
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.testing.memory import MemoryCarrier

QUICKLY: dict[Any, dict[str, float]] = {
    chunk_runs: {"RETRY_S": 0.01, "ENDING_S": 0.2, "INTERRUPT_S": 0.2},
    leaving: {"RETRY_S": 0.01, "INTERRUPT_S": 0.2, "LAST_S": 0.0},
    owners: {"WAIT_S": 0.02, "TICK_S": 0.01, "ASK_S": 0.02, "LIST_S": 0.05, "NOTICE_S": 0.0, "RETRY_S": 0.01},
    ownership: {"RENEW_S": 0.05, "EXPIRE_S": 0.01, "RETRY_S": 0.01},
    workforce: {"SLOTS_S": 0.02},
    upkeep: {"TICK_S": 0.01},
    admission: {"HOLD_S": 0.05},
}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    for module, times in QUICKLY.items():
        for name, seconds in times.items():
            monkeypatch.setattr(module, name, seconds)
    monkeypatch.setenv("MERLIN_LEASE_S", "1")  # of these processes' clocks, not of the server's
    made: list[Cluster] = []

    def make(*instances: Any, **options: Any) -> Cluster:
        made.append(Cluster(tmp_path, *(instances or (step("sim", 8),)), **options))
        return made[-1].publish()

    yield make
    for cluster in made:
        cluster.close()


Make = Callable[..., Cluster]
# a thread of a worker that has vanished ends at its next call
vanishing = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Once:
    """Does something else with the first chunk than with the others."""

    def __init__(self, first: Callable[[Work], Any]) -> None:
        self._first, self._lock, self.num = first, threading.Lock(), 0

    def __call__(self, work: Work) -> ChunkResult:
        with self._lock:
            self.num += 1
            is_first = self.num == 1
        if is_first and (result := self._first(work)) is not None:
            return result  # type: ignore[no-any-return]
        return run_ok(work)


class Gate:
    """Chunks wait in it until it is opened."""

    def __init__(self) -> None:
        self.is_open, self.num_waiting = threading.Event(), 0

    def __call__(self, work: Work) -> ChunkResult:
        self.num_waiting += 1
        self.is_open.wait()
        return run_ok(work)


# ----------------------------------------------------------------- whole studies


def test_a_study_runs_to_its_end(make: Make) -> None:
    cluster = make(step("sim", 2000), step("post", 2000, same("sim")))
    cluster.worker(concurrency=4).start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert cluster.events() == ["run_started", "run_finished"]
    assert cluster.messages() == []


def test_two_engines_share_a_study(make: Make) -> None:
    cluster = make(step("sim", 500), step("post", 500, same("sim")))
    gates = [Gate(), Gate()]
    for gate in gates:
        cluster.worker(gate).start()
    for gate in gates:
        wait_until(lambda: gate.num_waiting)  # noqa: B023
    for gate in gates:
        gate.is_open.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert {name for name, *_ in cluster.ran} == {"celery@0", "celery@1"}


def owner_and_another(cluster: Cluster, first: Any, second: Any) -> tuple[Worker, Worker]:
    """The first one owns the study, and runs something; then the other one starts."""
    owner = cluster.worker(first).start()
    wait_until(lambda: owner.num_running, cluster.show)
    return owner, cluster.worker(second).start()


@vanishing
def test_an_owner_that_vanishes_without_a_word_is_replaced(make: Make) -> None:
    cluster = make(step("sim", 300), step("post", 300, same("sim")))
    gate = Gate()
    owner, other = owner_and_another(cluster, gate, run_ok)
    owner.vanish()
    wait_until(lambda: len(cluster.ran) and not other.num_running)  # nothing more is offered
    cluster.wait_until_over(pass_s=5.0)
    cluster.expect_all_ok()
    gate.is_open.set()


def test_an_owner_that_slept_meets_another_one_and_changes_nothing(make: Make) -> None:
    """Both believe that they own the study; the older one has chunks that run, too."""
    cluster = make(step("sim", 300), step("post", 300, same("sim")))
    gate = Gate()
    owner, _ = owner_and_another(cluster, gate, run_ok)
    owner.awake.clear()
    gate.is_open.set()  # its processes go on, and may not commit
    cluster.wait_until_over(pass_s=5.0)
    owner.awake.set()
    wait_until(lambda: not owner.num_running)
    cluster.expect_all_ok()
    assert cluster.events().count("run_finished") == 1


def test_an_owner_that_slept_only_a_moment_too_long_does_no_harm(make: Make) -> None:
    cluster = make(step("sim", 300))
    gate = Gate()
    owner_and_another(cluster, gate, run_ok)
    for _ in range(3):
        heir = cluster.mailbox()
        assert heir.own(cluster.session, force=True).is_ours
        heir.offer({}, heir.letters()[-1].id)  # as if it had dealt with them
        heir.release()
    gate.is_open.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()


@vanishing
@pytest.mark.parametrize("call", ["offer", "void", "letters", "offers", "renew_ownership"])
def test_an_owner_may_die_between_any_two_of_its_calls(make: Make, call: str) -> None:
    """After "offer": what it has offered is in no message."""
    cluster = make(step("sim", 300), step("post", 300, same("sim")))
    owner = cluster.worker()
    owner.lost_replies[call] = [SystemExit(0)]
    owner.start()
    wait_until(lambda: not owner.lost_replies[call])
    owner.vanish()
    cluster.worker().start()
    cluster.wait_until_over(pass_s=5.0)
    cluster.expect_all_ok()


def test_a_study_that_the_server_has_lost_is_published_again_from_its_ledger(make: Make) -> None:
    cluster = make(step("sim", 300), step("post", 300, same("sim")))
    gate = Gate()
    workers = [cluster.worker(Once(run_ok)).start(), cluster.worker(gate).start()]
    wait_until(lambda: gate.num_waiting and cluster.num_committed())
    cluster.server.lose_studies()
    wait_until(lambda: not workers[1].num_running)  # what runs is void
    gate.is_open.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert cluster.events().count("republished") == 1


def test_a_study_that_has_ended_is_not_published_again(make: Make) -> None:
    cluster = make()
    cluster.worker().start()
    cluster.wait_until_over()
    cluster.tools().backend.registry.advertise(cluster.study.info(cluster.session, 0.0))
    cluster.server.lose_studies()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert "republished" not in cluster.events()


def test_letters_that_the_server_loses_cost_nothing_but_time(make: Make) -> None:
    cluster = make(step("sim", 100))
    gate = Gate()
    owner, _ = owner_and_another(cluster, gate, run_ok)
    owner.awake.clear()
    wait_until(lambda: cluster.num_committed() and not cluster.mailbox().names() - held_by(cluster, owner))
    with cluster.server.changed:
        cluster.server.studies[cluster.study.id].letters.clear()
    gate.is_open.set()
    owner.awake.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()


def held_by(cluster: Cluster, worker: Worker) -> set[str]:
    return {offer.lease for offer in cluster.mailbox().offers() if offer.worker == worker.name}


class Unreliable(MemoryCarrier):
    """Loses every third message, doubles every fourth, and delivers every fifth with the one after it."""

    def __init__(self) -> None:
        super().__init__()
        self._num = 0
        self._late: list[tuple[str, Any]] = []

    def send(self, queue: str, envelopes: Any, *, is_retry: bool = False) -> None:
        for envelope in envelopes:
            self._num += 1
            if self._num % 5 == 0:
                self._late.append((queue, [envelope]))
                continue
            times = 0 if self._num % 3 == 0 else 2 if self._num % 4 == 0 else 1
            super().send(queue, [envelope] * times, is_retry=is_retry)
            while self._late:
                super().send(*self._late.pop())


def test_messages_that_are_lost_doubled_or_late_change_nothing(make: Make) -> None:
    cluster = make(step("sim", 200), step("post", 200, same("sim")), carrier=Unreliable())
    for _ in range(2):
        cluster.worker().start()
    cluster.wait_until_over(pass_s=0.5)
    cluster.expect_all_ok()


def test_an_outage_of_the_server_is_waited_out(make: Make) -> None:
    cluster = make(step("sim", 50))
    worker = cluster.worker()
    for name in ("own", "renew_ownership", "letters", "offer", "take", "renew", "settle", "expire", "beat"):
        worker.trouble[name] = [RedisUnreachableError("away") for _ in range(3)]
    worker.start()
    cluster.wait_until_over(pass_s=1.0)
    cluster.expect_all_ok()


def test_a_report_of_which_the_answer_was_lost_counts_once(make: Make) -> None:
    cluster = make(step("sim", 50))
    worker = cluster.worker()
    worker.lost_replies["settle"] = [RedisUnreachableError("away") for _ in range(5)]
    worker.lost_replies["offer"] = [RedisUnreachableError("away") for _ in range(5)]
    worker.start()
    cluster.wait_until_over(pass_s=1.0)
    cluster.expect_all_ok()


@pytest.mark.parametrize("error", [StudyGoneError("gone"), ExecutionError("no"), RuntimeError("a bug")])
def test_a_report_that_fails_leaves_no_process_behind(make: Make, error: Exception) -> None:
    cluster = make(step("sim", 20))
    worker = cluster.worker()
    worker.trouble["settle"] = [error]
    worker.start()
    cluster.wait_until_over(pass_s=5.0)  # what it has committed is in the ledger when its lease runs out
    cluster.expect_all_ok()


def test_a_broker_that_is_away_delays_the_study(make: Make) -> None:
    cluster = make(step("sim", 50))
    worker = cluster.worker()
    worker.trouble["send message"] = [ExecutionError("no broker")] * 3
    worker.trouble["empty"] = [ExecutionError("no broker")] * 3
    worker.start()
    cluster.wait_until_over(pass_s=1.0)
    cluster.expect_all_ok()


def test_one_sick_study_does_not_keep_the_others_waiting(make: Make, tmp_path: Path) -> None:
    cluster = make(step("sim", 50))
    registry = cluster.tools().backend.registry
    for number, workspace in enumerate(("/nowhere", str(cluster.workspace.path))):
        info = cluster.study.info("1", 0.0)
        registry.advertise(replace(info, study_id=f"sick{number}", workspace=workspace))
    cluster.worker().start()
    wait_until(lambda: cluster.study.id not in cluster.server.open_studies, cluster.show)
    assert cluster.outcomes() == {"OK": 50}


# ------------------------------------------------------- processes that misbehave


@pytest.mark.parametrize(
    ("first", "died"),
    [
        (lambda work: (work.send_garbage(), work.hang()), "no message"),
        (lambda work: (work.send_garbage(b'{"op": "result"}'), work.hang()), "no message"),
        (lambda work: work.close_socket(), "SIGKILL"),
        (lambda work: work.exit(3), "exit code 3"),
        (lambda work: work.exit(-signal.SIGSEGV), "SIGSEGV"),
        (lambda work: (work.send(Crash("MemoryError: no")), work.exit(1)), "MemoryError: no"),
        (lambda work: (work.send(Crash("it hangs")), work.hang()), "it hangs"),
    ],
)
def test_a_process_that_dies_in_whatever_way_costs_no_task(
    make: Make, first: Callable[[Work], Any], died: str
) -> None:
    cluster = make()
    worker = cluster.worker(Once(first)).start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    (lost,) = cluster.data_of("worker_lost")
    assert died in lost["died"]
    assert lost["worker"] in {process.name for process in worker.processes}


def test_a_chunk_that_kills_every_process_fails_and_no_other(make: Make) -> None:
    def run(work: Work) -> ChunkResult:
        if work.chunk.lo <= 3 < work.chunk.hi:
            work.exit(-signal.SIGSEGV)
        return run_ok(work)

    cluster = make(step("sim", 8, canary=0))
    cluster.worker(run).start()
    cluster.wait_until_over()
    assert cluster.outcomes() == {"OK": 7, "FAILED": 1}


def test_what_a_process_has_committed_before_it_died_counts(make: Make) -> None:
    cluster = make(step("sim", 1), step("post", 64))
    sizes: list[int] = []

    def run(work: Work) -> ChunkResult:
        lo, hi = work.chunk.lo, work.chunk.hi
        if hi - lo > 1 and not sizes:
            sizes.append(hi - lo)
            work.commit((lo, lo + 1))
            work.exit(1)
        return run_ok(work)

    cluster.worker(run).start()
    cluster.wait_until_over()
    assert sizes
    cluster.expect_all_ok()


@pytest.mark.parametrize("is_hanging", [True, False])
def test_a_process_that_reports_trouble_stops_the_study(make: Make, is_hanging: bool) -> None:
    def run(work: Work) -> None:
        work.commit((work.chunk.lo, work.chunk.lo + 1))
        work.send(Error("the disk is full"))
        if is_hanging:
            work.hang()
        work.exit(1)

    cluster = make()
    cluster.worker(run, concurrency=1).start()
    cluster.wait_until_over()
    assert cluster.data_of("run_stopped")[0]["reason"] == "the disk is full"
    assert 1 <= cluster.outcomes()["OK"] <= 2  # one more may have been taken meanwhile
    assert "worker_lost" not in cluster.events()


def test_a_chunk_that_is_not_ours_any_more_is_not_committed(make: Make) -> None:
    cluster = make(step("sim", 1))
    gate = Gate()
    cluster.worker(gate, concurrency=1).start()
    wait_until(lambda: gate.num_waiting)
    with cluster.server.changed:
        study = cluster.server.studies[cluster.study.id]
        study.ends.clear()
        study.held.clear()
    gate.is_open.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert gate.num_waiting == 2


def test_processes_are_used_again_within_a_run(make: Make) -> None:
    cluster = make(step("sim", 50))
    worker = cluster.worker(concurrency=1).start()
    cluster.wait_until_over()
    assert len(cluster.ran) > 2
    assert len(worker.processes) == 1
    wait_until(lambda: worker.processes[0].process.poll() is not None)  # its study is over


def test_a_machine_that_can_start_no_process_gives_chunks_back(make: Make) -> None:
    cluster = make()
    worker = cluster.worker()
    worker.trouble["start"] = [ExecutionError("too many processes")] * 3
    worker.start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert "worker_lost" not in cluster.events()


@pytest.mark.parametrize("code", [1, -signal.SIGKILL])
def test_a_machine_on_which_no_process_starts_loses_its_worker_and_not_the_study(
    make: Make, code: int
) -> None:
    starts: list[int] = []

    def fail() -> None:
        starts.append(code)
        if len(starts) <= MAX_FAILED_STARTS:
            raise SystemExit(code)

    cluster = make(step("sim", 50))
    worker = cluster.worker(at_start=fail, concurrency=1).start()
    if code > 0:
        wait_until(lambda: worker.leaving.is_leaving)
        assert cluster.outcomes() == {}
        cluster.worker().start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert worker.leaving.is_leaving == (code > 0)  # what is killed may just have met the wrong moment
    assert cluster.events().count("run_stopped") == 0


def test_a_message_that_was_moved_to_our_queue_goes_to_its_own(make: Make) -> None:
    cluster = make(step("sim", 4), step("cold", 4, queue="cold"))
    cluster.worker(concurrency=1).start()
    moved = wait_until(lambda: cluster.carrier.receive("cold"), cluster.show)
    cluster.carrier.send("merlin", [moved])
    assert wait_until(lambda: cluster.carrier.receive("cold")) == moved
    wait_until(lambda: cluster.server.counters.get("refused") == 1)
    assert {instance for _, instance, *_ in cluster.ran} <= {"sim"}


# --------------------------------------------------------------------------- flags


def test_a_late_flag_does_not_reach_into_somebody_elses_descriptor(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace()
    run = ChunkRun(nothing, Chunk(instance="sim", lo=0, hi=4), nothing, "s", nothing)
    fd = run._fd
    run.close()
    with (tmp_path / "ledger").open("wb") as file:
        if file.fileno() != fd:
            os.dup2(file.fileno(), fd)
        run.interrupt()
        run.void()
        if file.fileno() != fd:
            os.close(fd)
    assert (tmp_path / "ledger").read_bytes() == b""


# ------------------------------------------------------------------------- leaving


def test_a_worker_that_leaves_lets_its_chunks_end_and_takes_no_more(make: Make) -> None:
    cluster = make(step("sim", 50))
    gate = Gate()
    worker = cluster.worker(gate, concurrency=1).start()
    wait_until(lambda: gate.num_waiting)
    worker.leaving.is_patient = True
    worker.engine.shut_down()
    gate.is_open.set()
    wait_until(lambda: not worker.num_running)
    assert cluster.outcomes() == {"OK": 1}
    worker.close()
    assert cluster.server.workers == {}
    cluster.worker().start()
    cluster.wait_until_over()  # no time has to pass: the ownership was released
    cluster.expect_all_ok()


def test_a_leaving_worker_puts_messages_back(make: Make) -> None:
    cluster = make()
    worker = cluster.worker()
    with owning(cluster.workspace, cluster.tools()) as ownership:
        ownership.offer()
    envelope = wait_until(lambda: cluster.carrier.receive("merlin"))
    worker.leaving.is_leaving = True
    worker.engine.handle(envelope)
    assert cluster.carrier.receive("merlin") == envelope
    assert cluster.mailbox().num_held() == 0


def test_a_leaving_worker_gives_back_what_it_has_just_taken(make: Make) -> None:
    cluster = make()
    worker = cluster.worker()
    with owning(cluster.workspace, cluster.tools()) as ownership:
        ownership.offer()
    start = worker.engine._pool._start

    def told_meanwhile(*args: Any, **options: Any) -> Any:
        worker.leaving.is_leaving = True
        return start(*args, **options)

    worker.engine._pool._start = told_meanwhile
    worker.engine.handle(wait_until(lambda: cluster.carrier.receive("merlin")))
    assert cluster.mailbox().names() == set()
    assert [letter.kind for letter in cluster.mailbox().letters()] == ["taken", "report"]
    assert cluster.ran == []


def test_a_worker_in_a_hurry_interrupts_and_then_kills(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERLIN_STOP_GRACE_S", "0")

    def run(work: Work) -> None:
        work.commit((work.chunk.lo, work.chunk.lo + 1))
        work.hang()

    cluster = make(step("sim", 50))
    worker = cluster.worker(run, concurrency=1).start()
    wait_until(cluster.num_committed)
    worker.engine.shut_down()
    wait_until(lambda: not worker.num_running)
    assert worker.leaving.has_ended.wait(60)  # whatever hangs
    worker.close()
    cluster.worker().start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert "worker_lost" not in cluster.events()


def test_an_interrupted_process_that_ends_in_time_is_not_killed(make: Make) -> None:
    def run(work: Work) -> ChunkResult:
        work.wait_for_stop()
        return ChunkResult(chunk=work.chunk, runs=((work.chunk.lo, work.chunk.hi, int(Outcome.INTERRUPTED)),))

    cluster = make(step("sim", 2))
    worker = cluster.worker(run, concurrency=1).start()
    wait_until(lambda: worker.num_running)
    worker.run = run_ok
    cluster.tools().backend.registry.send([worker.name], "interrupt", study=cluster.study.id)
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert worker.processes[0].process.returncode == 0


def test_a_worker_without_redis_and_without_time_stops_waiting(make: Make) -> None:
    cluster = make()
    worker = cluster.worker(concurrency=1)
    worker.trouble["settle"] = [RedisUnreachableError("away") for _ in range(100_000)]
    worker.start()
    wait_until(lambda: len(worker.trouble["settle"]) < 100_000)
    assert worker.num_running == 0  # it has ended; its report waits
    worker.leaving.is_leaving = True
    worker.leaving.out_of_time.set()
    worker.close()


def test_a_patient_worker_that_is_told_again_hurries(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERLIN_STOP_GRACE_S", "0")
    worker = make().worker()
    worker.leaving.is_patient = True
    worker.engine.shut_down()
    assert worker.leaving.is_leaving
    assert worker.leaving.is_patient
    worker.engine.shut_down()
    assert worker.leaving.has_ended.wait(60)


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_times_in_the_environment_are_numbers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MERLIN_LEASE_S", text)
    with pytest.raises(ExecutionError, match="MERLIN_LEASE_S"):
        lease_s()


# -------------------------------------------------------------- commands and leases


@pytest.mark.parametrize("op", ["stop", "stop_now"])
def test_a_command_ends_a_worker(make: Make, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERLIN_STOP_GRACE_S", "1000")
    cluster = make(step("sim", 50))
    gate = Gate()
    worker = cluster.worker(gate if op == "stop" else lambda work: work.wait_for_stop(), concurrency=1)  # type: ignore[func-returns-value]
    worker.start()
    wait_until(lambda: worker.num_running)
    cluster.tools().backend.registry.send([worker.name], op)
    wait_until(lambda: worker.leaving.is_leaving)
    assert worker.leaving.is_patient == (op == "stop")
    cluster.tools().backend.registry.send([worker.name], "stop")  # a second one is no reason to hurry
    wait_until(lambda: not cluster.server.inboxes)
    assert worker.leaving.num_left == 1
    gate.is_open.set()
    wait_until(lambda: not worker.num_running)
    assert cluster.outcomes() == ({"OK": 1} if op == "stop" else {})


def test_a_command_to_drop_kills_what_runs_of_a_step(make: Make) -> None:
    cluster = make(step("sim", 2), step("other", 2))
    gate = Gate()
    worker = cluster.worker(gate).start()
    wait_until(lambda: gate.num_waiting == 2)
    with owning(cluster.workspace, cluster.tools()) as ownership:
        ownership.fail(["sim"], "cancelled")
    cluster.tools().backend.registry.send(None, "drop", study=cluster.study.id, instances=["sim"])
    wait_until(lambda: {r.instance for r in worker.engine.info().running} <= {"other"})
    gate.is_open.set()
    cluster.wait_until_over()
    assert (cluster.outcomes("sim"), cluster.outcomes("other")) == ({"FAILED": 2}, {"OK": 2})


def test_a_study_that_is_stopped_lets_what_runs_end(make: Make) -> None:
    cluster = make(step("sim", 50))
    gate = Gate()
    cluster.worker(gate).start()
    wait_until(lambda: gate.num_waiting == 2)
    with owning(cluster.workspace, cluster.tools()) as ownership:
        ownership.stop("enough")
        assert ownership.owner.running() == 2
    gate.is_open.set()
    cluster.wait_until_over()
    assert cluster.outcomes() == {"OK": 2}
    assert cluster.data_of("run_stopped") == [
        {"reason": "enough", "host": os.uname().nodename, "pid": os.getpid()}
    ]


@pytest.mark.parametrize("num_tasks", [1, 9])
def test_a_task_that_asks_the_workers_to_stop_leaves_the_rest_of_its_study_a_minute(
    make: Make, num_tasks: int
) -> None:
    cluster = make(step("sim", num_tasks))
    worker = cluster.worker(Once(lambda work: work.finish(stop="stop_workers")), concurrency=1).start()
    stranger = cluster.tools().backend.registry
    stranger.beat(replace(worker.engine.info(), name="celery@cold", queues=["cold"]))
    cluster.wait_until_over()
    cluster.expect_all_ok()  # the study itself is not stopped
    if num_tasks == 1:
        wait_until(lambda: worker.leaving.num_left)
    else:
        assert not worker.leaving.num_left
    assert stranger.receive("celery@cold") == ([], 0)


def test_a_process_that_was_stopped_for_long_is_killed(make: Make) -> None:
    cluster = make(step("sim", 20))
    worker = cluster.worker(lambda work: work.hang(), concurrency=1).start()  # type: ignore[func-returns-value]
    wait_until(lambda: worker.num_running)
    worker.run = run_ok
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        (process,) = worker.processes
        process.use_state_of(child.pid)
        wait_until(lambda: process.process.poll() is not None)
        child.kill()
    cluster.wait_until_over(pass_s=5.0)  # its lease has to run out
    cluster.expect_all_ok()


def test_a_lease_is_renewed_as_long_as_its_process_lives(make: Make) -> None:
    cluster = make(step("sim", 20))
    gate = Gate()
    cluster.worker(gate).start()
    wait_until(lambda: gate.num_waiting == 2)
    for _ in range(3):
        cluster.server.advance(LEASE_S / 2)
        wait_until(lambda: all(o.expires_s == LEASE_S for o in cluster.mailbox().offers() if o.worker))
    gate.is_open.set()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert gate.num_waiting == len(cluster.ran)


def test_an_outage_is_counted(make: Make) -> None:
    cluster = make()
    upkeep = cluster.worker().engine._upkeep
    upkeep.tick(time.monotonic())
    upkeep.tick(time.monotonic() + 100.0)
    assert cluster.server.counters == {"outages": 1}


def test_what_a_worker_says_is_in_the_servers_time(make: Make) -> None:
    cluster = make()
    cluster.server.advance(3600.0)
    worker = cluster.worker()
    worker.engine.report()
    (info,) = cluster.tools().backend.registry.workers()
    worker.engine.report()
    (again,) = cluster.tools().backend.registry.workers()
    assert abs(again.started - time.time()) > 3000
    assert info.name == again.name


# ------------------------------------------------------------- cores and GPUs


class Together:
    """Notes which steps ran beside each other."""

    def __init__(self) -> None:
        self._lock, self._running = threading.Lock(), list[str]()
        self.seen: set[tuple[str, ...]] = set()

    def __call__(self, work: Work) -> ChunkResult:
        with self._lock:
            self._running.append(work.chunk.instance)
            self.seen.add(tuple(sorted(self._running)))
        result = run_ok(work)
        with self._lock:
            self._running.remove(work.chunk.instance)
        return result


def test_a_wide_task_runs_beside_what_fits_and_nothing_else(make: Make) -> None:
    cluster = make(step("small", 40), step("wide", 8, resources={"procs": 3}))
    run = Together()
    cluster.worker(run, concurrency=4, machine=Machine(cores=(0, 1, 2, 3))).start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert all(kinds.count("wide") <= 1 and len(kinds) + 2 * kinds.count("wide") <= 4 for kinds in run.seen)


def test_a_step_with_gpus_waits_for_a_worker_that_has_them(make: Make) -> None:
    cluster = make(step("sim", 6), step("train", 4, resources={"gpus": 2}))
    cluster.worker(machine=Machine(cores=(0, 1), gpus=("0",))).start()
    wait_until(lambda: cluster.outcomes("sim") == {"OK": 6}, cluster.show)
    assert not cluster.outcomes("train")
    cluster.worker(machine=Machine(cores=(0, 1), gpus=("0", "1"))).start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
    assert {name for name, instance, *_ in cluster.ran if instance == "train"} == {"celery@1"}


def test_a_message_for_which_a_worker_has_no_gpus_goes_back_to_the_queue(make: Make) -> None:
    cluster = make(step("train", 3, resources={"gpus": 1}))
    with owning(cluster.workspace, cluster.tools()) as ownership:  # offered while no worker is there
        assert ownership.offer_and_release() == 1
    without = cluster.worker(machine=Machine(cores=(0, 1))).start()
    wait_until(lambda: without.num_sent >= 3, cluster.show)
    assert not cluster.ran
    cluster.worker(machine=Machine(cores=(0, 1), gpus=("0",))).start()
    cluster.wait_until_over()
    cluster.expect_all_ok()
