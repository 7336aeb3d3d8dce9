"""Commands that explain a study with many failures: how long they take, and what they need."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from measure import MERLIN, fresh, median_s, run
from report import Row, mb

RECORD = 2000  # tasks per ledger record, as in `scale`
SPEC = """
description: {name: failing, description: tasks of which some fail}
study:
  - name: sim
    run: {cmd: "echo $(X0) $(X1) $(X2) $(X3) $(X4) $(X5)"}
merlin:
  samples:
    generate: {method: uniform, num: NUM, bounds: {BOUNDS}, seed: 1}
    column_labels: [X0, X1, X2, X3, X4, X5]
"""
CAUSES = (
    "ValueError: negative pressure {0} in cell {1}",
    "no convergence after {1} iterations, residual {0}",
    "cannot open /scratch/run_{1}/restart.h5: no such file",
    "license server timed out at 12:{2:02d}:{3:02d}",
)


def failing_study(folder: Path, num: int, num_failed: int) -> Path:
    """A workspace whose ledger says that some of `num` tasks failed, most of them with a large X0; none ever ran."""
    from merlin.ledger.records import ChunkRecord, Failure
    from merlin.ledger.writer import LedgerWriter
    from merlin.plan.tasks import Outcome
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    folder = fresh(folder)
    bounds = ", ".join(f"X{i}: [0, 1]" for i in range(6))
    (folder / "failing.yaml").write_text(SPEC.replace("NUM", str(num)).replace("BOUNDS", bounds))
    variables = {"OUTPUT_PATH": str(folder)}
    workspace = prepare_study(load_spec(folder / "failing.yaml", variables=variables), StudyOptions())
    random = np.random.default_rng(0)
    x0 = workspace.samples().rows(0, num)["X0"]
    weights = np.where(x0 > 0.95, 50.0, 1.0)
    failed = np.sort(random.choice(num, num_failed, replace=False, p=weights / weights.sum()))
    writers = [LedgerWriter(workspace.ledger_dir, f"worker-{i}") for i in range(2)]
    for k, lo in enumerate(range(0, num, RECORD)):
        hi = min(lo + RECORD, num)
        here = failed[(failed >= lo) & (failed < hi)]
        outcomes = np.full(hi - lo, Outcome.OK, dtype=np.uint8)
        outcomes[here - lo] = Outcome.FAILED
        failures = []
        for task in here.tolist():
            cause = CAUSES[task % len(CAUSES)].format(random.random(), task, task % 60, task % 59)
            failures.append(Failure(task=task, cause="exit code 1", exit_code=1, tail=f"step 1\n{cause}\n"))
        writers[k % 2].append(
            ChunkRecord(
                instance="sim",
                lo=lo,
                hi=hi,
                host=os.uname().nodename,
                started=time.time(),
                outcomes=outcomes,
                seconds=random.gamma(2.0, 2e-4, hi - lo).astype(np.float32),
                failures=tuple(failures),
            )
        )
    for writer in writers:
        writer.close()
    return workspace.path


def failures(tmp: Path, rounds: int, num: int) -> list[Row]:
    num_failed = num // 100
    workspace = failing_study(tmp / "failures", num, num_failed)
    commands = {
        "failures": [MERLIN, "failures", str(workspace), "--json"],
        "explain": [MERLIN, "explain", str(workspace), "--json"],
    }
    what = f"of {num:,} tasks, {num_failed:,} of them failed"
    rows = []
    for name, floor in (("failures", "≤ 1 s"), ("explain", "")):
        # a study with failures is not well, so the command exits with 1
        timings = [
            run(["sh", "-c", '"$@" || test $? = 1', "sh", *commands[name]], tmp)
            for _ in range(max(rounds, 5))
        ]
        seconds = median_s(timings)
        rows.append(Row(f"merlin {name} {what}", f"{seconds:.2f} s", floor=floor, memory=mb(timings)))
    return rows


def timeline(tmp: Path, rounds: int, num: int) -> list[Row]:
    """A record for each task, as of simulations that take seconds."""
    from merlin.ledger.records import ChunkRecord
    from merlin.ledger.writer import LedgerWriter
    from merlin.workspace.directory import open_workspace

    workspace = open_workspace(failing_study(tmp / "timeline", num, 0 if num < 100 else num // 100))
    one, seconds = np.zeros(1, np.uint8), np.ones(1, np.float32)
    writers = [LedgerWriter(workspace.ledger_dir, f"slow-{i}") for i in range(8)]
    for lo in range(0, num, 1000):
        records = [
            ChunkRecord(
                instance="sim",
                lo=task,
                hi=task + 1,
                attempt=2,
                started=1e9 + task,
                elapsed_s=1.0,
                outcomes=one,
                seconds=seconds,
            )
            for task in range(lo, min(num, lo + 1000))
        ]
        writers[lo // 1000 % 8].append(*records)
    for writer in writers:
        writer.close()
    command = [MERLIN, "timeline", str(workspace.path), "-o", str(tmp / "trace.json")]
    timings = [run(command, tmp) for _ in range(rounds)]
    took = median_s(timings)
    size = (tmp / "trace.json").stat().st_size / 1e6
    what = f"merlin timeline of {num:,} tasks with a record each ({size:.0f} MB)"
    return [Row(what, f"{took:.1f} s", floor="≤ 200 MB", memory=mb(timings))]
