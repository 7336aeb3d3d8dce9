"""How soon worker processes for functions of users are ready: copies of a server, against new Pythons."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
from measure import fresh, median, ratio
from report import Row
from small_plans import step
from study_on_disk import make_workspace

from merlin.execution.fork_server import ForkServers
from merlin.execution.pool import WorkerProcess
from merlin.execution.wire import Ready
from merlin.plan.plan import StepKind


def function_processes(tmp: Path, rounds: int, num: int) -> list[Row]:
    """`num` processes, the server among what is started, in turns with as many new Pythons."""
    served, new = [], []
    for _ in range(rounds):
        new.append(_started(fresh(tmp / "new"), num, None))
        servers = ForkServers(1)
        served.append(_started(fresh(tmp / "served"), num, servers))
        servers.close()
    what = (
        f"{num} worker processes for functions, until all are ready: copies of a server, against new Pythons"
    )
    seconds, memory = ([[found[k] for found in each] for each in (served, new)] for k in (0, 1))
    return [
        Row(
            what,
            f"{median(seconds[0]):.2f} s",
            f"{median(seconds[1]):.2f} s",
            f"{ratio(seconds[1], seconds[0]):.1f}×",
            memory=f"{median(memory[0]):.0f} MB, {median(memory[1]):.0f} MB",
        )
    ]


def _started(folder: Path, num: int, servers: ForkServers | None) -> tuple[float, float]:
    """The seconds until all processes are ready, and their memory in MB, each shared page counted once."""
    workspace = make_workspace(folder, step("sim", num, kind=StepKind.FUNCTION, function="math:sqrt"))
    begin = time.perf_counter()
    processes = [
        WorkerProcess(workspace, f"w{k}", session="", num_threads=1, servers=servers) for k in range(num)
    ]
    for process in processes:
        while Ready() not in process.channel.receive(wait=True):
            pass
    seconds = time.perf_counter() - begin
    memory = sum(child.memory_full_info().pss for child in psutil.Process().children(recursive=True)) / 1e6
    for process in processes:
        process.kill()
        process.process.wait()
        process.close()
    return seconds, memory
