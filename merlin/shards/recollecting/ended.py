"""What became of the tasks whose outputs are collected again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct

from merlin.base.ranges import to_ranges
from merlin.ledger.format import Kind
from merlin.ledger.records import RESET
from merlin.ledger.replay import FailedTask, Replay
from merlin.plan.plan import StepKind
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Outcome
from merlin.shards.format.digest import combine
from merlin.shards.recollecting.directory import CollectedShard
from merlin.shards.recollecting.share import Share
from merlin.shards.writing.manifest import Endings

# how the cause begins of a task that ended well, but whose outputs did not fit the data set
_OF_OUTPUTS = ("field '", "graph '", "valid '")


class Ended(Struct, frozen=True):
    """What became of the tasks of one share; those whose outputs can be tried again count as ok."""

    outcomes: list[RunMap]  # by source
    failures: list[tuple[str, int, str]]  # source, task, cause
    # by source: tasks [lo, hi) that are ok, and that were to run again: since when
    resets: list[list[tuple[int, int, float]]]

    @property
    def ok(self) -> list[list[tuple[int, int]]]:
        """The tasks to collect, by source."""
        return [runs.ranges([Outcome.OK]) for runs in self.outcomes]

    def resets_by_shard(self, share: Share) -> dict[int, str]:
        """For each shard with tasks that have run again, a digest of which and when."""
        found: dict[int, list[tuple[int, int, float]]] = {}
        for source, resets in zip(share.definition.sources, self.resets, strict=True):
            first = share.rows.first_row(source)
            for lo, hi, since in resets:
                for shard, a, b in share.rows.pieces(first + lo, first + hi):
                    found.setdefault(shard, []).append((a, b, since))
        return {shard: combine(each) for shard, each in found.items()}

    def without(self, share: Share, done: Mapping[int, CollectedShard]) -> Endings:
        """The endings in which the rows that the new definition refuses are failed, too."""
        outcomes, failures = [_copy(runs) for runs in self.outcomes], list(self.failures)
        for shard in share.rows.shards:
            for cause, ranges in done[shard].failed.items():
                for span in (span for a, b in ranges for span in share.rows.spans(a, b)):
                    source = share.definition.sources[span.source]
                    outcomes[span.source].set(span.lo, span.hi, Outcome.FAILED)
                    failures += [(source, task, cause) for task in range(span.lo, span.hi)]
        return Endings(outcomes, failures)


def how_it_ended(share: Share) -> Ended:
    """What became of the tasks, by the ledger.

    A task that failed only because of its outputs is tried again if its files are there: the definition may
    have been wrong.
    """
    sources = share.definition.sources
    replay = Replay(share.old_workspace.ledger_dir, share.old_workspace.plan)
    outcomes = {source: _copy(replay.outcomes[source]) for source in sources}
    failures, again = [], dict[str, list[int]]()
    for each in replay.failures(sources):
        if _is_worth_a_try(share, each):
            again.setdefault(each.instance, []).append(each.failure.task)
        else:
            failures.append((each.instance, each.failure.task, each.failure.cause))
    for source, tasks in again.items():
        for lo, hi in to_ranges(np.unique(tasks)):
            outcomes[source].set(lo, hi, Outcome.OK)
    resets = [sorted(_resets(replay, source, outcomes[source])) for source in sources]
    return Ended([outcomes[source] for source in sources], failures, resets)


def _resets(replay: Replay, source: str, outcomes: RunMap) -> Iterator[tuple[int, int, float]]:
    for entry in replay.entries(source):
        header = entry.header
        if header.kind == Kind.RANGE and header.outcome == RESET:
            for lo, hi in outcomes.ranges([Outcome.OK], header.lo, header.hi):
                yield lo, hi, header.started


def _is_worth_a_try(share: Share, failed: FailedTask) -> bool:
    source = share.workspace.instance(failed.instance)
    return (
        source.kind is StepKind.CMD
        and failed.failure.exit_code == 0
        and failed.failure.cause.startswith(_OF_OUTPUTS)
        and os.access(share.workspace.task_dir(source, failed.failure.task), os.F_OK)
    )


def _copy(runs: RunMap) -> RunMap:
    return RunMap.from_runs(runs.size, runs.runs())
