"""Latency of the commands at ensemble scale: plan, status and restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from measure import MERLIN, SPECS, Timing, fresh, made_apart, median_s, run, until
from report import Row, mb

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

RECORD = 2000  # tasks per ledger record, about what the learned chunk size gives for null shell tasks


def plan(tmp: Path, rounds: int, num: int) -> list[Row]:
    command = [MERLIN, "plan", str(SPECS / "null_shell.yaml"), "--json", "--vars", f"N_SAMPLES={num}"]
    timings = [run(command, fresh(tmp / "plan")) for _ in range(rounds)]
    seconds = median_s(timings)
    return [
        Row(
            f"plan of a {num:,}-sample study", f"{seconds:.2f} s", floor="≤ 2 s, < 200 MB", memory=mb(timings)
        )
    ]


def prepared_study(folder: Path, num: int) -> Workspace:
    """A workspace of `num` shell tasks, of which none has run."""
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    variables = {"N_SAMPLES": str(num), "OUTPUT_PATH": str(fresh(folder))}
    return prepare_study(load_spec(SPECS / "null_shell.yaml", variables=variables), StudyOptions())


def finished_study(
    folder: Path, num: int, num_missing: int, *, record: int = RECORD, num_left: int = 0
) -> Path:
    """A workspace whose ledger says that all but `num_missing` random tasks ended ok; the tasks never ran.

    Nothing is said of `num_left` tasks behind those; `record`: tasks per record.
    """
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    from merlin.plan.tasks import NO_OUTCOME, Outcome

    workspace = prepared_study(folder, num + num_left)
    random = np.random.default_rng(0)
    outcomes = np.full(num, Outcome.OK, dtype=np.uint8)
    if num_missing:
        outcomes[random.choice(num, num_missing, replace=False)] = NO_OUTCOME
    writers = [LedgerWriter(workspace.ledger_dir, f"worker-{i}") for i in range(2)]
    for k, lo in enumerate(range(0, num, record)):
        hi = min(lo + record, num)
        writers[k % 2].append(
            ChunkRecord(
                instance="null_step",
                lo=lo,
                hi=hi,
                attempt=1,
                worker=f"worker-{k % 2}",
                host=os.uname().nodename,
                started=time.time(),
                outcomes=outcomes[lo:hi],
                seconds=random.gamma(2.0, 2e-4, hi - lo).astype(np.float32),
                exit_codes=np.zeros(hi - lo, dtype=np.int16),
            )
        )
    for writer in writers:
        writer.close()
    return workspace.path


# a run that holds the workspace, and appends the records of the tasks [LO, HI) as fast as it can
WRITER = """
import sys, time
import numpy as np
from merlin.ledger.records import ChunkRecord, EventRecord
from merlin.ledger.writer import LedgerWriter
from merlin.workspace.directory import open_workspace
from merlin.workspace.holding import lock
study, lo, hi = open_workspace(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with lock(study), LedgerWriter(study.ledger_dir, "w", session="run", study_id=study.plan.study_id) as writer:
    writer.append(EventRecord(kind="run_started", data={"workers": 1}))
    for at in range(lo, hi, 20):
        writer.append(ChunkRecord(
            instance="null_step", lo=at, hi=at + 20, started=time.time(), elapsed_s=0.02,
            outcomes=np.zeros(20, np.uint8), seconds=np.full(20, 0.001, np.float32),
        ))
        if at == lo:
            print("writes", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writing(workspace: Path, lo: int, hi: int) -> Iterator[None]:
    """A run appends to the ledger meanwhile, as fast as one process can."""
    command = [sys.executable, "-c", WRITER, str(workspace), str(lo), str(hi)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writes\n"
        try:
            yield
        finally:
            writer.kill()


def _drop_from_memory(workspace: Path) -> None:
    """Let the ledger be read from the disk the next time."""
    for path in (workspace / "merlin_info/ledger").iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _status_of(tmp: Path, workspace: Path, rounds: int, num_left: int) -> list[Timing]:
    """Of the command, cold: a new process, and the ledger not in memory. With tasks left, a run writes meanwhile."""
    timings = []
    num = int(json.loads((workspace / "merlin_info/plan.json").read_text())["instances"][0]["num_tasks"])
    command = [MERLIN, "status", str(workspace), "--json"]
    for k in range(max(rounds, 5)):
        _drop_from_memory(workspace)
        if not num_left:
            timings.append(run(command, tmp))
            continue
        part = num_left // max(rounds, 5)
        lo = num - num_left + k * part
        with writing(workspace, lo, lo + part):
            timings.append(run(command, tmp))
    return timings


def _status_rows(tmp: Path, rounds: int, num: int, floor: str) -> list[Row]:
    def row(what: str, workspace: Path, num_left: int = 0, floor: str = floor) -> Row:
        timings = _status_of(tmp, workspace, rounds, num_left)
        return Row(
            f"status of {num:,} tasks, {what}",
            f"{median_s(timings):.2f} s",
            floor=floor,
            memory=mb(timings),
        )

    num_left = num // 10
    return [
        row("cold", made_apart(finished_study, tmp / "status", num, 0)),
        row(
            "cold, while a run writes as fast as it can",
            made_apart(finished_study, tmp / "writing", num - num_left, 0, num_left=num_left),
            num_left,
        ),
    ]


def status(tmp: Path, rounds: int, num: int) -> list[Row]:
    rows = _status_rows(tmp, rounds, num, "≤ 0.3 s, ≤ 200 MB")
    singles = made_apart(finished_study, tmp / "singles", num, 0, record=1)
    timings = _status_of(tmp, singles, rounds, 0)
    seconds = median_s(timings)
    what = f"status of {num:,} tasks that took seconds each, so that each has a record of its own, cold"
    return [*rows, Row(what, f"{seconds:.2f} s", memory=mb(timings))]


def status_large(tmp: Path, rounds: int, num: int) -> list[Row]:
    return _status_rows(tmp, rounds, num, "≤ 2 s, ≤ 200 MB")


def restart(tmp: Path, rounds: int, num: int) -> list[Row]:
    timings: list[Timing] = []
    for _ in range(rounds):
        workspace = finished_study(tmp / "restart", num, 1000)
        step = workspace / "null_step"
        command = [MERLIN, "restart", str(workspace), "--workers", "2"]
        timings.append(until(command, tmp, lambda s=step: any(s.rglob("MERLIN_FINISHED"))))
    seconds = median_s(timings)
    what = f"restart of {num:,} tasks with 1,000 missing, to the first rerun"
    return [Row(what, f"{seconds:.2f} s", floor="≤ 3 s", memory=mb(timings))]
