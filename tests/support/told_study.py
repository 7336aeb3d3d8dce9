"""A study whose ledger, written by hand, tells of two runs: failures, a skip, a loss, a retry, and a second chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from small_plans import same, step
from status_study import add
from study_on_disk import make_workspace

from merlin.ledger.records import RESET, ChunkRecord, EventRecord, Failure, RangeRecord, Record
from merlin.plan.plan import StepKind
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import Workspace

OK, FAILED, SKIPPED, INTERRUPTED, _ = map(int, Outcome)
NUM = 6


def told_study(root: Path) -> Workspace:
    """`sim` (2 cores, an hour), `post` after it, and the function `learn`; sample 4 has not ended.

    Run 1, of 2 workers from 1000 to 1020: w0 ran sim 0 to 2, of which 1 failed; w1 ran sim 3 and 4, and 4 was cut
    off; post 0 was ok, post 1 skipped, and post 2 ok. Run 2, of 1 worker from 2000 to 2010: sim 1 and post 1 are ok
    after sim 1 had asked to run again once, sim 5 failed, and learn 0 is ok.
    """
    workspace = make_workspace(
        root,
        step("sim", NUM, resources={"procs": 2, "walltime": "01:00:00"}, queue="hot"),
        step("post", NUM, same("sim"), queue="cold"),
        step("learn", NUM, kind=StepKind.FUNCTION, function="m:f"),
    )
    _first_run(workspace)
    _second_run(workspace)
    return workspace


def _first_run(workspace: Workspace) -> None:
    controller = ("controller", "run1", "n1")
    write(workspace, controller, event("run_started", 1000.0, workers=2))
    lost = [Failure(task=1, cause="exit code 3", exit_code=3, tail="diverged\n")]
    write(
        workspace,
        ("w0", "run1", "n1"),
        chunk("sim", 0, [OK, FAILED, OK], [2.0, 3.0, 2.0], started=1001.0, elapsed_s=8.0, failures=lost),
        chunk("post", 0, [OK, NO_OUTCOME, OK], [1.0, 0.0, 1.0], started=1010.0, elapsed_s=2.0),
    )
    write(
        workspace,
        ("w1", "run1", "n2"),
        chunk("sim", 3, [OK, INTERRUPTED], [4.0, 5.0], started=1001.0, elapsed_s=10.0),
    )
    skip = RangeRecord(
        instance="post", lo=1, hi=2, outcome=SKIPPED, cause="a task of 'sim', …", started=1009.0
    )
    write(workspace, controller, skip, event("run_stopped", 1020.0, reason="interrupted"))


def _second_run(workspace: Workspace) -> None:
    controller = ("controller", "run2", "n1")
    resets = [
        RangeRecord(
            instance=id, lo=1, hi=2, outcome=RESET, cause="to be run again", attempt=0, started=1999.0
        )
        for id in ("sim", "post")
    ]
    write(workspace, controller, *resets, event("run_started", 2000.0, workers=1))
    lost = [Failure(task=5, cause="exit code 4", exit_code=4, tail="no luck with 5\n")]
    write(
        workspace,
        ("w0", "run2", "n1"),
        chunk("sim", 1, [OK], [1.0], started=2001.0, elapsed_s=1.0, tries=np.ones(1, np.uint8)),
        chunk("post", 1, [OK], [1.0], started=2002.0, elapsed_s=1.0),
        chunk("sim", 5, [FAILED], [1.0], started=2003.0, elapsed_s=1.0, failures=lost),
        chunk("learn", 0, [OK], [0.5], started=2004.0, elapsed_s=0.5),
    )
    write(workspace, controller, event("run_finished", 2010.0))


def chunk(
    instance: str, lo: int, outcomes: list[int], seconds: list[float], *, started: float, **more: Any
) -> ChunkRecord:
    """The tasks of a record follow each other."""
    failures = tuple(more.pop("failures", ()))
    return ChunkRecord(
        instance=instance,
        lo=lo,
        hi=lo + len(outcomes),
        started=started,
        outcomes=np.array(outcomes, np.uint8),
        seconds=np.array(seconds, np.float32),
        started_offsets=np.append(0, np.cumsum(seconds))[:-1].astype(np.float32),
        failures=failures,
        **more,
    )


def event(kind: str, time: float, **data: Any) -> EventRecord:
    return EventRecord(kind=kind, data=data, time=time)


def write(workspace: Workspace, who: tuple[str, str, str], *records: Record) -> None:
    """Append as a worker: its name, run and host."""
    worker, session, host = who
    add(workspace, *records, worker=worker, session=session, host=host)
