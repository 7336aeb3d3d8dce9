"""The engine of a Celery worker against a Redis, a ledger and worker processes that misbehave."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from merlin.config.load import find_config
from merlin.errors import (
    ExecutionError,
    LedgerError,
    MerlinError,
    ProgressGoneError,
    ProgressUnreachableError,
)
from merlin.execution.distributed import crew, engine
from merlin.execution.distributed.crew import Crew, Run
from merlin.execution.distributed.engine import Engine
from merlin.execution.distributed.maintenance import Maintenance
from merlin.execution.pool import WorkerProcess
from merlin.execution.wire import Channel
from merlin.study.tasks import Chunk, ChunkResult

CHUNK = Chunk(instance="sim", lo=0, hi=4, lease="l")
PROCESS = """
import socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1])).makefile("rw", buffering=1)
def say(text): channel.write(text + "\\n"); channel.flush()
def result(): say('{"op":"result","runs":[[0,4,0]],"deferred":[],"busy_s":0.1,"stop":"","note":""}')
def hang(): time.sleep(600)
say('{"op":"ready"}')
for line in channel:
    exec(sys.argv[2])
"""
OK = "result()"


class Process(WorkerProcess):
    """A worker process that does what a line of Python says whenever it is sent something."""

    def __init__(self, script: str) -> None:
        self.name, self.log, self._log_start = "p", Path("/nonexistent"), 0
        self.is_ready = self.is_leaving = False
        self.crash = ""
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-S", "-c", PROCESS, str(theirs.fileno()), script]
            self.process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], start_new_session=True, stderr=subprocess.DEVNULL
            )
        self.channel = Channel(ours)
        self.pidfd = os.pidfd_open(self.process.pid)


class Progress:
    """Notes what it is told; `trouble` names calls that raise (once for each entry)."""

    session = "s"

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.trouble: dict[str, list[Exception]] = {}
        self.chunks: list[Chunk] = [CHUNK]
        self.lost_leases: list[str] = []

    def _hear(self, name: str, what: Any = None) -> None:
        if self.trouble.get(name):
            raise self.trouble[name].pop(0)
        self.told.append((name, what))

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def take_ticket(self, ticket: str, **_: Any) -> Chunk | None:
        self._hear("take_ticket", ticket)
        return self.chunks.pop(0) if self.chunks else None

    def take_among(self, among: list[str], **_: Any) -> Chunk | None:
        return self.chunks.pop(0) if self.chunks else None

    def tickets(self, *_: Any) -> list[Any]:
        self._hear("tickets")
        return []

    def beat(self, chunks: list[Chunk], now: float) -> list[Chunk]:
        self._hear("beat")
        return [c for c in chunks if c.lease in self.lost_leases]

    def finished(self, result: ChunkResult, now: float) -> bool:
        self._hear("finished", result)
        return True

    def lost(self, chunk: Chunk, done: Any, now: float, **how: Any) -> bool:
        self._hear("lost", how)
        return True

    def give_back(self, chunk: Chunk) -> bool:
        self._hear("give_back", chunk)
        return True

    def stop(self, reason: str, *, now: bool = False) -> None:
        self._hear("stop", reason)

    def state(self) -> Any:
        self._hear("state")
        return SimpleNamespace(state="running", stop_now=False, num_running=0)

    def expired(self, now: float, **_: Any) -> list[Chunk]:
        self._hear("expired")
        return []


class Study:
    def __init__(self, id: str = "study") -> None:
        self.id, self.digest, self.progress = id, "d", Progress()
        self.workspace = SimpleNamespace(plan=SimpleNamespace(instances=[]), path=Path("/w") / id)
        self.is_ours = True
        self.gone_since: float | None = None
        self.reissued = time.monotonic()
        self.trouble: dict[str, list[Exception]] = {}

    def _hear(self, name: str) -> None:
        if self.trouble.get(name):
            raise self.trouble[name].pop(0)

    def served(self, *_: Any) -> list[str]:
        return ["sim"]

    def is_served(self, instance: str, *_: Any) -> bool:
        return self.is_ours

    def done(self, chunk: Chunk) -> list[tuple[int, int, int]]:
        return [(0, 1, 0)]

    def flush(self) -> None:
        self._hear("flush")

    def event(self, *_: Any, **__: Any) -> None:
        self._hear("event")


class Registry:
    def __init__(self) -> None:
        self.counted: list[str] = []
        self.sent: list[tuple[list[str], str, Any]] = []
        self.inbox: list[dict[str, Any]] = []
        self.alive: list[Any] = []
        self.advertised: list[Any] = []

    def num_slots(self) -> int:
        return 1

    def count(self, name: str, num: int = 1) -> None:
        self.counted.append(name)

    def beat(self, info: Any) -> float:
        self.told = info
        return time.time()

    def receive(self, name: str) -> tuple[list[dict[str, Any]], int]:
        found, self.inbox = self.inbox, []
        return found, 0

    def workers(self) -> list[Any]:
        return self.alive

    def send(self, names: list[str], op: str, **more: Any) -> None:
        self.sent.append((names, op, more))

    def studies(self) -> list[Any]:
        return self.advertised

    def sweep_lock(self, study: str, period_s: float) -> bool:
        return True

    def leave(self, name: str) -> None:
        pass


class Bench:
    """An engine, one study, and the processes that it starts."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = find_config({"MERLIN_BROKER_URL": "redis://localhost:1/0", "HOME": str(tmp_path)})
        assert config is not None
        app: Any = None
        self.engine = Engine(config, app, name="celery@w", concurrency=1, queues=[])
        self.study, self.registry = Study(), Registry()
        self.progress = self.study.progress
        self.script: str | Exception = OK
        self.processes: list[Process] = []
        monkeypatch.setattr(crew, "WorkerProcess", self.start)
        monkeypatch.setattr(self.engine, "registry", self.registry)
        monkeypatch.setattr(self.engine.studies, "get", lambda id, *_: self.study)
        body = {"study": "s", "workspace": "", "plan": "", "ticket": "t", "instance": "sim"}
        monkeypatch.setattr(engine, "open_ticket", lambda *_: body)

    def start(self, *_: Any, **__: Any) -> Process:
        if isinstance(self.script, Exception):
            raise self.script
        self.processes.append(Process(self.script))
        return self.processes[-1]

    def handle(self) -> None:
        self.engine.handle({})

    @property
    def crew(self) -> Crew:
        return self.engine._crew

    def all_ended(self) -> bool:
        return all(p.process.poll() is not None for p in self.processes)

    def close(self) -> None:
        """No run is left, and no process but idle ones."""
        assert self.engine.runs() == []
        idle = [entry[2] for entry in self.crew._idle]
        left = [p for p in self.processes if p.process.poll() is None and p not in idle]
        self.crew.dismiss_idle()
        for process in left:
            process.kill()
        assert not left, "a process was forgotten"
        for process in self.processes:
            with pytest.raises(OSError):
                os.fstat(process.pidfd)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(engine, "SLICE_S", 1000.0)  # one message leads to all chunks, on slow machines too
    monkeypatch.setattr(engine, "RETRY_S", 0.01)
    monkeypatch.setattr(engine, "ENDING_S", 0.2)
    monkeypatch.setattr(engine, "INTERRUPT_S", 0.2)
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.close()


