"""A plan without a spec, and records for it."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from small_plans import plan, step

from merlin.ledger.records import RESET, ChunkRecord, Failure, RangeRecord
from merlin.plan.plan import Plan
from merlin.plan.tasks import NO_OUTCOME, Outcome, ReturnCode


def plan_of(*, study_id: str = "s1", **sizes: int) -> Plan:
    return plan(*(step(name, num) for name, num in sizes.items()), study_id=study_id)


def chunk(
    outcomes: list[int],
    *,
    lo: int = 0,
    instance: str = "sim",
    attempt: int = 1,
    started: float = 100.0,
    **more,
) -> ChunkRecord:
    num = len(outcomes)
    return ChunkRecord(
        instance=instance, lo=lo, hi=lo + num, attempt=attempt, started=started,
        elapsed_s=more.pop("elapsed_s", 1.0),
        outcomes=np.array(outcomes, np.uint8), seconds=np.linspace(0.5, 1.5, num, dtype=np.float32), **more,
    )  # fmt: skip


def failed(task: int, cause: str = "exit code 3", exit_code: int = 3, tail: str = "") -> Failure:
    return Failure(task=task, cause=cause, exit_code=exit_code, tail=tail)


def outcomes_of(map_) -> list[int]:
    return [value for lo, hi, value in map_.runs() for _ in range(lo, hi)]


SIZE = 30
RECORDED = [o for o in Outcome if o != Outcome.SOFT_FAILED]


def expected(records: list) -> list[int]:
    """The rule, task by task: later wins, but ok stays ok under interrupted and skipped; 101 is a soft failure."""
    state = [NO_OUTCOME] * SIZE
    for record in sorted(records, key=lambda r: r.attempt):
        codes = {f.task: f.exit_code for f in getattr(record, "failures", ())}
        for task in range(record.lo, record.hi):
            if isinstance(record, RangeRecord):
                new = record.outcome
            else:
                new = int(record.outcomes[task - record.lo])
                if new == NO_OUTCOME:
                    continue
            if new == Outcome.FAILED and codes.get(task) == ReturnCode.SOFT_FAIL:
                new = int(Outcome.SOFT_FAILED)
            weak = new in (Outcome.INTERRUPTED, Outcome.SKIPPED)
            if not (weak and state[task] == Outcome.OK):
                state[task] = new
    return state


@st.composite
def records(draw: st.DrawFn):
    lo = draw(st.integers(0, SIZE - 1))
    hi = draw(st.integers(lo + 1, SIZE))
    attempt = draw(st.integers(1, 3))
    if draw(st.booleans()):
        outcome = draw(st.sampled_from([*RECORDED, RESET]))
        return RangeRecord(instance="sim", lo=lo, hi=hi, outcome=int(outcome), attempt=attempt, started=100.0)
    values = draw(
        st.lists(st.sampled_from([*map(int, RECORDED), NO_OUTCOME]), min_size=hi - lo, max_size=hi - lo)
    )
    failures = tuple(
        failed(
            lo + i,
            exit_code=draw(st.just(101) | st.integers(-15, 120)),
            tail=draw(st.sampled_from(["", "boom 3", "x" * 5000])),
        )
        for i, value in enumerate(values)
        if value == Outcome.FAILED
    )
    return chunk(values, lo=lo, attempt=attempt, elapsed_s=0.0, failures=failures)
