"""Cuts the next chunk out of the ready tasks of a step instance."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from merlin.base.ranges import Range
from merlin.plan.pieces import Run, chunk_of
from merlin.plan.plan import StepKind
from merlin.plan.readiness import absent_rows
from merlin.plan.task_states import READY, InstanceState
from merlin.plan.tasks import FROM_FILES, Chunk

MAX_SPARSE_SPAN = 4096  # a chunk with holes reaches no further than this, or four times the tasks it runs
MAX_PIECES = 2000  # of one chunk
NUM_COLLECTED = 256  # tasks of a chunk whose outputs are only collected


def cut(state: InstanceState, size: int, attempt: int) -> Chunk:
    """At most `size` ready tasks, in order; scattered ones share a chunk with holes. Something must be ready.

    Tasks that run, and tasks whose outputs are only collected, share no chunk; nor do tasks whose values lie in
    different places.
    """
    pieces: list[Range] = []
    num = whence = 0
    for a, b, value in _ready(state):
        if not pieces:
            size, whence = _size(state, size, value), value
        reach = max(MAX_SPARSE_SPAN, 4 * size)
        if value != whence or (pieces and (len(pieces) == MAX_PIECES or a - pieces[0][0] >= reach)):
            break
        b = min(b, a + size - num)
        pieces.append((a, b))
        num += b - a
        if num == size:
            break
    state.cursor = pieces[-1][1]
    chunk = chunk_of(pieces, instance=state.instance.id, attempt=attempt)
    if whence:
        chunk = replace(chunk, collect_only=True, taken_from=max(whence, 0))
    if state.instance.kind is StepKind.AGGREGATE:
        chunk = replace(chunk, absent_rows=absent_rows(state, chunk))
    return chunk


def _ready(state: InstanceState) -> Iterator[Run]:
    """The ready tasks in order, as runs. For tasks that are only collected, the value says from where, else it is 0."""
    for a, b, value in state.tasks.runs(state.cursor):
        if value == READY:
            yield from ((a, b, 0),) if state.collect_only is None else state.collect_only.runs(a, b)


def _size(state: InstanceState, size: int, whence: int) -> int:
    """The size of a chunk. If values come from shards, it is at least a shard, which is checked as a whole."""
    if whence == 0:
        return size
    sizes = (
        each.instance.aggregate.samples_per_shard for each in state.block_targets if each.instance.aggregate
    )
    return NUM_COLLECTED if whence == FROM_FILES else max([NUM_COLLECTED, *sizes])
