"""Shapes of chunks: a chunk is a few sorted ranges of tasks, its pieces, between which are its holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from merlin.base.ranges import Range, merged, total
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Chunk

Run = tuple[int, int, int]


def pieces_of(chunk: Chunk) -> list[Range]:
    """The chunk without its holes."""
    out: list[Range] = []
    at = chunk.lo
    for a, b in chunk.holes:
        if a > at:
            out.append((at, a))
        at = b
    if at < chunk.hi:
        out.append((at, chunk.hi))
    return out


def num_tasks(chunk: Chunk) -> int:
    return chunk.hi - chunk.lo - total(chunk.holes)


def chunk_of(pieces: list[Range], *, instance: str, attempt: int) -> Chunk:
    joined = merged(pieces)
    holes = tuple((a[1], b[0]) for a, b in pairwise(joined))
    return Chunk(instance=instance, lo=joined[0][0], hi=joined[-1][1], attempt=attempt, holes=holes)


def part_of(chunk: Chunk, pieces: list[Range]) -> Chunk:
    """The chunk with these of its tasks only."""
    shape = chunk_of(pieces, instance=chunk.instance, attempt=chunk.attempt)
    return replace(chunk, lo=shape.lo, hi=shape.hi, holes=shape.holes)


def narrowed(chunk: Chunk, pieces: list[Range]) -> Chunk:
    """The chunk with the same range, but only these of its tasks left to run."""
    edges = [chunk.lo, *(edge for piece in pieces for edge in piece), chunk.hi]
    holes = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    return replace(chunk, holes=tuple(holes))


def halves(chunk: Chunk) -> list[Chunk]:
    """Two chunks of about half the tasks each."""
    left, right = [], []
    to_go = num_tasks(chunk) // 2
    for a, b in pieces_of(chunk):
        cut = min(b, a + to_go)
        to_go -= cut - a
        left += [(a, cut)] if cut > a else []
        right += [(cut, b)] if b > cut else []
    parts = [part_of(chunk, pieces) for pieces in (left, right)]
    return [replace(part, isolate=num_tasks(part) == 1) for part in parts]


def clip(runs: Iterable[Run], pieces: list[Range]) -> Iterator[Run]:
    """The parts of sorted runs that lie inside sorted pieces."""
    i = 0
    for lo, hi, value in runs:
        while i < len(pieces) and pieces[i][1] <= lo:
            i += 1
        j = i
        while j < len(pieces) and pieces[j][0] < hi:
            yield max(lo, pieces[j][0]), min(hi, pieces[j][1]), value
            j += 1


def shards_over(target: StepInstance, source: StepInstance, lo: int, hi: int) -> Range:
    """The shards of an aggregate that hold rows of the source's tasks [lo, hi); tasks and shards are the plan's."""
    assert target.aggregate is not None
    size = target.aggregate.samples_per_shard
    offset = target.aggregate.sources.index(source.id) * source.num_tasks
    return (offset + lo) // size, min(target.num_tasks, (offset + hi - 1) // size + 1)
