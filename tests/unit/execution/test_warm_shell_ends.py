"""How a warm shell ends early: killed by someone, or after a task that stops the study."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from study_on_disk import make_workspace, processes_of, step, wait_until

from merlin.execution.processes import children
from merlin.execution.runner import ChunkRunner
from merlin.ledger.writer import LedgerWriter
from merlin.study.tasks import Chunk, ChunkResult, Outcome, ReturnCode
from merlin.study.workspace import Workspace


def run_chunk(workspace: Workspace, num: int) -> ChunkResult:
    with LedgerWriter(workspace.ledger_dir, "w0") as ledger:
        runner = ChunkRunner(workspace, "w0", ledger)
        try:
            return runner.run(Chunk(instance="s", lo=0, hi=num))
        finally:
            runner.close()


def kill_shells(log: Path, num_kills: int) -> None:
    """Each time a task has said that it waits, kill the shell above it, and nothing else."""
    for k in range(num_kills):
        wait_until(lambda: log.exists() and log.read_text().count("waits") > k, lambda: "no task waits")  # noqa: B023
        leader = int(log.read_text().split("waits ")[-1].split()[0])
        (driver,) = [pid for pid in children(os.getpid()) if leader in children(pid)]
        os.kill(driver, signal.SIGKILL)


def waiting_study(tmp_path: Path) -> tuple[Workspace, Path]:
    """Task 1 waits for the file `go`, and tells the process group it is in."""
    log = tmp_path / "log"
    command = (
        f"if [ $(MERLIN_SAMPLE_ID) = 1 ] && [ ! -e {tmp_path}/go ]; then\n"
        f"  echo waits $(ps -o pgid= -p $(sh -c 'ps -o ppid= -p $PPID')) >> {log}\n"
        "  sleep 60\nfi\n"
        f"echo ends $(MERLIN_SAMPLE_ID) >> {log}\n"
    )
    return make_workspace(tmp_path, step("s", 3, command=command)), log


@pytest.mark.parametrize("num_kills", [1, 2])
def test_a_task_that_outlives_its_killed_shell_is_ended_and_gets_another_one_once(
    tmp_path: Path, num_kills: int
) -> None:
    workspace, log = waiting_study(tmp_path)
    results: list[ChunkResult] = []
    running = threading.Thread(target=lambda: results.append(run_chunk(workspace, 3)))
    running.start()
    kill_shells(log, num_kills)
    if num_kills == 1:
        wait_until(lambda: log.read_text().count("waits") == 2, log.read_text)
        assert len([p for p in processes_of(workspace) if "sleep 60" in p]) == 1
        (tmp_path / "go").touch()
        os.killpg(int(log.read_text().split("waits ")[-1].split()[0]), signal.SIGKILL)
    running.join(30)
    assert processes_of(workspace) == []
    expected = ((0, 1, Outcome.OK), (1, 2, Outcome.FAILED), (2, 3, Outcome.OK))
    assert results[0].runs == expected
    assert [line for line in log.read_text().splitlines() if "ends" in line] == ["ends 0", "ends 2"]


@pytest.mark.parametrize("code", [ReturnCode.HARD_FAIL, ReturnCode.STOP_WORKERS])
def test_no_task_begins_after_one_that_stops_the_study(tmp_path: Path, code: ReturnCode) -> None:
    command = f"echo > ran\nif [ $(MERLIN_SAMPLE_ID) = 3 ]; then exit {int(code)}; fi\n"
    workspace = make_workspace(tmp_path, step("s", 200, command=command))
    result = run_chunk(workspace, 200)
    assert result.stop
    assert result.runs[-1][1] == 4
    ran = [t for t in range(200) if (workspace.task_dir(workspace.instance("s"), t) / "ran").exists()]
    assert ran == [0, 1, 2, 3]


def test_a_timeout_that_ends_with_a_stopping_code_costs_one_task(tmp_path: Path) -> None:
    command = "if [ $(MERLIN_SAMPLE_ID) = 1 ]; then trap 'exit 105' TERM; sleep 60 & wait; fi\n"
    workspace = make_workspace(tmp_path, step("s", 5, command=command, timeout_s=0.3))
    result = run_chunk(workspace, 5)
    assert not result.stop
    assert result.runs == ((0, 1, Outcome.OK), (1, 2, Outcome.FAILED), (2, 5, Outcome.OK))