def gone() -> MerlinError:
    return ProgressGoneError("gone")


def away() -> MerlinError:
    return ProgressUnreachableError("away")


# ----------------------------------------------------------------- a chunk's way


def test_a_process_runs_one_chunk_after_the_other(bench: Bench) -> None:
    bench.progress.chunks = [CHUNK, CHUNK, CHUNK]
    bench.handle()
    assert bench.progress.names().count("finished") == 3
    assert len(bench.processes) == 1 and not bench.all_ended()


def test_a_message_that_was_moved_to_our_queue_goes_to_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwarded: list[str] = []
    monkeypatch.setattr(bench.engine.publisher, "forward", lambda _, instance, __: forwarded.append(instance))
    bench.study.is_ours = False
    bench.handle()
    assert forwarded == ["sim"] and not bench.progress.told and not bench.processes
    assert bench.engine.refusals.take() == 1


def test_what_was_taken_runs_even_if_nothing_can_be_published(bench: Bench) -> None:
    bench.progress.trouble["tickets"] = [ExecutionError("no broker")]
    bench.handle()
    assert "finished" in bench.progress.names()


def test_a_report_waits_for_redis(bench: Bench) -> None:
    bench.progress.trouble["finished"] = [away(), away(), away()]
    bench.handle()
    assert "finished" in bench.progress.names()


