"""A workspace on disk with samples, two steps and a ledger, made without a spec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small_plans import step
from study_on_disk import write_study

from merlin.ledger.records import ChunkRecord, EventRecord, Failure, RangeRecord, Record
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import Workspace

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)


def make_workspace(path: Path, *, num: int = 20, labels: tuple[str, ...] = ("X0", "step")) -> Workspace:
    """A study of `sim` (two parameter values, per sample), `post` (per sample) and `end` (one task)."""
    return write_study(
        path,
        step("sim/P.1", num, step="sim", label="P.1", params={"P": 1}, queue="hot"),
        step("sim/P.2", num, step="sim", label="P.2", params={"P": 2}, queue="hot"),
        step("post", num),
        step("end", 1, per_sample=False),
        labels=labels,
    )


def add(
    workspace: Workspace, *records: Record, worker: str = "w0", session: str = "run1", host: str = "node1"
) -> None:
    """Append as this worker."""
    study_id = workspace.plan.study_id
    with LedgerWriter(
        workspace.ledger_dir, worker, session=session, study_id=study_id, host=host, sync=False
    ) as writer:
        writer.append(*records)


def chunk(
    instance: str, lo: int, outcomes: list[int], *, started: float = 1000.0, elapsed_s: float = 10.0, **more
):
    num = len(outcomes)
    return ChunkRecord(
        instance=instance,
        lo=lo,
        hi=lo + num,
        started=started,
        elapsed_s=elapsed_s,
        outcomes=np.array(outcomes, np.uint8),
        seconds=np.full(num, 0.5, np.float32),
        started_offsets=np.arange(num, dtype=np.float32),
        **more,
    )


def failed(task: int, cause: str = "exit code 3", exit_code: int = 3, tail: str = "") -> Failure:
    return Failure(task=task, cause=cause, exit_code=exit_code, tail=tail)


def fill(workspace: Workspace) -> None:
    """Outcomes: sim/P.1: 17 ok, 3 failed; sim/P.2: 10 ok; post: 5 skipped, 1 failed by range; end: missing."""
    failures = (
        failed(3, tail="step 3\nValueError: bad 3"),
        failed(4, tail="step 4\nValueError: bad 44"),
        failed(9, "timeout after 5 s", -9),
    )
    first = [FAILED if i in (3, 4, 9) else OK for i in range(20)]
    add(workspace, EventRecord(kind="run_started", data={"workers": 2}, time=999.0), worker="controller")
    add(workspace, chunk("sim/P.1", 0, first, failures=failures))
    add(
        workspace,
        chunk("sim/P.2", 0, [OK] * 10 + [NO_OUTCOME] * 2, started=1005.0),
        worker="w1",
        host="node2",
    )
    add(
        workspace,
        RangeRecord(instance="post", lo=0, hi=5, outcome=SKIPPED, cause="sim failed", started=1011.0),
        RangeRecord(
            instance="post", lo=5, hi=6, outcome=FAILED, cause="killed its worker 3 times", started=1011.0
        ),
        EventRecord(kind="run_stopped", data={"reason": "interrupted"}, time=1020.0),
        worker="controller",
    )
