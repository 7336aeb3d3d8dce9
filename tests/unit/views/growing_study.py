"""A study on disk whose ledger a test lets grow, record by record, and its extensions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from small_plans import every, step
from study_on_disk import write_study

from merlin.ledger.records import RESET, ChunkRecord, Failure, RangeRecord, Record
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import Edge
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.workspace.directory import Workspace, extension_name

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)
WORDS = {OK: "ok", FAILED: "failed", SKIPPED: "skipped", SOFT_FAILED: "failed"}  # else missing
NUM = 20


def make_study(path: Path, *, num: int = NUM, extension: int = 0, first: int = 0) -> Workspace:
    """`sim` (two parameter values) and `post`, each per sample, and `end`, one task."""
    return write_study(
        path,
        step("sim/P.1", num, step="sim", label="P.1", params={"P": 1}),
        step("sim/P.2", num, step="sim", label="P.2", params={"P": 2}),
        step("post", num, Edge(source="sim/P.1", kind="same", group="sim")),
        step("end", 1, every("post", "post"), per_sample=False),
        study_id=f"s{extension}",
        first=first,
        extension=extension,
    )


def extend_study(study: Workspace, *, num: int = NUM) -> Workspace:
    """Its first extension, with `num` more samples."""
    return make_study(study.path / extension_name(1), num=num, extension=1, first=NUM)


def append(study: Workspace, *records: Record, worker: str = "w0", session: str = "run1") -> None:
    """Append them as a process that begins a segment of its own."""
    with writer(study, worker, session) as ledger:
        ledger.append(*records)


def writer(study: Workspace, worker: str = "w0", session: str = "run1") -> LedgerWriter:
    return LedgerWriter(
        study.ledger_dir, worker, session=session, study_id=study.plan.study_id, host="node1", sync=False
    )


def chunk(
    lo: int, outcomes: Iterable[int], *, instance: str = "sim/P.1", started: float = 1000.0, **more: Any
) -> ChunkRecord:
    """Each failure of it says "exit code 3", and those with an odd number were chosen (exit code 101)."""
    values = np.array(list(outcomes), np.uint8)
    failures = tuple(
        Failure(task=lo + i, cause="exit code 3", exit_code=101 if (lo + i) % 2 else 3, tail=f"boom {lo + i}")
        for i in np.flatnonzero(values == FAILED).tolist()
    )
    return ChunkRecord(
        instance=instance, lo=lo, hi=lo + len(values), started=started,
        elapsed_s=more.pop("elapsed_s", 2.0), outcomes=values,
        seconds=np.full(len(values), 0.5, np.float32), failures=failures, **more,
    )  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record of a chunk, a range or a reset."""
    instance = draw(st.sampled_from(["sim/P.1", "sim/P.2", "post"]))
    lo = draw(st.integers(0, NUM - 1))
    hi = draw(st.integers(lo + 1, NUM))
    attempt, started = draw(st.integers(1, 3)), draw(st.integers(1000, 1100))
    if draw(st.booleans()):
        outcome = draw(st.sampled_from([OK, FAILED, SKIPPED, INTERRUPTED, RESET]))
        return RangeRecord(
            instance=instance, lo=lo, hi=hi, outcome=outcome, attempt=attempt, started=float(started)
        )
    kinds = st.sampled_from([OK, FAILED, SKIPPED, INTERRUPTED, NO_OUTCOME])
    values = draw(st.lists(kinds, min_size=hi - lo, max_size=hi - lo))
    elapsed_s = draw(st.sampled_from([0.0, 2.0, 50.0]))
    return chunk(lo, values, instance=instance, attempt=attempt, started=float(started), elapsed_s=elapsed_s)


def words(study: Workspace) -> dict[str, list[str]]:
    """The outcome of every task, instance by instance, as a fresh replay says."""
    from merlin.ledger.replay import replay

    state = replay(study.ledger_dir, study.plan)
    return {
        instance.id: [
            WORDS.get(state.outcomes_of(instance.id)[i], "missing") for i in range(instance.num_tasks)
        ]
        for instance in study.plan.instances
    }