@pytest.mark.parametrize("error", [gone(), ExecutionError("refused"), RuntimeError("a bug")])
def test_a_report_that_fails_leaves_no_process_behind(bench: Bench, error: Exception) -> None:
    bench.progress.trouble["finished"] = [error]
    bench.handle()
    assert [p for _, _, p in bench.crew._idle] == bench.processes


def test_a_full_disk_after_the_report_leaves_no_process_behind(bench: Bench) -> None:
    bench.study.trouble["flush"] = [LedgerError("the disk is full")]
    bench.handle()
    assert [p for _, _, p in bench.crew._idle] == bench.processes
    bench.progress.chunks = [CHUNK]
    bench.handle()
    assert len(bench.processes) == 1


def test_a_process_that_sends_nonsense_is_killed_and_its_chunk_is_lost(bench: Bench) -> None:
    bench.script = "say('what?'); hang()"
    bench.handle()
    assert "no message" in dict(bench.progress.told)["lost"]["signal"]


def test_a_result_that_makes_no_sense_is_no_result(bench: Bench) -> None:
    bench.script = 'say(\'{"op":"result"}\'); hang()'
    bench.handle()
    assert "lost" in bench.progress.names() and "finished" not in bench.progress.names()


def test_a_process_that_reports_trouble_and_does_not_end_is_killed(bench: Bench) -> None:
    bench.script = 'say(\'{"op":"error","message":"the disk is full"}\'); hang()'
    bench.handle()
    assert ("stop", "the disk is full") in bench.progress.told
    assert dict(bench.progress.told)["finished"].runs == ((0, 1, 0),)


def test_a_process_that_hangs_up_and_does_not_end_is_killed(bench: Bench) -> None:
    bench.script = "import os; os.close(int(sys.argv[1])); hang()"
    bench.handle()
    assert "lost" in bench.progress.names()


def test_a_loss_is_reported_even_if_it_cannot_be_written_down(bench: Bench) -> None:
    bench.script = "sys.exit(3)"
    bench.study.trouble["event"] = [LedgerError("the disk is full")]
    bench.handle()
    assert dict(bench.progress.told)["lost"] == {"signal": "exit code 3"}


def test_a_chunk_that_is_not_ours_any_more_is_not_committed(bench: Bench) -> None:
    bench.progress.lost_leases = [CHUNK.lease]
    bench.script = 'say(\'{"op":"commit"}\'); hang()'
    bench.handle()
    assert bench.all_ended()
    assert not {"finished", "lost", "give_back"} & set(bench.progress.names())


def test_a_machine_that_can_start_no_process_gives_the_chunk_back(bench: Bench) -> None:
    bench.script = ExecutionError("too many processes")
    bench.handle()
    assert ("give_back", CHUNK) in bench.progress.told


def test_a_machine_without_descriptors_gives_the_chunk_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", none)
    bench.handle()
    assert ("give_back", CHUNK) in bench.progress.told
    assert bench.all_ended()


# --------------------------------------------------------------------- flags


def test_a_late_flag_does_not_reach_into_somebody_elses_descriptor(tmp_path: Path) -> None:
    process: Any = SimpleNamespace()
    study: Any = None
    run = Run(study, CHUNK, process, "s")
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


def test_a_process_of_an_earlier_session_is_not_used_again(bench: Bench) -> None:
    bench.handle()
    bench.progress.session = "later"
    bench.progress.chunks = [CHUNK]
    bench.handle()
    first, second = bench.processes
    assert first.process.poll() is not None and second.process.poll() is None


