"""The program of a job script: it starts the workers' launcher once the servers answer, and ends with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from merlin.cli import job_workers
from merlin.execution.distributed import node_workers

OBEYS = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[2])))
pathlib.Path(sys.argv[1]).write_text(os.environ["MERLIN_WALLTIME_END"])
while True: signal.pause()
"""
IN_JOB = {"SLURM_JOB_ID": "71", "SLURM_JOB_NODELIST": "node2", "SLURM_JOB_END_TIME": "2000000000"}


@pytest.fixture
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def started(server: str, argv: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "merlin.cli.job_workers", server, "--", *argv],
        cwd=folder,
        env={**os.environ, **IN_JOB},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("code", [0, 3])
def test_it_passes_signals_on_and_ends_as_the_workers_do(tmp_path: Path, server: str, code: int) -> None:
    workers = {"w": [sys.executable, "-c", OBEYS, str(tmp_path / "begun"), str(code)]}
    argv = ["env", *node_workers.command(workers, tmp_path / "logs")]  # in place of a launcher
    process = started(server, argv, tmp_path)
    wait_until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    assert (tmp_path / "begun").read_text() == "2000000000 71"
    process.terminate()
    _, told = process.communicate(timeout=120)
    assert process.returncode == bool(code)
    assert told == (
        f"the workers have ended: exit code 1; its log {tmp_path}/merlin_logs/w.log is empty\n" * bool(code)
    )


def test_without_an_answer_of_the_servers_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MERLIN_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.delenv("MERLIN_BACKEND_URL", raising=False)
    assert job_workers.main(["127.0.0.1:1", "--", "touch", "started"]) == 1
    assert "merlin: error: " in (told := capsys.readouterr().err)
    assert "127.0.0.1:1" in told
    assert not (tmp_path / "started").exists()


def test_a_launcher_that_is_not_there_is_named(tmp_path: Path, server: str) -> None:
    argv = ["no-such-srun", "-N", "2", *node_workers.command({"w": ["true"]}, tmp_path)]
    done = started(server, argv, tmp_path)
    assert "cannot start the worker w (no-such-srun)" in done.communicate(timeout=120)[1]
    assert done.returncode == 1
