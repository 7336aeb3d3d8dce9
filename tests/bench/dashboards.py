"""What the dashboard costs and how soon it answers, while the study that it shows writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
from measure import MERLIN, cpu_s, peak_bytes
from report import Row
from scale import prepared_study

NUM_CLIENTS = 100
SECONDS = 20.0
NUM_ASKED = 30  # times for each address
PAUSE_S = 0.5  # between two questions
RECORD = 500  # tasks
RECORDS_PER_S = 20
FAILED_OF = 100  # one task of so many
ADDRESSES = {
    "the study": "",
    "throughput": "/throughput",
    "heat map": "/heat?step=null_step",
    "tasks": "/tasks?step=null_step&outcome=failed&after={task}",
    "a task": "/task?instance=null_step&task={task}",
}
FAILURES = "/failures"
# a run that holds the workspace, and appends a record of 50 tasks now and then; every other has a failure
WRITER = """
import sys, time
import numpy as np
from merlin.ledger.records import ChunkRecord, Failure
from merlin.ledger.writer import LedgerWriter
from merlin.workspace.directory import open_workspace
from merlin.workspace.holding import lock
study, at = open_workspace(sys.argv[1]), int(sys.argv[2])
with lock(study), LedgerWriter(study.ledger_dir, "w1", session="run", study_id=study.plan.study_id) as writer:
    while at < study.plan.instances[0].num_tasks:
        failures = (Failure(task=at, cause="exit code 3", exit_code=3, tail="no luck"),) if at % 100 else ()
        outcomes = np.zeros(50, np.uint8)
        outcomes[: len(failures)] = 1
        writer.append(ChunkRecord(
            instance="null_step", lo=at, hi=at + 50, started=time.time(), elapsed_s=0.05,
            outcomes=outcomes, failures=failures, seconds=np.full(50, 0.001, np.float32),
            started_offsets=np.zeros(50, np.float32),
        ))
        at += 50
        time.sleep(1 / float(sys.argv[3]))
"""


def half_a_study(folder: Path, num: int) -> Path:
    """A workspace whose ledger says that half of the tasks have ended, one of a hundred not ok; none of them ran."""
    from merlin.ledger.records import ChunkRecord, EventRecord, Failure
    from merlin.ledger.writer import LedgerWriter

    study = prepared_study(folder, num)
    began, random = time.time() - 600, np.random.default_rng(0)
    with LedgerWriter(study.ledger_dir, "w0", session="run", study_id=study.plan.study_id) as writer:
        writer.append(EventRecord(kind="run_started", data={"workers": 2}, time=began))
        for lo in range(0, num // 2, RECORD):
            failed = np.flatnonzero(random.random(RECORD) < 1 / FAILED_OF)
            outcomes = np.zeros(RECORD, np.uint8)
            outcomes[failed] = 1
            failures = tuple(
                Failure(task=lo + int(i), cause="exit code 3", exit_code=3, tail=f"no luck {i}\n")
                for i in failed
            )
            record = ChunkRecord(
                instance="null_step", lo=lo, hi=lo + RECORD, started=began + 590 * lo / num, elapsed_s=0.5,
                outcomes=outcomes, seconds=np.full(RECORD, 0.001, np.float32),
                started_offsets=np.zeros(RECORD, np.float32), failures=failures,
            )  # fmt: skip
            writer.append(record)
    return study.path


@dataclass(frozen=True)
class Dashboard:
    pid: int
    port: int
    token: str
    study: str  # its address

    def ask(self, address: str) -> float:
        """Seconds until the whole answer is here."""
        asked = Request(
            f"http://127.0.0.1:{self.port}{self.study}{address}",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        begin = time.perf_counter()
        with urlopen(asked, timeout=100) as answer:
            answer.read()
        return time.perf_counter() - begin


@contextmanager
def watched(workspace: Path, num: int) -> Iterator[Dashboard]:
    """A dashboard of a study that writes."""
    command = [MERLIN, "dashboard", "--json", "--port", "0", str(workspace)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    words = [sys.executable, "-c", WRITER, str(workspace), str(num // 2), str(RECORDS_PER_S)]
    writer = subprocess.Popen(words)
    try:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        token = facts["url"].partition("token=")[2]
        yield Dashboard(facts["pid"], facts["port"], token, f"/api/study/{workspace.name}")
    finally:
        for process in (writer, server):
            process.kill()
            process.wait()


async def _listen(dashboard: Dashboard, counts: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
    request = f"GET {dashboard.study}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    writer.write(f"{request}Authorization: Bearer {dashboard.token}\r\n\r\n".encode())
    try:
        while data := await reader.read(1 << 16):
            counts[0] += data.count(b"event: study\n")
    finally:
        writer.close()


async def _share_of_a_core(dashboard: Dashboard) -> tuple[float, float]:
    """Of `NUM_CLIENTS` browsers; and how many events each of them got in a second."""
    counts = [0]
    clients = [asyncio.create_task(_listen(dashboard, counts)) for _ in range(NUM_CLIENTS)]
    while counts[0] < NUM_CLIENTS:  # all have begun
        await asyncio.sleep(0.1)
    begin, cpu_before, num = time.perf_counter(), cpu_s(dashboard.pid), counts[0]
    await asyncio.sleep(SECONDS)
    took_s = time.perf_counter() - begin
    share = (cpu_s(dashboard.pid) - cpu_before) / took_s
    events = (counts[0] - num) / NUM_CLIENTS / took_s
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return share, events


def _p95_ms(dashboard: Dashboard, address: str, pause_s: float = PAUSE_S) -> float:
    seconds = []
    for i in range(NUM_ASKED):
        time.sleep(pause_s)
        seconds.append(dashboard.ask(address.format(task=17 * i)))
    return float(np.percentile(seconds, 95)) * 1e3


def dashboard(tmp: Path, rounds: int, num: int) -> list[Row]:
    workspace = half_a_study(tmp / "dashboard", num)
    with watched(workspace, num) as server:
        cold_s = server.ask("")
        share, events = asyncio.run(_share_of_a_core(server))
        p95 = {what: _p95_ms(server, address) for what, address in ADDRESSES.items()}
        failures_ms = _p95_ms(server, FAILURES, pause_s=4.0)
        memory = f"{peak_bytes(server.pid) / 1e6:.0f} MB"
    slowest = max(p95, key=lambda what: p95[what])
    listed = ", ".join(f"{what} {ms:.0f}" for what, ms in p95.items() if what != slowest)
    study = f"a study of {num:,} tasks that writes {RECORDS_PER_S} records a second"
    return [
        Row(
            f"{NUM_CLIENTS} browsers watch {study}: CPU of the dashboard",
            f"{share:.1%} of a core; {events:.1f} events a second for each",
            floor="< 20 %",
            memory=memory,
        ),
        Row(
            f"the dashboard's answers about {study}, p95; the first look at it",
            f"{p95[slowest]:.0f} ms ({slowest}; others in ms: {listed}); {cold_s:.2f} s",
            floor="≤ 100 ms",
            memory=memory,
        ),
        Row(
            f"the dashboard's groups of failures of {study}, ten of them failures, p95",
            f"{failures_ms:.0f} ms",
            floor="≤ 1 s",
            memory=memory,
        ),
    ]
