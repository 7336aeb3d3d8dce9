"""Worker processes that are copies of a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_plans import step
from study_on_disk import make_workspace, write_study

from merlin.execution import fork_server
from merlin.execution.fork_server import ForkServer, ForkServers, ServedProcess
from merlin.execution.pool import WorkerProcess, crash_report
from merlin.execution.waiting import is_readable
from merlin.execution.wire import Result
from merlin.ledger.records import MAX_TAIL_CHARS
from merlin.plan.plan import Plan, StepKind
from merlin.plan.tasks import Chunk
from merlin.workspace.directory import open_workspace

USER = """
import sys
from merlin.execution.fork_server import ForkServer
print(ForkServer.copy(1)._process.pid, flush=True)
sys.stdin.read()
"""


MODEL = """
import atexit, sys
from pathlib import Path
import numpy as np
others = [name for name in ("celery", "click", "h5py", "kombu", "rich", "torch") if name in sys.modules]
atexit.register(lambda: (FOLDER / "ended").write_text(str(others)))
def draw(inputs, context):
    global FOLDER
    FOLDER = Path(context.workspace).parent
    (FOLDER / "drawn").write_text(str(np.random.random()))
    return {"y": inputs["X"]}
"""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    monkeypatch.setattr(fork_server, "LOADING_S", 100.0)
    made = ForkServers(1)
    made._copy = ForkServer.copy(1)  # the tests have loaded libraries with which nobody should
    yield made
    made.close()


@pytest.fixture
def server(servers: ForkServers) -> ForkServer:
    assert servers._copy is not None
    return servers._copy


def start(servers: ForkServers, root: Path, name: str = "w0", **more: Any) -> WorkerProcess:
    root.mkdir(exist_ok=True)
    more = more or {"command": "echo $(X) > out.txt"}
    workspace = make_workspace(root, step("sim", 3, **more))
    return WorkerProcess(workspace, name, session="", num_threads=1, servers=servers)


def run(worker: WorkerProcess) -> None:
    """Run its three tasks, and end it."""
    worker.run(Chunk(instance="sim", lo=0, hi=3))
    while not any(isinstance(message, Result) for message in worker.channel.receive(wait=True)):
        pass
    worker.leave(now=False)
    worker.channel.receive(wait=True)
    assert worker.channel.is_closed  # nobody else holds the other end of its socket
    assert worker.process.wait(timeout=60) == 0 and worker.describe_exit() == "exit code 0"
    worker.close()


def worker_plan(root: Path) -> Plan:
    return open_workspace(root / "study_20260101-000000").plan


def end(worker: WorkerProcess) -> None:
    worker.kill()
    worker.process.wait(60)
    worker.close()


def test_a_copy_runs_tasks_and_ends_when_it_is_asked(servers: ForkServers, tmp_path: Path) -> None:
    worker = start(servers, tmp_path / "a")
    assert isinstance(worker.process, ServedProcess) and worker.process.poll() is None
    run(worker)
    assert {path.read_text() for path in (tmp_path / "a").rglob("out.txt")} == {"0.0\n", "1.0\n", "2.0\n"}


def test_a_copy_leads_a_session_with_which_it_is_killed(servers: ForkServers, tmp_path: Path) -> None:
    worker, other = start(servers, tmp_path / "a"), start(servers, tmp_path / "b")
    assert os.getsid(worker.process.pid) == worker.process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=0)
    worker.kill()
    assert worker.describe_exit() == "SIGKILL"
    assert other.process.poll() is None
    end(worker)
    end(other)


def test_an_error_of_a_copy_is_in_its_log(servers: ForkServers, tmp_path: Path) -> None:
    worker = start(servers, tmp_path / "a")
    worker.run(Chunk(instance="sim", lo=0, hi=30))  # of three tasks
    assert worker.process.wait(timeout=60) == 1
    assert "IndexError" in worker.log_tail()
    end(worker)


CRASH = "Fatal Python error: {0}\n\nCurrent thread 0x1 (most recent call first):\n  in {0}\n  in outer\n\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_reports_a_crash_only_if_a_fault_killed_it(
    servers: ForkServers, tmp_path: Path, number: signal.Signals
) -> None:
    workspace = write_study(tmp_path / "study/extensions/001", step("sim", 3), extension=1)
    worker = WorkerProcess(workspace, "w0", session="", num_threads=1, servers=servers)
    while not (worker.is_ready or worker.channel.is_closed):
        for message in worker.channel.receive(wait=True):
            worker.note(message)
    with worker.log.open("a") as log:
        log.write(CRASH.format("child"))
    os.kill(worker.process.pid, number)
    assert worker.describe_exit() == number.name
    report = worker.crash_report()
    if number == signal.SIGKILL:
        assert report == ""
    else:
        assert report.splitlines()[-2:] == [
            "Fatal Python error: Segmentation fault",
            "log: extensions/001/merlin_info/logs/w0.err",
        ]
        assert "child" not in report
    end(worker)


def test_a_crash_report_is_of_the_last_crash_and_fits_into_the_ledger() -> None:
    report = ["Calls (the last one last):", "  in outer", "  in b", "Fatal Python error: b", "log: w"]
    assert crash_report(CRASH.format("a") + CRASH.format("b"), "log: w").splitlines() == report
    assert (
        crash_report(CRASH.format("a") + "Fatal Python error: b\n", "log: w")
        == "Fatal Python error: b\nlog: w"
    )
    long = "Current thread 0x1:\n" + "".join(f"  File {i} {'x' * 150}\n" for i in range(16))
    first, call, *_, last, log = crash_report(long, "log: w").splitlines()
    assert (first, log) == (report[0], "log: w") and "File 0 " in last and "File 11 " in call
    assert len(crash_report(long, "log: w")) <= MAX_TAIL_CHARS
    assert crash_report("nothing", "log: w") == ""


def test_a_signal_to_all_processes_does_not_end_the_server(
    servers: ForkServers, server: ForkServer, tmp_path: Path
) -> None:
    assert server.can_serve()  # before that, a signal may end it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(server._process.pid, number)
    worker = start(servers, tmp_path / "a")
    assert isinstance(worker.process, ServedProcess)
    end(worker)


def test_where_the_server_was_killed_the_next_is_a_new_python(
    servers: ForkServers, server: ForkServer, tmp_path: Path
) -> None:
    before = start(servers, tmp_path / "a")
    server._process.kill()
    server._process.wait()
    assert before.process.poll() is None
    worker = start(servers, tmp_path / "b")
    assert isinstance(worker.process, subprocess.Popen)
    end(worker)
    before.kill()
    assert before.describe_exit() == "SIGKILL"
    before.close()


def test_functions_run_in_copies_of_a_new_python(servers: ForkServers, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    for name in ("w0", "w1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").symlink_to(tmp_path / "model.py")
        worker = start(servers, tmp_path / name, name, kind=StepKind.FUNCTION, function="model:draw")
        assert isinstance(worker.process, ServedProcess)
        assert os.getsid(worker.process.pid) == worker.process.pid
        run(worker)
    first, second = ((tmp_path / name / "drawn").read_text() for name in ("w0", "w1"))
    assert first != second  # the global generators of the copies differ
    # it ended as a Python does, and has what `python -m merlin.execution.worker` has
    assert (tmp_path / "w0" / "ended").read_text() == "[]"


def test_a_server_of_functions_that_was_killed_is_replaced(servers: ForkServers, tmp_path: Path) -> None:
    more = {"kind": StepKind.FUNCTION, "function": "math:sqrt"}
    end(start(servers, tmp_path / "a", **more))
    assert servers._new is not None
    os.kill(servers._new._process.pid, signal.SIGKILL)
    servers._new._process.wait()
    worker, later = start(servers, tmp_path / "b", **more), start(servers, tmp_path / "c", **more)
    assert isinstance(worker.process, subprocess.Popen)
    assert isinstance(later.process, ServedProcess)
    end(worker)
    end(later)


def test_a_server_that_cannot_load_leaves_the_work_to_new_pythons(
    servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = start(servers, tmp_path / "a", kind=StepKind.FUNCTION, function="math:sqrt")
    assert isinstance(worker.process, subprocess.Popen)
    assert worker.process.wait(60) == 3
    server = servers._new
    assert server is not None and server.is_dead and servers.of(worker_plan(tmp_path / "a")) is server
    end(worker)


def test_a_server_is_renewed_when_packages_were_installed(
    servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr("sys.path", [*sys.path, str(packages)])
    more = {"kind": StepKind.FUNCTION, "function": "math:sqrt"}
    first = start(servers, tmp_path / "a", **more)
    before = servers._new
    (packages / "another.pth").write_text("")
    second = start(servers, tmp_path / "b", **more)
    assert isinstance(second.process, ServedProcess) and servers._new is not before
    for worker in (first, second):
        worker.kill()
        assert worker.describe_exit() == "SIGKILL"
        worker.close()
    assert before is not None and not before.is_dead  # it was asked for the exit code


def test_a_server_ends_with_the_process_that_uses_it() -> None:
    pipe = subprocess.PIPE
    user = subprocess.Popen([sys.executable, "-c", USER], stdin=pipe, stdout=pipe, text=True)
    assert user.stdout is not None and user.stdin is not None
    with user.stdin, user.stdout:
        fd = os.pidfd_open(int(user.stdout.readline()))
        user.kill()
        user.wait()
        try:
            assert is_readable(fd, 60)
        finally:
            os.close(fd)
