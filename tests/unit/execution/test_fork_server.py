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
from study_on_disk import make_workspace

from merlin.errors import ExecutionError
from merlin.execution.fork_server import ForkServer, ServedProcess
from merlin.execution.pool import WorkerProcess
from merlin.execution.waiting import is_readable
from merlin.plan.plan import StepKind
from merlin.plan.tasks import Chunk
from merlin.testing.plans import step

USER = """
import sys
from merlin.execution.fork_server import fork_server
print(fork_server(1)._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(1)
    yield made
    made.close()


def start(server: ForkServer, root: Path, name: str = "w0", **more: Any) -> WorkerProcess:
    root.mkdir(exist_ok=True)
    workspace = make_workspace(root, step("sim", 3, command="echo $(X) > out.txt", **more))
    return WorkerProcess(workspace, name, session="", num_threads=1, server=server)


def end(worker: WorkerProcess) -> None:
    worker.kill()
    worker.process.wait(60)
    worker.close()


def test_a_copy_runs_tasks_and_ends_when_it_is_asked(server: ForkServer, tmp_path: Path) -> None:
    worker = start(server, tmp_path / "a")
    assert isinstance(worker.process, ServedProcess) and worker.process.poll() is None
    worker.run(Chunk(instance="sim", lo=0, hi=3))
    told: list[str] = []
    while "result" not in told:
        told += [message["op"] for message in worker.channel.receive(wait=True)]
    worker.leave(now=False)
    worker.channel.receive(wait=True)
    assert worker.channel.is_closed  # nobody else holds the other end of its socket
    assert worker.process.wait(timeout=60) == 0 and worker.describe_exit() == "exit code 0"
    assert {path.read_text() for path in (tmp_path / "a").rglob("out.txt")} == {"0.0\n", "1.0\n", "2.0\n"}
    worker.close()


def test_a_copy_leads_a_session_with_which_it_is_killed(server: ForkServer, tmp_path: Path) -> None:
    worker, other = start(server, tmp_path / "a"), start(server, tmp_path / "b")
    assert os.getsid(worker.process.pid) == worker.process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=0)
    worker.kill()
    assert worker.describe_exit() == "SIGKILL"
    assert other.process.poll() is None
    end(worker)
    end(other)


def test_an_error_of_a_copy_is_in_its_log(server: ForkServer, tmp_path: Path) -> None:
    worker = start(server, tmp_path / "a")
    worker.channel.sock.sendall(b'{"op": "run"}\n')
    assert worker.process.wait(timeout=60) == 1
    assert "KeyError" in worker.log_tail()
    end(worker)


def test_a_signal_to_all_processes_does_not_end_the_server(server: ForkServer, tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(server._process.pid, number)
    worker = start(server, tmp_path / "a")
    assert isinstance(worker.process, ServedProcess)
    end(worker)


def test_where_the_server_was_killed_the_next_but_one_is_a_new_python(
    server: ForkServer, tmp_path: Path
) -> None:
    before = start(server, tmp_path / "a")
    server._process.kill()
    server._process.wait()
    assert before.process.poll() is None
    with pytest.raises(ExecutionError):  # it is not known whether this one has begun
        start(server, tmp_path / "b")
    worker = start(server, tmp_path / "c")
    assert isinstance(worker.process, subprocess.Popen)
    end(worker)
    before.kill()
    assert before.describe_exit() == "SIGKILL"
    before.close()


def test_functions_run_in_a_new_python(server: ForkServer, tmp_path: Path) -> None:
    worker = start(server, tmp_path / "a", kind=StepKind.FUNCTION, function="math:sqrt")
    assert isinstance(worker.process, subprocess.Popen)
    end(worker)


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
