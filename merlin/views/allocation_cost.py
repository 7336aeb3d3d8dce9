"""What the batch jobs of workers have cost, in node-hours: asked for, held, and with nothing at work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from merlin.batch.job_records import JobRecord, JobRecords
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.workspace.directory import Workspace

HOUR_S = 3600.0


class Spell(Struct, frozen=True, kw_only=True):
    """A time in which a worker was busy with a chunk."""

    host: str
    started: float  # epoch seconds
    ended: float
    core_s: float


class AllocationCost(Struct, frozen=True, kw_only=True):
    """One batch job of workers, as far as its record says how it went; None: the record does not say."""

    job: str
    scheduler: str
    nodes: int
    state: str  # what the scheduler said last
    started: float | None  # epoch seconds
    ended: float | None
    requested_node_h: float | None  # nodes times walltime
    held_node_h: float | None
    idle_node_h: float | None  # of these, with no task of the study on the node
    used_h: float  # core-hours of the study's tasks on its nodes


def allocation_costs(workspace: Workspace, spells: Sequence[Spell], now: float) -> Iterator[AllocationCost]:
    """The batch jobs that were submitted for the workers of a workspace. Raises WorkspaceError."""
    for record in JobRecords(jobs_folder(workspace.path)).all():
        if record.id:
            yield _cost_of(record, spells, now)


def _cost_of(record: JobRecord, spells: Sequence[Spell], now: float) -> AllocationCost:
    seen = record.seen
    started = seen.started if seen else None
    ended = record.seen_at if seen and seen.state.is_over else None
    requested = record.num_nodes * record.walltime_s / HOUR_S if record.walltime_s else None
    held = idle = None
    used_s = 0.0
    if seen is not None and started is not None:
        until = now if ended is None else ended
        hosts = {_short(host) for host in seen.hosts}
        inside = [s for s in spells if _short(s.host) in hosts and started <= s.started <= until]
        used_s = sum(spell.core_s for spell in inside)
        held = record.num_nodes * max(0.0, until - started) / HOUR_S
        busy = sum(covered_s((s.started, s.ended) for s in inside if _short(s.host) == h) for h in hosts)
        idle = max(0.0, held - busy / HOUR_S)
    return AllocationCost(
        job=record.id,
        scheduler=record.scheduler,
        nodes=record.num_nodes,
        state=str(seen.state) if seen else "",
        started=started,
        ended=ended,
        requested_node_h=requested,
        held_node_h=held,
        idle_node_h=idle,
        used_h=used_s / HOUR_S,
    )


def covered_s(spells: Iterable[tuple[float, float]]) -> float:
    """How long at least one of these times lasted."""
    total, until = 0.0, float("-inf")
    for started, ended in sorted(spells):
        total += max(0.0, ended - max(started, until))
        until = max(until, ended)
    return total


def _short(host: str) -> str:
    """A host without its domain: schedulers and machines differ about that."""
    return host.partition(".")[0]
