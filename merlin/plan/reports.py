"""The reports of workers about chunks that they held, and how they reach the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from merlin.plan.pieces import Run, clip, pieces_of
from merlin.plan.runs import RunMap
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import ENDED, NO_OUTCOME, Chunk, ChunkResult, Outcome


class ChunkReport(Struct, frozen=True, kw_only=True):
    """A worker's report on a chunk that it holds no longer. If nothing is set, the chunk was not started."""

    chunk: Chunk
    worker: str
    node: str = ""  # where it ran
    result: ChunkResult | None = None  # it has ended
    done: tuple[Run, ...] = ()  # without a result: what the ledger has; other machines may see that later
    died: str = ""  # its process did not survive it: how that died
    tail: str = ""  # then: what it said
    is_infrastructure: bool = False  # and its tasks are not to blame
    is_interrupted: bool = False  # it was ended on purpose; what the ledger has counts
    trouble: str = ""  # of the machine or the plan: nothing more may start
    cut_off: tuple[int, ...] = ()  # without a result: what ran when the walltime of its job was over
    walltime: str = ""  # then: of that job


def settle_report(scheduler: Scheduler, report: ChunkReport, done: Iterable[Run], now: float) -> bool:
    """Pass a report on a chunk to the scheduler; `done`: the outcomes that we see in the ledger."""
    chunk = report.chunk
    if report.trouble:
        scheduler.stop(report.trouble, now=True)
    if report.result is not None:
        return scheduler.finished(report.result, now)
    done = together(chunk, done, report.done)
    if report.cut_off:
        return scheduler.overran(chunk, done, report.cut_off, report.walltime)
    if report.trouble or report.is_interrupted:
        return scheduler.finished(ChunkResult(chunk=chunk, runs=done), now)
    if report.died:
        return scheduler.lost(
            chunk, done, signal=report.died, infrastructure=report.is_infrastructure, tail=report.tail
        )
    return scheduler.give_back(chunk)


def not_failed(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if run[2] != Outcome.FAILED)


def without_failures(report: ChunkReport) -> ChunkReport:
    """The report of a bad node without its failures: they prove nothing, and these tasks run again."""
    result = report.result and replace(report.result, runs=not_failed(report.result.runs), stop="")
    is_interrupted = report.is_interrupted or bool(report.died)
    return replace(
        report, result=result, done=not_failed(report.done), died="", is_interrupted=is_interrupted
    )


def together(chunk: Chunk, *several: Iterable[Run]) -> tuple[Run, ...]:
    """The outcomes of a chunk's tasks that at least one of the sources has; a later source has priority."""
    found = RunMap(chunk.hi - chunk.lo)
    for runs in several:
        for a, b, outcome in clip(runs, pieces_of(chunk)):
            if outcome in ENDED:
                found.set(a - chunk.lo, b - chunk.lo, outcome)
    return tuple((chunk.lo + a, chunk.lo + b, value) for a, b, value in found.runs() if value != NO_OUTCOME)
