"""How a warm shell ends early: killed by someone, or after a task that stops the study."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from small_plans import step
from study_on_disk import make_workspace, processes_of
from waiting import wait_until

from merlin.base.processes import children
from merlin.execution.runner import ChunkRunner
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace

TIMEOUT_S = 5.0  # of all tasks of a step, of which only one is meant to need it


def run_chunk(workspace: Workspace, num: int) -> ChunkResult:
    with LedgerWriter(workspace.ledger_dir, "w0") as ledger:
        runner = ChunkRunner(workspace, "w0", ledger)
        try:
            return runner.run(Chunk(instance="s", lo=0, hi=num))
        finally:
            runner.close()


def waiting(path: Path) -> str:
    """A task's wait for a file, without a process of its own, which would look like its shell until its exec."""
    os.mkfifo(path)
    return f"read -r _ < {path}"


def shells(workspace: Workspace) -> list[str]:
    """The warm shells and the tasks that run in them."""
    return [p for p in processes_of(workspace) if "set -m" in p]


def warm_shell(workspace: Workspace) -> int:
    """The process that the tasks are children of."""
    ours = set(children(os.getpid()))
    (driver,) = [pid for pid in (int(p.split()[0]) for p in shells(workspace)) if pid in ours]
    return driver


def kill_the_shell_of_the_waiting_task(workspace: Workspace, log: Path, time: int) -> None:
    wait_until(lambda: log.exists() and log.read_text().count("waits") == time, lambda: shells(workspace))
    os.kill(warm_shell(workspace), signal.SIGKILL)


@pytest.mark.parametrize("num_kills", [1, 2])
def test_a_task_that_outlives_its_killed_shell_is_ended_and_gets_another_one_once(
    tmp_path: Path, num_kills: int
) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    command = (
        f"if [ $(MERLIN_SAMPLE_ID) = 1 ]; then\n  echo waits >> {log}\n"
        f"  {waiting(go)}\nfi\n"
        f"echo ends $(MERLIN_SAMPLE_ID) >> {log}\n"
    )
    workspace = make_workspace(tmp_path, step("s", 3, command=command))
    results: list[ChunkResult] = []
    running = threading.Thread(target=lambda: results.append(run_chunk(workspace, 3)))
    running.start()
    for time in range(1, num_kills + 1):
        kill_the_shell_of_the_waiting_task(workspace, log, time)
    if num_kills == 1:
        wait_until(lambda: log.read_text().count("waits") == 2, log.read_text)
        assert len(shells(workspace)) == 2  # one shell, one task in it
        go.write_text("\n")
    running.join(120)
    assert shells(workspace) == []
    verdict = Outcome.OK if num_kills == 1 else Outcome.FAILED
    assert [o for lo, hi, o in results[0].runs for _ in range(lo, hi)] == [Outcome.OK, verdict, Outcome.OK]
    ends = [line for line in log.read_text().splitlines() if "ends" in line]
    assert ends == (["ends 0", "ends 1", "ends 2"] if num_kills == 1 else ["ends 0", "ends 2"])


def test_no_task_begins_after_one_that_stops_the_study(tmp_path: Path) -> None:
    command = "echo > ran\nif [ $(MERLIN_SAMPLE_ID) = 3 ]; then exit 102; fi\n"
    workspace = make_workspace(tmp_path, step("s", 200, command=command))
    result = run_chunk(workspace, 200)
    assert result.stop
    assert result.runs[-1][1] == 4
    ran = [t for t in range(200) if (workspace.task_dir(workspace.instance("s"), t) / "ran").exists()]
    assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("fresh", [False, True])
def test_the_tasks_after_one_that_asks_the_workers_to_stop_run(tmp_path: Path, fresh: bool) -> None:
    command = "case $(MERLIN_SAMPLE_ID) in 1) exit 105;; 3) exit 102;; esac\n"
    workspace = make_workspace(tmp_path, step("s", 5, command=command, fresh_shell=fresh))
    result = run_chunk(workspace, 5)
    assert (result.stop, result.runs) == ("hard_fail", ((0, 3, Outcome.OK), (3, 4, Outcome.FAILED)))


def test_a_timeout_that_ends_with_a_stopping_code_costs_one_task(tmp_path: Path) -> None:
    command = "if [ $(MERLIN_SAMPLE_ID) = 1 ]; then trap 'exit 102' TERM; sleep 600 & wait; fi\n"
    workspace = make_workspace(tmp_path, step("s", 5, command=command, timeout_s=TIMEOUT_S))
    result = run_chunk(workspace, 5)
    assert not result.stop
    assert result.runs == ((0, 1, Outcome.OK), (1, 2, Outcome.FAILED), (2, 5, Outcome.OK))


def is_suspended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_task_that_is_suspended_is_waited_for(tmp_path: Path) -> None:
    """As batch systems do it; then the task ends as it would have."""
    log, go = tmp_path / "log", tmp_path / "go"
    command = (
        f"if [ $(MERLIN_SAMPLE_ID) = 1 ]; then\n  echo waits >> {log}\n"
        f"  {waiting(go)}\nfi\n"
        f"echo ends $(MERLIN_SAMPLE_ID) >> {log}\n"
        "if [ $(MERLIN_SAMPLE_ID) = 2 ]; then\n  exit 147\nfi\n"
    )
    workspace = make_workspace(tmp_path, step("s", 4, command=command))
    results: list[ChunkResult] = []
    running = threading.Thread(target=lambda: results.append(run_chunk(workspace, 4)))
    running.start()
    wait_until(lambda: log.exists() and "waits" in log.read_text(), lambda: shells(workspace))
    (task,) = children(warm_shell(workspace))
    os.killpg(task, signal.SIGSTOP)
    wait_until(lambda: is_suspended(task), lambda: shells(workspace))
    assert log.read_text() == "ends 0\nwaits\n"
    pipe = os.open(go, os.O_RDWR)  # a line for each time that the task runs, of which one may be left
    os.write(pipe, b"\n\n")
    os.killpg(task, signal.SIGCONT)
    running.join(120)
    os.close(pipe)
    found = [outcome for lo, hi, outcome in results[0].runs for _ in range(lo, hi)]
    assert found == [Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.OK]
    ends = [line for line in log.read_text().splitlines() if "ends" in line]
    # where it ends before bash looks at it again, it is not known how, and it runs once more; of a script that ends
    # with such a code by itself it cannot be told that it was not suspended
    assert ends in (
        ["ends 0", "ends 1", "ends 2", "ends 2", "ends 3"],
        ["ends 0", "ends 1", "ends 1", "ends 2", "ends 2", "ends 3"],
    )
