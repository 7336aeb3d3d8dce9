"""A study of one step whose outcomes are written into its ledger by hand, for pages that only look."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from small_plans import step
from status_study import add
from study_on_disk import write_study

from merlin.ledger.records import ChunkRecord, EventRecord, Failure
from merlin.plan.tasks import Outcome
from merlin.workspace.directory import Workspace

OK, FAILED = int(Outcome.OK), int(Outcome.FAILED)


def make_study(path: Path, *, num: int = 20, name: str = "study") -> Workspace:
    """A study that was prepared and never run: the step `sim`, with `num` samples of the column X."""
    return write_study(path, step("sim", num), name=name, study_id=f"id of {path.name}")


def add_outcomes(
    study: Workspace,
    lo: int,
    outcomes: list[int],
    *,
    worker: str = "w0",
    attempt: int = 1,
    code: int = 3,
    started: float = 1000.0,
    tail: str = "no luck with {task}",
) -> None:
    """One more record of a worker, as if a chunk had ended; failures have an exit `code`, and `tail` on stderr."""
    num = len(outcomes)
    failures = [
        Failure(task=lo + i, cause=f"exit code {code}", exit_code=code, tail=tail.format(task=lo + i) + "\n")
        for i, outcome in enumerate(outcomes)
        if outcome == FAILED
    ]
    record = ChunkRecord(
        instance="sim",
        lo=lo,
        hi=lo + num,
        attempt=attempt,
        started=started,
        elapsed_s=1.0,
        outcomes=np.array(outcomes, np.uint8),
        seconds=np.full(num, 0.5, np.float32),
        started_offsets=np.zeros(num, np.float32),
        failures=tuple(failures),
    )
    add(study, record, worker=worker)


def end_study(study: Workspace, outcomes: list[int]) -> None:
    """Let the study have run from its first task to its last one, a while ago."""
    add(study, EventRecord(kind="run_started", data={"workers": 1}, time=999.0), worker="controller")
    add_outcomes(study, 0, outcomes)
    add(study, EventRecord(kind="run_finished", data={}, time=1002.0), worker="controller2")
    let_pass(study)


def let_pass(study: Workspace) -> None:
    """Make the study look as if nothing had happened to it for a day."""
    yesterday = time.time() - 86_400
    for path in [study.path, study.info, study.ledger_dir, *study.ledger_dir.iterdir()]:
        os.utime(path, (yesterday, yesterday))
