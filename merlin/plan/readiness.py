"""Which waiting tasks may run now, and which never will: decided from the states of what they depend on."""

from __future__ import annotations

from collections.abc import Iterator

from merlin.base.ranges import Range, merged
from merlin.plan.task_states import FAILED, NOT_ENDED, SKIPPED, WAITING, InstanceState
from merlin.plan.tasks import ENDED, FAILURES, Chunk


def decided(target: InstanceState, lo: int, hi: int) -> list[tuple[int, int, str]]:
    """Waiting tasks of [lo, hi) that wait no longer: (lo, hi, "" or the step instance that they are skipped for)."""
    return list((_ready_shards if target.block_sources else _decided_tasks)(target, lo, hi))


def _decided_tasks(target: InstanceState, lo: int, hi: int) -> Iterator[tuple[int, int, str]]:
    for start, end in target.tasks.ranges((WAITING,), lo, hi):
        at = start
        while at < end:
            stop, culprit, is_open = end, "", False
            for source in target.same_sources:
                _, until, value = next(source.tasks.runs(at, end))
                stop = min(stop, until)
                if value == SKIPPED or (value == FAILED and not source.continues):
                    culprit = culprit or source.instance.id
                elif value not in ENDED:
                    is_open = True
            if culprit or not (is_open or target.num_open_groups):
                yield at, stop, culprit
            at = stop


def _ready_shards(target: InstanceState, lo: int, hi: int) -> Iterator[tuple[int, int, str]]:
    """Waiting shards whose rows have all ended, if nothing else holds the target."""
    if target.num_open_groups:
        return
    at = lo
    for x, y in (*open_shards(target, lo, hi), (hi, hi)):
        for a, b in target.tasks.ranges((WAITING,), at, x):
            yield a, b, ""
        at = y


def open_shards(target: InstanceState, lo: int, hi: int) -> list[Range]:
    """Shards in [lo, hi) with a row that has not ended; sorted, merged."""
    size = _rows_per_shard(target)
    return merged(
        (max(lo, (offset + a) // size), min(hi, (offset + b - 1) // size + 1))
        for offset, a, b in _rows(target, lo * size, hi * size, NOT_ENDED)
    )


def absent_rows(target: InstanceState, chunk: Chunk) -> tuple[Range, ...]:
    """Rows of a chunk of shards whose tasks did not end ok."""
    size = _rows_per_shard(target)
    rows = _rows(target, chunk.lo * size, chunk.hi * size, (*FAILURES, SKIPPED))
    return tuple(merged((offset + a, offset + b) for offset, a, b in rows))


def _rows_per_shard(target: InstanceState) -> int:
    assert target.instance.aggregate is not None
    return target.instance.aggregate.samples_per_shard


def _rows(target: InstanceState, lo: int, hi: int, states: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Tasks behind rows [lo, hi) in one of these states: (row of the source's task 0, first task, last task + 1)."""
    offset = 0
    for source in target.block_sources:
        for a, b in source.tasks.ranges(states, max(lo - offset, 0), min(hi - offset, source.tasks.size)):
            yield offset, a, b
        offset += source.tasks.size
