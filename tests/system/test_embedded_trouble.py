"""The embedded executor when its surroundings fail, and inside another run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from recording_observer import RecordingObserver
from small_plans import step
from study_on_disk import RUN, end_of, make_workspace, processes_of, start_warm_run, workers_of
from waiting import wait_until

from merlin.base.processes import read_process
from merlin.errors import ExecutionError
from merlin.execution.conductor import CONTROLLER, UPDATER, RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.execution.orphans import kill_orphans
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan_io import write_plan


def test_workers_that_cannot_start_end_the_run_with_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no numpy here >&2\nexit 1\n")
    broken.chmod(0o755)
    workspace = make_workspace(tmp_path, step("sim", 5, command="true"))
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setitem(sys.modules, "torch", sys)  # as where the command has loaded what no copy may have
    with pytest.raises(ExecutionError, match="no numpy here"):
        run_embedded(workspace, RunOptions(workers=2), Observer())
    assert replay(workspace.ledger_dir, workspace.plan).events()[-1].kind == "run_failed"


def test_a_worker_that_cannot_work_stops_the_study_with_its_reason(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 5, command="true"))
    workspace.plan_path.unlink()
    observer = RecordingObserver()
    summary = run_embedded(workspace, RunOptions(workers=2), observer)
    assert "plan.json" in summary.stop_reason
    assert summary.missing == 5
    assert processes_of(workspace) == []


def test_a_plan_that_is_altered_while_it_runs_is_not_run_by_new_workers(tmp_path: Path) -> None:
    begun, gate, pwned = (tmp_path / name for name in ("begun", "gate", "pwned"))
    command = f"touch {begun}; while [ ! -e {gate} ]; do sleep 0.05; done"
    workspace = make_workspace(tmp_path, step("sim", 4, command=command))
    run = start_warm_run(workspace)
    try:
        wait_until(begun.exists)
        altered = step("sim", 4, command=f"touch {pwned}")
        write_plan(workspace.plan_path, replace(workspace.plan, instances=(altered,)))
        for pid in workers_of(workspace):
            os.kill(pid, signal.SIGKILL)
        summary = end_of(run)
    finally:
        gate.touch()
        run.kill()
        run.wait()
    assert "altered" in summary["stop_reason"] and str(workspace.path) in summary["stop_reason"]
    assert summary["missing"] == 4 and not pwned.exists()
    write_plan(workspace.plan_path, workspace.plan)
    assert run_embedded(workspace, RunOptions(workers=2), Observer()).is_success


def test_a_run_inside_a_step_of_a_run_works(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = make_workspace(tmp_path / "inner", step("sim", 6, command=f"echo $(MERLIN_SAMPLE_ID) >> {log}"))
    script = tmp_path / "nested.py"
    script.write_text(RUN)
    command = f"{sys.executable} {script} {inner.path} 2"
    outer = make_workspace(tmp_path / "outer", step("sim", 1, command=command))
    summary = run_embedded(outer, RunOptions(workers=1), Observer())
    assert summary.is_success
    assert sorted(log.read_text().split()) == list("012345")


def test_a_reused_process_id_is_not_killed(tmp_path: Path) -> None:
    """A segment from before the process that has its number now started."""
    workspace = make_workspace(tmp_path, step("sim", 5, command="true"))
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        LedgerWriter(workspace.ledger_dir, "w0", pid=innocent.pid).close()
        (segment,) = workspace.ledger_dir.iterdir()
        _set_started(segment, time.time() - 1000)
        assert kill_orphans(workspace) == []
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.parametrize("name", [CONTROLLER, UPDATER])
def test_a_command_that_leads_a_session_is_not_killed(tmp_path: Path, name: str) -> None:
    """As in a container or under `srun`; a command that has updated a study goes on to run it."""
    workspace = make_workspace(tmp_path, step("sim", 5, command="true"))
    command = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        LedgerWriter(workspace.ledger_dir, name, pid=command.pid).close()
        assert kill_orphans(workspace) == []
        assert command.poll() is None
    finally:
        command.kill()
        command.wait()


def _set_started(segment: Path, started: float) -> None:
    """Write the segment again as of another time."""
    from msgspec.structs import replace

    from merlin.ledger.format import parse_segment_header

    parsed = parse_segment_header(segment.read_bytes(), str(segment))
    assert parsed is not None
    (writer,) = parsed[0].writers
    segment.write_bytes(replace(parsed[0], writers=(replace(writer, started=started),)).to_bytes())


AS_ANOTHER_USER = """
import os, subprocess
from merlin.execution import processes, sessions

def sleep(**more):
    return subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)

processes._GRACE_S = processes._KILL_WAIT_S = sessions.KILL_WAIT_S = 1e6
alone, beside = sleep(process_group=0), sleep(process_group=0)
print(alone.pid, beside.pid, flush=True)
os.setresuid(65534, 65534, 65534)
ours, last = sleep(process_group=beside.pid), sleep()
print(ours.pid, last.pid, flush=True)
processes.kill_group(alone.pid)
processes.kill_group(beside.pid)
assert ours.wait() == -15
sessions.kill_session(os.getpid())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of another user")
def test_processes_of_another_user_neither_break_nor_delay_the_end_of_the_others() -> None:
    """As those of `sudo` in a task."""
    command = [sys.executable, "-c", AS_ANOTHER_USER]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=120)
    started = [int(pid) for pid in done.stdout.split()]
    try:
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert [read_process(pid) is not None for pid in started] == [True, True, False, False]
    finally:
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_live_leader_of_an_orphaned_session_is_killed(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 5, command="true"))
    orphan = subprocess.Popen(["sleep", "600"], start_new_session=True)
    LedgerWriter(workspace.ledger_dir, "w0", pid=orphan.pid).close()
    LedgerWriter(workspace.ledger_dir, "controller", pid=os.getpid()).close()
    assert kill_orphans(workspace) == [orphan.pid]
    assert orphan.wait(timeout=120) == -9
