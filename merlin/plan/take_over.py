"""How a new owner of a study goes on with what the last one has left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.plan.bad_nodes import BadNodes
from merlin.plan.durations import Spread
from merlin.plan.memories import Death, Deferral
from merlin.plan.owner import Handout, Owner
from merlin.plan.plan import Plan
from merlin.plan.reports import ChunkReport, without_failures
from merlin.plan.runs import RunMap
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import ENDED, NO_OUTCOME, ChunkResult, Outcome


class Legacy(Struct, frozen=True, kw_only=True):
    """What an owner has left. Read it in the order of the fields: later ones then have what workers did meanwhile."""

    handouts: Collection[Handout]
    outcomes: Mapping[str, RunMap]  # of the ledger
    memories: Collection[Deferral | Death]  # of the ledger
    taken: Mapping[str, str]  # by the letters: lease -> worker
    dealt_with: Collection[ChunkReport]  # handled by that owner
    unread: Collection[ChunkReport]
    bad_nodes: Mapping[str, str] = field(default_factory=dict)  # that it found, and the steps that showed it
    durations: Mapping[str, Spread] = field(default_factory=dict)  # of tasks in the ledger, by step
    collect_only: Mapping[str, RunMap] = field(default_factory=dict)  # of the ledger; see `Scheduler`


def take_over(
    plan: Plan, legacy: Legacy, *, first_attempt: int, name: str, min_chunk_s: float
) -> tuple[Owner, list[str]]:
    """The owner that continues, and the void leases. It still has to handle the letters that the last owner has not."""
    dealt_with = [without_failures(r) if r.node in legacy.bad_nodes else r for r in legacy.dealt_with]
    results = [r.result or ChunkResult(chunk=r.chunk, runs=r.done) for r in dealt_with]
    scheduler = Scheduler(
        plan,
        outcomes_with(legacy.outcomes, results),
        num_workers=1,
        target_s=min_chunk_s,
        first_attempt=first_attempt,
        name=name,
        collect_only=legacy.collect_only,
    )
    owner = Owner(scheduler, min_chunk_s=min_chunk_s)
    owner.bad_nodes = BadNodes(legacy.bad_nodes)
    found = {h.lease: replace(h, worker=h.worker or legacy.taken.get(h.lease, "")) for h in legacy.handouts}
    for report in legacy.unread:
        found[report.chunk.lease] = Handout(chunk=report.chunk, since=0.0, worker=report.worker)
    void = owner.adopt(found.values())
    scheduler.remember(legacy.memories)
    scheduler.know_durations(legacy.durations)
    return owner, void


def outcomes_with(outcomes: Mapping[str, RunMap], results: Iterable[ChunkResult]) -> dict[str, RunMap]:
    """The ledger's outcomes, completed by workers' recent reports, whose records are perhaps not visible here yet."""
    out = dict(outcomes)
    for result in results:
        id = result.chunk.instance
        before = out[id]
        if before is outcomes[id]:  # copy the ledger's own map before it is changed
            out[id] = before = RunMap.from_runs(before.size, before.runs())
        for lo, hi, value in result.runs:
            if value in ENDED:
                for a, b in before.ranges((NO_OUTCOME, Outcome.INTERRUPTED), lo, hi):
                    before.set(a, b, value)
    return out