# ------------------------------------------------------------------- leaving


def running(bench: Bench) -> threading.Thread:
    thread = threading.Thread(target=bench.handle)
    thread.start()
    wait_until(bench.engine.runs)
    return thread


def test_a_leaving_worker_gives_back_what_it_has_just_taken(bench: Bench) -> None:
    take = bench.progress.take_ticket

    def told_meanwhile(ticket: str, **how: Any) -> Chunk | None:
        bench.engine.is_leaving = True
        return take(ticket, **how)

    bench.progress.take_ticket = told_meanwhile  # type: ignore[method-assign]
    bench.handle()
    assert ("give_back", CHUNK) in bench.progress.told
    assert "finished" not in bench.progress.names()


def test_a_process_that_does_not_heed_an_interruption_is_killed_and_its_ends_count(bench: Bench) -> None:
    bench.script = "hang()"
    thread = running(bench)
    bench.engine.interrupt_all()
    thread.join(120)
    assert dict(bench.progress.told)["finished"].runs == ((0, 1, 0),)


def test_a_worker_without_redis_and_without_time_stops_waiting(bench: Bench) -> None:
    bench.progress.trouble["finished"] = [away()] * 10_000
    thread = threading.Thread(target=bench.handle)
    thread.start()
    wait_until(lambda: len(bench.progress.trouble["finished"]) < 10_000)
    bench.engine._is_out_of_time.set()
    thread.join(120)
    assert not thread.is_alive()


def test_a_patient_worker_that_is_told_again_hurries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = threading.Event()
    monkeypatch.setattr(bench.engine, "_hurry", hurried.set)
    bench.engine.is_patient = True
    bench.engine.shut_down()
    assert bench.engine.is_leaving and not hurried.is_set()
    bench.engine.shut_down()
    assert hurried.wait(120)


