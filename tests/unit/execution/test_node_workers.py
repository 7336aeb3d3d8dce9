"""What starts on each node of an allocation: all of its workers, told and ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from merlin.batch.cores import usable_cores
from merlin.batch.here import Here, find_here
from merlin.execution.distributed.node_workers import command, filled_in, place

IN_JOB = {"SLURM_JOB_ID": "71", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "node2"}
OBEYS = """
import os, pathlib, signal, sys, time
def note(number, frame):
    with open(sys.argv[1], "a") as file: file.write(f"{number}\\n")
    if number == signal.SIGTERM: sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGUSR1, note); signal.signal(signal.SIGTERM, note)
pathlib.Path(sys.argv[1]).touch()
print("I am", *sys.argv[3:], flush=True)
while True: signal.pause()
"""


def start(folder: Path, **codes: int) -> subprocess.Popen[bytes]:
    workers = {
        name: [sys.executable, "-c", OBEYS, str(folder / name), str(code), f"{name}.%node", "%cores"]
        for name, code in codes.items()
    }
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    return subprocess.Popen(command(workers, folder / "logs"), env={**outside, **IN_JOB})


@pytest.mark.parametrize(("codes", "expected"), [({"a": 0, "b": 0}, 0), ({"a": 3, "b": 0}, 1)])
def test_all_workers_get_the_signals_and_are_waited_for(tmp_path, codes, expected):
    process = start(tmp_path, **codes)
    try:
        wait_until(lambda: all((tmp_path / name).exists() for name in codes))
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: all((tmp_path / name).read_text() for name in codes))
        process.terminate()
        assert process.wait(timeout=120) == expected
    finally:
        process.kill()
    for name in codes:
        assert (tmp_path / name).read_text().split() == [
            str(int(n)) for n in (signal.SIGUSR1, signal.SIGTERM)
        ]
        cores = usable_cores()
        assert (tmp_path / "logs" / f"{name}.71.node2.log").read_text() == f"I am {name}.71.node2 {cores}\n"


def test_a_name_says_the_job_and_the_node_as_the_scheduler_calls_them():
    assert place(find_here(IN_JOB)) == "71.node2"
    assert place(Here(host="n.lab", cores=1, job="7.pbs")) == "7.n.lab"
    assert place(Here(host="n.lab", cores=1)) == "n.lab"
    assert filled_in(["-n", "a.%node", "--concurrency", "%cores"], "7.n1", 8) == [
        "-n",
        "a.7.n1",
        "--concurrency",
        "8",
    ]


@pytest.mark.parametrize("program", ["merlin.execution.distributed.node_workers", "merlin.cli.job_workers"])
def test_the_programs_of_a_job_import_little(program):
    script = f"import sys, {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "redis", "celery", "yaml", "numpy", "asyncio"}
    assert {name.split(".")[0] for name in done.stdout.split()} & heavy == set()


def test_the_command_holds_words_that_no_shell_changes(tmp_path):
    words = ["a b", "'", '"', "$HOME", "\n"]
    assert json.loads(command({"x": words}, tmp_path)[-1])["workers"]["x"] == words
