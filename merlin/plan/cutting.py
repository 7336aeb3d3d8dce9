"""Cuts the next chunk out of the ready tasks of a step instance."""

from __future__ import annotations

from dataclasses import replace

from merlin.plan.pieces import Range, chunk_of
from merlin.plan.plan import StepKind
from merlin.plan.readiness import absent_rows
from merlin.plan.task_states import READY, InstanceState
from merlin.plan.tasks import Chunk

MAX_SPARSE_SPAN = 4096  # a chunk with holes reaches no further than this, or four times the tasks it runs
MAX_PIECES = 2000  # of one chunk


def cut(state: InstanceState, size: int, attempt: int) -> Chunk:
    """At most `size` ready tasks, in order; scattered ones share a chunk with holes. Something must be ready."""
    reach = max(MAX_SPARSE_SPAN, 4 * size)
    pieces: list[Range] = []
    num = 0
    for a, b, value in state.tasks.runs(state.cursor):
        if value != READY:
            continue
        if pieces and (len(pieces) == MAX_PIECES or a - pieces[0][0] >= reach):
            break
        b = min(b, a + size - num)
        pieces.append((a, b))
        num += b - a
        if num == size:
            break
    state.cursor = pieces[-1][1]
    chunk = chunk_of(pieces, instance=state.instance.id, attempt=attempt)
    if state.instance.kind is StepKind.AGGREGATE:
        chunk = replace(chunk, absent_rows=absent_rows(state, chunk))
    return chunk