def test_a_worker_that_hangs_ends_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def exit(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", exit)
    monkeypatch.setattr(engine, "LAST_S", 0.0)
    bench.engine._grace_s = 0.0
    bench.script = "hang()"
    thread = running(bench)
    bench.engine.shut_down()
    assert ended.wait(120)
    assert codes == [os.EX_TEMPFAIL]
    thread.join(120)


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_times_in_the_environment_are_numbers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MERLIN_LEASE_S", text)
    with pytest.raises(ExecutionError, match="MERLIN_LEASE_S"):
        engine.lease_s()


# -------------------------------------------------------------- housekeeping


@pytest.fixture
def keeping(bench: Bench) -> Maintenance:
    return bench.engine._maintenance


def info(study: Study) -> Any:
    return SimpleNamespace(study_id=study.id, workspace=str(study.workspace.path), plan=study.digest)


def test_one_sick_study_does_not_keep_the_others_from_being_swept(
    bench: Bench, keeping: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    sick, well = Study("sick"), Study("well")
    sick.trouble["flush"] = [LedgerError("the workspace is gone")] * 100
    studies = {s.id: s for s in (sick, well)}
    monkeypatch.setattr(bench.engine.studies, "get", lambda id, *_: studies[id])
    bench.registry.advertised = [info(sick), info(well)]
    for _ in range(3):
        keeping._sweep_all(now)
    assert well.progress.names().count("tickets") == 3
    assert sick.progress.names().count("state") == 1  # and then it was left alone for a while


def test_leases_are_renewed_while_a_sweep_takes_its_time(
    bench: Bench, keeping: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.script = "hang()"
    thread = running(bench)
    is_read = threading.Event()
    slow: Any = Study("slow")
    slow.flush = is_read.wait
    monkeypatch.setattr(bench.engine.studies, "get", lambda *_: slow)
    bench.registry.advertised = [info(slow)]
    keeping._beat_every = 0.0
    keeping.start()
    wait_until(lambda: "expired" in slow.progress.names())
    num = bench.progress.names().count("beat")
    wait_until(lambda: bench.progress.names().count("beat") > num + 1)
    is_read.set()
    keeping.stop()
    bench.engine.interrupt(bench.study, void=True)  # type: ignore[arg-type]
    thread.join(120)


def test_nothing_is_taken_over_while_redis_cannot_have_been_asked(bench: Bench, keeping: Maintenance) -> None:
    now = time.monotonic()
    bench.registry.advertised = [info(bench.study)]
    keeping._answered = now - bench.engine.lease_s
    keeping._sweep_all(now)
    assert "expired" not in bench.progress.names()
    keeping._beat(now)
    assert bench.registry.counted == ["outages"]
    keeping._sweep_all(now)
    assert "expired" not in bench.progress.names()  # the others have had no time to renew theirs
    keeping._sweep_all(now + bench.engine.lease_s)
    assert "expired" in bench.progress.names()


@pytest.mark.parametrize(("state", "in_s"), [("complete", 0.0), ("running", 60.0)])
def test_a_task_that_asks_the_workers_to_stop_leaves_the_rest_of_its_study_a_minute(
    bench: Bench, keeping: Maintenance, monkeypatch: pytest.MonkeyPatch, state: str, in_s: float
) -> None:
    found = SimpleNamespace(state=state, stop_now=False, num_running=0)
    monkeypatch.setattr(bench.progress, "state", lambda: found)
    monkeypatch.setattr(bench.engine, "leave", lambda: bench.registry.count("left"))
    queue = bench.engine.config.queue_name("hot")
    bench.study.workspace.plan.instances = [SimpleNamespace(queue="hot")]
    bench.registry.alive = [SimpleNamespace(name=f"celery@{q[0]}", queues=[q]) for q in (queue, "cold")]
    bench.engine._stop_workers(bench.study)  # type: ignore[arg-type]
    assert bench.registry.sent == [([f"celery@{queue[0]}"], "stop", {"in_s": in_s})]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bench.registry.inbox = [{"op": "stop", "id": "1", "in_s": in_s}]
    keeping._beat(now)
    assert ("left" in bench.registry.counted) == (state == "complete")
    now += 60.0
    keeping._answered = now
    keeping._beat(now)
    assert bench.registry.counted.count("left") == 1


def test_a_process_that_was_stopped_for_long_is_killed(bench: Bench, keeping: Maintenance) -> None:
    bench.script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    thread = running(bench)
    (run,) = bench.engine.runs()
    wait_until(run.is_stopped)
    now = time.monotonic()
    keeping._beat_leases(now)
    keeping._beat_leases(now + bench.engine.lease_s)
    assert not run.is_void and "beat" not in bench.progress.names()
    keeping._beat_leases(now + 3 * bench.engine.lease_s)
    thread.join(120)
    assert bench.all_ended()


def test_a_second_command_to_stop_is_no_reason_to_hurry(
    bench: Bench, keeping: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: (signals.append(number), bench.engine.shut_down()))
    keeping._do({"op": "stop"})
    keeping._do({"op": "stop"})
    assert len(signals) == 1 and bench.engine.is_patient


def test_what_a_worker_says_is_in_the_servers_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    an_hour_ahead = time.time() + 3600
    monkeypatch.setattr(bench.registry, "beat", lambda _: an_hour_ahead)
    bench.engine.report()
    assert abs(bench.engine.info().started - an_hour_ahead) < 60


# ----------------------------------------------------------------- stillborn processes


@pytest.mark.parametrize("how", ["sys.exit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_a_machine_on_which_no_process_starts_loses_its_worker_and_not_the_study(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(bench.engine, "leave", lambda: setattr(bench.engine, "is_leaving", True))
    monkeypatch.setattr(sys.modules[__name__], "PROCESS", f"import sys; {how}")
    for _ in range(engine.MAX_STILLBORN + 3):
        bench.progress.chunks = [CHUNK]
        if not bench.engine.is_leaving:
            bench.handle()
    is_broken = how == "sys.exit(1)"  # what is killed may just have met the wrong moment
    assert bench.engine.is_leaving == is_broken
    assert bench.progress.names().count("lost") == engine.MAX_STILLBORN + (0 if is_broken else 3)
    assert not bench.progress.names().count("stop")
