"""Earlier data sets, which a study has or a revision has put aside, and what an update may take from them.

What they hold is decided by their descriptions alone, before anything changes. Values are read from proven rows later.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from merlin.base.ranges import Range, mark, to_ranges
from merlin.ledger.replay import replay
from merlin.ledger.segments import lineage
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.plan_io import read_plan, relocate
from merlin.plan.revise_collection import PRESENT, Held, added
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Outcome
from merlin.shards.format.rows import aggregate_of, row_map
from merlin.shards.format.shard_info import ShardInfo, sized_info
from merlin.shards.recollecting.definition import given_fields, kept_filters, stored_fields
from merlin.shards.recollecting.from_shards import ShardCollector
from merlin.shards.recollecting.share import Share, describe_fields
from merlin.shards.writing.collect import CollectRequest
from merlin.workspace.directory import INFO_DIR, PLAN_NAME, Workspace, ledger_of, revision_dir
from merlin.workspace.revisions import BEFORE


def before_revision(member: Workspace, revision: int) -> tuple[Workspace, Path]:
    """A study or extension as it was before a revision, and the directory with what the revision put aside.

    Raises LedgerError or WorkspaceError if the revision cannot be read.
    """
    # an extension may have had another plan before, and is kept by the study's number
    info = member.root / INFO_DIR
    *_, earlier, _ = lineage(ledger_of(info, revision))
    base = int(earlier.parent.name) if earlier.parent.name.isdecimal() else 0
    plan = relocate(read_plan(revision_dir(member.info, base) / PLAN_NAME), str(member.path))
    return Workspace(member.path, plan), revision_dir(info, revision) / BEFORE


def data_set_with(plan: Plan, target: StepInstance, source: str) -> StepInstance | None:
    """The aggregate of a plan whose data set has all fields that `target` collects from a source, or None.

    One with the id of `target` is preferred.
    """
    new = aggregate_of(target)
    wanted = {each.name for each in given_fields(new)}
    known = [
        each for each in _data_sets_of(plan, source) if stored_fields(each.aggregate, new).keys() >= wanted
    ]
    return next((each for each in known if each.id == target.id), known[0] if known else None)


def _data_sets_of(plan: Plan, source: str) -> list[StepInstance]:
    return [
        each
        for each in plan.instances
        if each.kind is StepKind.AGGREGATE and source in aggregate_of(each).sources
    ]


class _Earlier(Struct, frozen=True):
    """A study or extension as it was."""

    workspace: Workspace
    outcomes: Mapping[str, RunMap]
    aside: Path | None  # where its data sets lie now, if they were put aside

    def description(self, aggregate: StepInstance, shard: int) -> ShardInfo | None:
        """What a shard holds; None if it was not finished, or is not as it was then.

        A shard counts as not finished if some of its tasks have run again since it was written.
        """
        if self.outcomes[aggregate.id][shard - aggregate_of(aggregate).first_shard] != Outcome.OK:
            return None
        above = self.workspace.data_set_dir(aggregate) if self.aside is None else self.aside / aggregate.id
        return sized_info(above, shard)


class DataSetsBefore(Struct):
    """Knows what the earlier data sets have; see `Holds`."""

    member: Workspace  # as it is before the update
    outcomes: Mapping[str, RunMap]
    _earlier: dict[int, _Earlier] = field(default_factory=dict)

    def __call__(self, target: StepInstance, source: StepInstance, tasks: list[Range], revision: int) -> Held:
        """What an earlier data set has of some tasks.

        Raises LedgerError or WorkspaceError if what a revision kept cannot be read.
        """
        if revision not in self._earlier:
            self._earlier[revision] = self._open(revision)
        earlier = self._earlier[revision]
        old = data_set_with(earlier.workspace.plan, target, source.id)
        if old is None:
            why = _lacking_fields(earlier.workspace.plan, target, source.id)
            return Held([], {why: sum(hi - lo for lo, hi in tasks)})
        return _held(earlier, old, target, source.id, tasks)

    def _open(self, revision: int) -> _Earlier:
        if revision == PRESENT:
            return _Earlier(self.member, self.outcomes, None)
        workspace, aside = before_revision(self.member, revision)
        return _Earlier(workspace, replay(workspace.ledger_dir, workspace.plan).outcomes, aside)


def _lacking_fields(plan: Plan, target: StepInstance, source: str) -> str:
    new = aggregate_of(target)
    had = {name for each in _data_sets_of(plan, source) for name in stored_fields(each.aggregate, new)}
    lacking = [each for each in given_fields(new) if each.name not in had]
    if not lacking:
        return "have their fields in several data sets"
    return f"lack {describe_fields(lacking)} as defined now"


def _held(
    earlier: _Earlier, old: StepInstance, target: StepInstance, source: str, tasks: list[Range]
) -> Held:
    rows = row_map(earlier.workspace, old)
    first, kept = rows.first_row(source), kept_filters(old.aggregate, aggregate_of(target))
    wanted, held = np.zeros((2, rows.num_tasks), dtype=bool)
    mark(wanted, tasks, 0)
    lost: dict[str, int] = {}
    for shard, lo, hi in rows.pieces(first, first + rows.num_tasks):
        span = slice(lo - first, hi - first)
        mine = wanted[span]
        info = earlier.description(old, shard) if mine.any() else None
        if info is None:
            continue
        there = np.zeros(hi - lo, dtype=bool)
        mark(there, info.rows, lo)
        for expression, ranges in info.filtered.items():
            rejected = np.zeros(hi - lo, dtype=bool)
            mark(rejected, ranges, lo)
            if expression in kept:
                there |= rejected
            elif num := int(np.count_nonzero(rejected & mine)):
                lost = added(lost, {f"had been rejected by {expression}": num})
        held[span] = mine & there
    if num_lost := int(np.count_nonzero(wanted & ~held)) - sum(lost.values()):
        lost = added(lost, {"in no finished shard": num_lost})
    return Held(list(to_ranges(np.flatnonzero(held))), lost)


class RowTaker(Struct):
    """Collects tasks whose values are in data sets that revisions have put aside, in the study that is there now."""

    workspace: Workspace
    _key: tuple[str, int] = ("", 0)  # source and revision
    _collectors: dict[str, ShardCollector | None] = field(default_factory=dict)  # by aggregate

    def collect(self, request: CollectRequest, revision: int) -> dict[int, str]:
        """As `collect_chunk`: write bundles, and return task -> cause for what cannot be in the new data set."""
        if self._key != (request.source.id, revision):
            self.close()  # shards of one source are open at a time
            self._key = request.source.id, revision
        if request.aggregate.id not in self._collectors:
            self._collectors[request.aggregate.id] = self._collector(request, revision)
        collector, causes = self._collectors[request.aggregate.id], dict[int, str]()
        left = np.array(request.ok)
        if collector is not None:
            left = collector.collect(request, (), given_fields(collector.share.definition), causes)
        why = f"its values are not in the data set of before revision {revision} any more, and it has to run again"
        return causes | {request.lo + i: why for i in np.flatnonzero(left).tolist()}

    def _collector(self, request: CollectRequest, revision: int) -> ShardCollector | None:
        earlier, aside = before_revision(self.workspace, revision)
        old = data_set_with(earlier.plan, request.aggregate, request.source.id)
        if old is None:
            return None
        return ShardCollector(Share(self.workspace, request.aggregate, old, earlier, aside), request.source)

    def close(self) -> None:
        for each in self._collectors.values():
            if each is not None:
                each.close()
        self._collectors.clear()
