"""The embedded executor with real worker processes."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
from recording_observer import RecordingObserver
from small_plans import same, step
from study_on_disk import (
    end_of,
    make_workspace,
    processes_of,
    start_run,
    start_warm_run,
    workers_of,
)
from waiting import wait_until

import merlin
from merlin.api.left_to_run import refuse_failed_before
from merlin.base.records import to_plain
from merlin.errors import WorkspaceError
from merlin.execution.conductor import RunOptions, append_records
from merlin.execution.embedded import _Run, run_embedded
from merlin.execution.events import RunSummary
from merlin.execution.pool import WorkerProcess
from merlin.execution.wire import Message, Ready, Result, Run, Stop
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.session import next_session
from merlin.plan.failure_limits import limit_reached
from merlin.plan.plan import Edge
from merlin.plan.reopen import Again
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Chunk, Outcome
from merlin.workspace.directory import Workspace

TWO = RunOptions(workers=2)
SESSION = "$(cut -d' ' -f6 /proc/$$/stat)"  # in a task: its worker's process id


def run(workspace: Workspace, options: RunOptions = TWO) -> tuple[RunSummary, RecordingObserver]:
    observer = RecordingObserver()
    return run_embedded(workspace, options, observer), observer


def counts(summary: RunSummary) -> tuple[int, int, int, int]:
    return summary.ok, summary.failed, summary.skipped, summary.missing


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_every_task_of_a_chain_ends_ok_and_nothing_is_left_running(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workspace = make_workspace(
        tmp_path,
        step("sim", 40, command=f"echo sim$(MERLIN_SAMPLE_ID) >> {log}"),
        step("post", 40, same("sim"), command=f"echo post$(MERLIN_SAMPLE_ID) >> {log}"),
    )
    summary, observer = run(workspace)
    assert counts(summary) == (80, 0, 0, 0)
    assert summary.is_success
    ran = lines(log)
    assert sorted(ran) == sorted(f"{s}{i}" for s in ("sim", "post") for i in range(40))
    assert all(ran.index(f"sim{i}") < ran.index(f"post{i}") for i in range(40))
    assert observer.summary == summary
    assert observer.steps[0].per_step["sim"].ok == 0
    assert observer.steps[-1].per_step["post"].ok == 40
    assert processes_of(workspace) == []


def test_a_failed_sample_is_skipped_downstream_in_the_ledger_too(tmp_path: Path) -> None:
    workspace = make_workspace(
        tmp_path,
        step("sim", 12, command="test $(MERLIN_SAMPLE_ID) != 5"),
        step("post", 12, same("sim"), command="true"),
    )
    summary, _ = run(workspace)
    assert counts(summary) == (22, 1, 1, 0)
    assert not summary.is_success
    outcomes = replay(workspace.ledger_dir, workspace.plan).outcomes
    assert (outcomes["sim"][5], outcomes["post"][5]) == (Outcome.FAILED, Outcome.SKIPPED)


def test_a_second_run_has_nothing_to_do_unless_failures_are_redone(tmp_path: Path) -> None:
    log, flag = tmp_path / "log", tmp_path / "flag"
    command = f"echo $(MERLIN_SAMPLE_ID) >> {log}; test $(MERLIN_SAMPLE_ID) != 5 -o -e {flag}"
    workspace = make_workspace(
        tmp_path, step("sim", 12, command=command), step("post", 12, same("sim"), command="true")
    )
    assert counts(run(workspace)[0]) == (22, 1, 1, 0)
    assert counts(run(workspace)[0]) == (22, 1, 1, 0)
    assert len(lines(log)) == 12
    flag.touch()
    assert counts(run(workspace, RunOptions(workers=2, again=Again(failed=True)))[0]) == (24, 0, 0, 0)
    assert lines(log)[12:] == ["5"]


def test_a_deferred_task_waits_for_its_delay(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    command = f"test -e {tried} || {{ touch {tried}; exit 104; }}"
    workspace = make_workspace(tmp_path, step("sim", 1, command=command, retry_delay_s=0.3))
    summary, _ = run(workspace)
    assert counts(summary) == (1, 0, 0, 0)
    assert summary.seconds >= 0.3


def test_a_retry_that_is_due_while_all_workers_are_busy_does_not_keep_the_command_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, begun, gate = (tmp_path / name for name in ("tried", "begun", "gate"))
    again = step("again", 1, command=f"test -e {tried} || {{ touch {tried}; exit 104; }}", retry_delay_s=0.3)
    busy = step("busy", 1, command=f"touch {begun}; until test -e {gate}; do sleep 0.01; done")
    workspace = make_workspace(tmp_path, again, busy)
    timeout, waits = _Run._timeout, []

    def noted(self: _Run) -> float | None:
        waits.append(timeout(self))
        if begun.exists() and (waits[-1] is None or len(waits) > 1000):
            gate.touch()
        return waits[-1]

    monkeypatch.setattr(_Run, "_timeout", noted)
    assert counts(run(workspace, RunOptions(workers=1))[0]) == (2, 0, 0, 0)
    assert len(waits) < 1000


def test_a_hard_failure_interrupts_what_runs(tmp_path: Path) -> None:
    command = "if [ $(MERLIN_SAMPLE_ID) = 1 ]; then exit 102; else sleep 600; fi"
    workspace = make_workspace(tmp_path, step("sim", 4, command=command))
    summary, observer = run(workspace)
    assert "failed hard" in summary.stop_reason
    assert counts(summary) == (0, 1, 0, 3)
    assert any("stopping" in note for note in observer.notes)
    assert processes_of(workspace) == []


def test_a_study_on_one_machine_goes_on_when_a_task_asks_the_workers_to_stop(tmp_path: Path) -> None:
    stop = step("stop", 1, same("first"), command="exit 105")
    workspace = make_workspace(
        tmp_path,
        step("first", 1, command="true"),
        stop,
        step("after", 1, same("stop"), command="true"),
        step("unrelated", 20, command="true"),
    )
    summary, observer = run(workspace)
    assert (summary.stop_reason, counts(summary)) == ("", (23, 0, 0, 0))
    assert sum("asked the workers to stop" in note for note in observer.notes) == 1


def test_what_depends_on_a_task_that_chose_to_fail_runs_and_runs_again_with_it(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    sim = (
        f"[ $(MERLIN_SAMPLE_ID) != 1 ] || [ -e {mended} ] || exit 101; [ $(MERLIN_SAMPLE_ID) != 2 ] || exit 1"
    )
    workspace = make_workspace(
        tmp_path,
        step("sim", 4, command=sim),
        step("post", 4, same("sim"), command="echo x >> $(WORKSPACE)/times"),
        step("last", 4, same("post"), command="true"),
    )
    summary, _ = run(workspace)
    assert (summary.stop_reason, counts(summary)) == ("", (8, 2, 2, 0))
    assert not summary.is_success
    mended.touch()
    assert counts(run(workspace)[0]) == (8, 2, 2, 0)
    assert counts(run(workspace, RunOptions(workers=2, again=Again(failed=True)))[0]) == (9, 1, 2, 0)
    post = workspace.instance("post")
    lines = [workspace.task_dir(post, task) / "times" for task in (0, 1, 3)]
    assert [len(path.read_text().splitlines()) for path in lines] == [1, 2, 1]


def test_the_next_run_knows_from_the_ledger_who_chose_to_fail(tmp_path: Path) -> None:
    go = tmp_path / "go"
    every_gate = Edge(source="gate", kind="all", group="gate")
    sim = "[ $(MERLIN_SAMPLE_ID) != 1 ] || exit 101"
    workspace = make_workspace(
        tmp_path,
        step("sim", 3, command=sim),
        step("gate", 1, Edge(source="sim", kind="all", group="sim"), command=f"[ -e {go} ] || exit 102"),
        step("post", 3, same("sim"), every_gate, command="true"),
    )
    summary, _ = run(workspace)
    assert "failed hard" in summary.stop_reason and summary.per_step["sim"].missing == 0
    go.touch()
    summary, _ = run(workspace, RunOptions(workers=2, again=Again(failed=True, steps=("gate",))))
    assert counts(summary) == (6, 1, 0, 0)


def test_the_canary_stops_a_study_that_only_fails(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 5000, command="exit 3"))
    summary, _ = run(workspace)
    assert summary.stop_reason.startswith("canary: the first")
    assert summary.failed < 1000


def test_a_study_that_max_failures_stopped_goes_on_with_another_limit(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("a", 200, command="exit 3", max_failures=0.05, canary=0))
    assert run(workspace)[0].stop_reason.startswith("max_failures: ")
    with pytest.raises(
        WorkspaceError, match=r"has stopped: max_failures: (?s:.*)--failed\n.*--max-failures N"
    ):
        merlin.Study(workspace.path).restart()
    assert run(workspace)[0].stop_reason.startswith("max_failures: ")
    refuse_failed_before([workspace], math.inf)
    session = next_session(workspace.ledger_dir, time.time())
    append_records(workspace, session, EventRecord(kind="run_stopped", data={"reason": "interrupted"}))
    refuse_failed_before([workspace])  # no limit stopped the last run, so somebody let it go on
    summary = run(workspace, RunOptions(workers=2, max_failures=math.inf))[0]
    assert (summary.stop_reason, *counts(summary)) == ("", 0, 200, 0, 0)
    refuse_failed_before([workspace])  # nothing is left


def test_failures_of_a_step_that_has_ended_keep_nothing_from_going_on(tmp_path: Path) -> None:
    failing = step("a", 20, command="exit 3", max_failures=0.05, canary=0, on_failure="continue")
    workspace = make_workspace(tmp_path, failing, step("b", 20, same("a"), command="true"))
    assert run(workspace)[0].stop_reason.startswith("max_failures: ")
    outcomes = {"a": RunMap(20), "b": RunMap(20)}
    outcomes["a"].set(0, 10, Outcome.FAILED)
    assert limit_reached(workspace.plan, outcomes)
    outcomes["a"].set(10, 20, Outcome.OK)
    assert not limit_reached(workspace.plan, outcomes)


def test_a_killed_worker_costs_no_task(tmp_path: Path) -> None:
    once = tmp_path / "once"
    kill = f"touch {once}; kill -9 {SESSION}"
    command = f"if [ $(MERLIN_SAMPLE_ID) = 3 -a ! -e {once} ]; then {kill}; fi"
    workspace = make_workspace(tmp_path, step("sim", 20, command=command))
    summary, observer = run(workspace)
    assert counts(summary) == (20, 0, 0, 0)
    assert any("was lost" in note and "SIGKILL" in note for note in observer.notes)
    assert [e.kind for e in replay(workspace.ledger_dir, workspace.plan).events()].count("worker_lost") == 1


def test_a_task_that_always_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    command = f"if [ $(MERLIN_SAMPLE_ID) = 3 ]; then kill -9 {SESSION}; fi"
    workspace = make_workspace(tmp_path, step("sim", 20, command=command, crash_limit=2))
    summary, _ = run(workspace)
    assert counts(summary) == (19, 1, 0, 0)
    (failed,) = replay(workspace.ledger_dir, workspace.plan).failures()
    assert (failed.failure.task, failed.failure.cause) == (
        3,
        "killed its worker 2 times when it ran alone (SIGKILL)",
    )


def test_a_workspace_in_use_is_refused(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 2, command="sleep 600"))
    first = start_warm_run(workspace)
    try:
        wait_until(lambda: workers_of(workspace), lambda: first.poll())
        with pytest.raises(WorkspaceError, match=str(first.pid)):
            run(workspace)
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_cleanly_and_the_study_can_be_resumed(
    tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and so the command ignores it, too")
    log, gate = tmp_path / "log", tmp_path / "gate"
    command = f"echo $(MERLIN_SAMPLE_ID) >> {log}; [ $(MERLIN_SAMPLE_ID) -lt 3 -o -e {gate} ] || sleep 600"
    workspace = make_workspace(tmp_path, step("sim", 10, command=command))
    command_process = start_warm_run(workspace)
    wait_until(lambda: len(lines(log)) >= 5, lambda: lines(log))
    command_process.send_signal(number)
    summary = end_of(command_process)  # long before the tasks would end
    assert summary["stop_reason"] == "interrupted"
    assert (summary["ok"], summary["failed"], summary["missing"]) == (3, 0, 7)
    assert processes_of(workspace) == []
    gate.touch()
    assert counts(run(workspace)[0]) == (10, 0, 0, 0)
    assert sorted(set(lines(log))) == sorted(str(i) for i in range(10))
    assert all(lines(log).count(str(i)) == 1 for i in range(3))


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workspace = make_workspace(tmp_path, step("sim", 2, command=f"echo x >> {log}; sleep 600"))
    command_process = start_warm_run(workspace)
    wait_until(lambda: len(lines(log)) == 2, lambda: lines(log))
    for worker in workers_of(workspace):
        os.kill(worker, signal.SIGSTOP)  # it cannot follow
    command_process.send_signal(signal.SIGINT)
    command_process.send_signal(signal.SIGTERM)
    summary = end_of(command_process)
    assert (summary["stop_reason"], summary["missing"]) == ("interrupted", 2)
    assert processes_of(workspace) == []


def test_workers_and_tasks_go_when_the_command_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workspace = make_workspace(tmp_path, step("sim", 2, command=f"echo x >> {log}; sleep 600"))
    command_process = start_run(workspace)
    wait_until(lambda: len(lines(log)) == 2, lambda: lines(log))
    command_process.kill()
    command_process.communicate()
    wait_until(lambda: not processes_of(workspace), lambda: processes_of(workspace))


def test_the_next_run_kills_orphans_that_cannot_go_by_themselves(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = f"echo x >> {log}; [ $(wc -l < {log}) -gt 2 ] || sleep 600"
    workspace = make_workspace(tmp_path, step("sim", 2, command=command))
    command_process = start_warm_run(workspace)
    wait_until(lambda: len(lines(log)) == 2, lambda: lines(log))
    stopped = workers_of(workspace)
    for worker in stopped:
        os.kill(worker, signal.SIGSTOP)
    command_process.kill()
    command_process.communicate()
    assert workers_of(workspace) == stopped
    assert counts(run(workspace)[0]) == (2, 0, 0, 0)
    assert processes_of(workspace) == []


def test_tasks_can_be_interrupted_by_their_own_signals(tmp_path: Path) -> None:
    """The workers' handling of SIGINT is not inherited."""
    command = (
        "python3 -c 'import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler'"
    )
    workspace = make_workspace(tmp_path, step("sim", 1, command=command))
    assert counts(run(workspace)[0]) == (1, 0, 0, 0)


def test_a_study_of_one_task_starts_one_worker(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 1, command="true"))
    _, observer = run(workspace, RunOptions(workers=8))
    assert {p.num_workers for p in observer.steps} <= {0, 1}


def test_a_worker_that_is_told_to_run_and_to_stop_in_one_breath_begins_nothing(tmp_path: Path) -> None:
    """As where Ctrl-C comes while the workers still load."""
    log = tmp_path / "log"
    workspace = make_workspace(tmp_path, step("sim", 2, command=f"echo x >> {log}; sleep 600"))
    worker = WorkerProcess(workspace, "w0", session="", num_threads=1)
    try:
        words = to_plain([Run(Chunk(instance="sim", lo=0, hi=2)), Stop()])
        worker.channel.sock.sendall("".join(f"{json.dumps(word)}\n" for word in words).encode())
        told: list[Message] = []
        while not worker.channel.is_closed:
            told += worker.channel.receive(wait=True)
        assert worker.process.wait(timeout=120) == 0
    finally:
        worker.kill()
        worker.process.wait()
        worker.close()
    ready, result = told
    assert isinstance(ready, Ready) and isinstance(result, Result) and result.result.runs == ()
    assert not log.exists()
