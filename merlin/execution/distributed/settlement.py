"""What a report about a chunk means for each of its tasks; the holder of a lease can tell without asking anybody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from merlin.errors import ExecutionError
from merlin.study.pieces import Run, chunk_of, clip, halves, num_tasks, pieces_of
from merlin.study.runs import RunMap
from merlin.study.schedule import ENDED, QUEUED, RUNNING
from merlin.study.tasks import NO_OUTCOME, Chunk


@dataclass(frozen=True, slots=True)
class Settlement:
    """A chunk's tasks, sorted by what becomes of them."""

    num_tasks: int
    runs: list[Run]  # (lo, hi, outcome)
    num_deferred: int
    rest: list[Chunk]  # what has no outcome and is not deferred, as at most one chunk

    @property
    def num_left(self) -> int:
        return sum(num_tasks(chunk) for chunk in self.rest)

    def halves(self) -> list[Chunk]:
        """The rest, split in two if it can be."""
        return [half for chunk in self.rest for half in (halves(chunk) if num_tasks(chunk) > 1 else [chunk])]


def settlement_of(chunk: Chunk, runs: Iterable[Run], deferred: Iterable[Chunk]) -> Settlement:
    """Raises ExecutionError if a task ends twice or is not the chunk's."""
    tasks = RunMap(chunk.hi - chunk.lo, NO_OUTCOME)
    pieces = pieces_of(chunk)
    for lo, hi in pieces:
        tasks.set(lo - chunk.lo, hi - chunk.lo, RUNNING)
    ended = [(int(a), int(b), int(v)) for a, b, v in clip(runs, pieces) if v in ENDED]
    for lo, hi, outcome in ended:
        _claim(tasks, chunk, lo, hi, outcome)
    num_deferred = 0
    for later in deferred:
        for lo, hi in pieces_of(later):
            _claim(tasks, chunk, lo, hi, QUEUED)
            num_deferred += hi - lo
    left = [(chunk.lo + a, chunk.lo + b) for a, b in tasks.ranges((RUNNING,))]
    rest = []
    if left:
        shape = chunk_of(left, instance=chunk.instance, attempt=chunk.attempt)
        rest.append(replace(chunk, lo=shape.lo, hi=shape.hi, holes=shape.holes, lease=""))
    return Settlement(num_tasks(chunk), ended, num_deferred, rest)


def _claim(tasks: RunMap, chunk: Chunk, lo: int, hi: int, state: int) -> None:
    a, b = lo - chunk.lo, hi - chunk.lo
    if not (a >= 0 and b <= tasks.size and tasks.ranges((RUNNING,), a, b) == [(a, b)]):
        raise ExecutionError(f"an outcome for a task that does not run: [{lo}, {hi}) of {chunk}")
    tasks.set(a, b, state)
