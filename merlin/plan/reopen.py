"""Which recorded outcomes must be forgotten so that failed tasks run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct, field

from merlin.base.ranges import Range, merged
from merlin.plan.failed_input import RAN, passing_failures
from merlin.plan.pieces import shards_over
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.runs import RunMap
from merlin.plan.tasks import ENDED, FAILURES, Outcome


class Again(Struct, frozen=True, kw_only=True):
    """Which tasks run again although they have ended."""

    failed: bool = False  # those that failed, and those that were skipped because of them
    steps: tuple[str, ...] | None = None  # ... of these steps (names or instance ids) only
    tasks: Mapping[str, list[Range]] = field(default_factory=dict)  # and these, however they ended

    def __bool__(self) -> bool:
        return self.failed or bool(self.tasks)

    def to_reset(self, plan: Plan, outcomes: Mapping[str, RunMap]) -> dict[str, list[Range]]:
        """The recorded outcomes that must not count any more: of these tasks, and of what follows from them."""
        reset = reopen_failed(plan, outcomes, self.steps) if self.failed else {}
        for id, ranges in reopen(plan, outcomes, self.tasks).items():
            reset[id] = merged([*reset.get(id, ()), *ranges])
        return reset


NOTHING = Again()


def reopen_failed(
    plan: Plan, outcomes: Mapping[str, RunMap], steps: Collection[str] | None = None
) -> dict[str, list[Range]]:
    """Tasks to run again so that the failed and skipped ones of `steps` (names or instance ids) get a chance.

    These are the failed and skipped tasks, tasks that were skipped because of them, tasks that ran on the failed ones,
    the shards that hold their rows, and the manifests over those shards. Other tasks that ended ok stay as they are,
    even if a failed one was missing from their input.
    """
    chosen: dict[str, list[Range]] = {}
    for instance in plan.instances:
        if instance.id in outcomes and (steps is None or instance.step in steps or instance.id in steps):
            chosen[instance.id] = outcomes[instance.id].ranges((*FAILURES, Outcome.SKIPPED))
    return reopen(plan, outcomes, chosen)


def reopen(
    plan: Plan,
    outcomes: Mapping[str, RunMap],
    chosen: Mapping[str, list[Range]],
    stale: Mapping[str, list[Range]] | None = None,
) -> dict[str, list[Range]]:
    """The chosen tasks and what follows from them: sorted ranges per instance, all with an outcome.

    A chosen task that ended ok makes again what it made before, so what ran on it stays. A `stale` one does not.
    """
    reopening = _Reopening({instance.id: instance for instance in plan.instances}, outcomes)
    for instance in plan.instances:
        if instance.id in outcomes:
            found = merged([*reopening.stale_targets(instance), *(stale or {}).get(instance.id, ())])
            follows = [*chosen.get(instance.id, ()), *reopening.other_targets(instance), *found]
            reopening.note(instance, merged(follows), found)
    return reopening.opened


class _Reopening(Struct):
    """What is reopened so far; the instances come in the order of the plan."""

    instances: Mapping[str, StepInstance]
    outcomes: Mapping[str, RunMap]
    opened: dict[str, list[Range]] = field(default_factory=dict)
    # of these, the tasks that ended ok, but whose input will change
    stale: dict[str, list[Range]] = field(default_factory=dict)
    # these, and the failed tasks after which others ran: their outputs will change
    changing: dict[str, list[Range]] = field(default_factory=dict)

    def note(self, instance: StepInstance, ranges: list[Range], stale: list[Range]) -> None:
        """Reopen what has ended in these ranges."""
        id, have = instance.id, self.outcomes[instance.id]
        opened = _with_outcome(have, ENDED, ranges)
        if not opened:
            return
        self.opened[id] = opened
        self.stale[id] = _with_outcome(have, (Outcome.OK,), stale)
        passed_on = _with_outcome(have, passing_failures(instance), opened)
        self.changing[id] = merged([*self.stale[id], *passed_on])

    def stale_targets(self, target: StepInstance) -> list[Range]:
        """Tasks of the target that ran on input that will change."""
        have = self.outcomes[target.id]
        out: list[Range] = []
        for edge in target.edges:
            if edge.kind == "block":
                ranges = self._shards(target, edge.source, self.stale.get(edge.source, []))
            elif target.kind is StepKind.MANIFEST:  # it waits for others, too, and reads this one
                is_stale = edge.source == target.finishes and self.stale.get(edge.source)
                ranges = [(0, target.num_tasks)] if is_stale else []
            elif target.kind is StepKind.AGGREGATE:  # it only waits for this one
                ranges = []
            elif edge.kind == "same":
                ranges = self.changing.get(edge.source, [])
            else:
                ranges = [(0, target.num_tasks)] if self.changing.get(edge.source) else []
            out += _with_outcome(have, RAN, ranges)
        return out

    def other_targets(self, target: StepInstance) -> list[Range]:
        """Tasks of the target that were skipped, and the shards and the manifest over reopened tasks."""
        have = self.outcomes[target.id]
        out: list[Range] = []
        for edge in target.edges:
            ranges = self.opened.get(edge.source, [])
            if not ranges:
                continue
            if edge.kind == "same":
                out += _with_outcome(have, (Outcome.SKIPPED,), ranges)
            elif edge.kind == "block":
                out += self._shards(target, edge.source, ranges)
            elif target.kind is StepKind.MANIFEST:
                out.append((0, target.num_tasks))
            else:
                out += have.ranges((Outcome.SKIPPED,))
        return out

    def _shards(self, target: StepInstance, source: str, ranges: list[Range]) -> list[Range]:
        return [shards_over(target, self.instances[source], a, b) for a, b in ranges]


def _with_outcome(have: RunMap, outcomes: Collection[int], ranges: list[Range]) -> list[Range]:
    return [r for lo, hi in ranges for r in have.ranges(outcomes, lo, hi)]
