"""Latency of the commands at ensemble scale: plan, status and restart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from measure import MERLIN, SPECS, Timing, fresh, median, run, until
from report import Row, mb

RECORD = 2000  # tasks per ledger record, about what the learned chunk size gives for null shell tasks


def plan(tmp: Path, rounds: int, num: int) -> list[Row]:
    command = [MERLIN, "plan", str(SPECS / "null_shell.yaml"), "--json", "--vars", f"N_SAMPLES={num}"]
    timings = [run(command, fresh(tmp / "plan")) for _ in range(rounds)]
    seconds = median([t.seconds for t in timings])
    return [
        Row(f"plan of a {num:,}-sample study", f"{seconds:.2f} s", "", "", "≤ 2 s, < 200 MB", mb(timings))
    ]


def finished_study(folder: Path, num: int, num_missing: int) -> Path:
    """A workspace whose ledger says that all but `num_missing` random tasks ended ok; the tasks never ran."""
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    from merlin.plan.tasks import NO_OUTCOME, Outcome
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    folder = fresh(folder)
    variables = {"N_SAMPLES": str(num), "OUTPUT_PATH": str(folder)}
    spec = load_spec(SPECS / "null_shell.yaml", variables=variables)
    workspace = prepare_study(spec, StudyOptions())
    random = np.random.default_rng(0)
    outcomes = np.full(num, Outcome.OK, dtype=np.uint8)
    outcomes[random.choice(num, num_missing, replace=False)] = NO_OUTCOME
    writers = [LedgerWriter(workspace.ledger_dir, f"worker-{i}") for i in range(2)]
    for k, lo in enumerate(range(0, num, RECORD)):
        hi = min(lo + RECORD, num)
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


def status(tmp: Path, rounds: int, num: int) -> list[Row]:
    workspace = finished_study(tmp / "status", num, 0)
    timings = [run([MERLIN, "status", str(workspace), "--json"], tmp) for _ in range(max(rounds, 5))]
    seconds = median([t.seconds for t in timings])
    return [
        Row(f"status of {num:,} finished tasks, cold", f"{seconds:.2f} s", "", "", "≤ 0.7 s", mb(timings))
    ]


def restart(tmp: Path, rounds: int, num: int) -> list[Row]:
    timings: list[Timing] = []
    for _ in range(rounds):
        workspace = finished_study(tmp / "restart", num, 1000)
        step = workspace / "null_step"
        command = [MERLIN, "restart", str(workspace), "--workers", "2"]
        timings.append(until(command, tmp, lambda s=step: any(s.rglob("MERLIN_FINISHED"))))
    seconds = median([t.seconds for t in timings])
    what = f"restart of {num:,} tasks with 1,000 missing, to the first rerun"
    return [Row(what, f"{seconds:.2f} s", "", "", "≤ 3 s", mb(timings))]
