"""Finds nodes on which tasks fail that succeed elsewhere: such nodes get no more tasks of a study. Pure.

A node is bad when the last samples of a step that ended there all failed, at least `MIN_FAILURES` different ones,
while samples of the step succeed elsewhere, so that chance explains it in fewer than one of a hundred such studies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from merlin.base.ranges import Range, merged
from merlin.plan.pieces import Run
from merlin.plan.tasks import Outcome

MIN_FAILURES = 3  # different samples, none of which ended ok in between
CHANCE = 0.01


class _Record(Struct):
    """How many tasks of one step have ended how, on one node or on all."""

    num_ok: int = 0
    num_failed: int = 0
    last_failed: set[tuple[str, int]] = field(default_factory=set)  # since the last one that ended ok


class BadNodes:
    """Counts how the tasks of each step end on each node."""

    def __init__(self, quarantined: Mapping[str, str] | None = None) -> None:
        """`quarantined`: the nodes that earlier owners of the study have found to be bad."""
        self.quarantined = dict(quarantined or {})  # node -> the step that showed it
        self._records: dict[str, dict[str, _Record]] = {}  # by step and node
        self._totals: dict[str, _Record] = {}  # by step
        self._failing: dict[str, set[str]] = {}  # by step: nodes where the last ones failed
        self._failed: dict[str, dict[str, list[Range]]] = {}  # by node and step instance

    def ended(self, node: str, step: str, instance: str, runs: Iterable[Run]) -> list[str]:
        """Take in that tasks of a chunk have ended on a node; returns the nodes that this shows to be bad."""
        if not node or node in self.quarantined:
            return []
        record = self._records.setdefault(step, {}).setdefault(node, _Record())
        total, failing = self._totals.setdefault(step, _Record()), self._failing.setdefault(step, set())
        for lo, hi, outcome in runs:
            if outcome == Outcome.OK:
                record.num_ok += hi - lo
                total.num_ok += hi - lo
                record.last_failed.clear()
            elif outcome == Outcome.FAILED:
                record.num_failed += hi - lo
                total.num_failed += hi - lo
                few = range(lo, min(hi, lo + 1000))  # more make no difference
                record.last_failed.update((instance, task) for task in few)
                self._failed.setdefault(node, {}).setdefault(instance, []).append((lo, hi))
        (failing.add if len(record.last_failed) >= MIN_FAILURES else failing.discard)(node)
        records = self._records[step]
        bad = [name for name in sorted(failing) if _is_bad(records[name], total, len(records))]
        for name in bad:
            self.quarantined[name] = step
            failing.discard(name)
        return bad

    def is_on_one_node(self, step: str) -> bool:
        """Whether everything of this step has ended on the same node, if it is known where."""
        return len(self._records.get(step, ())) == 1

    def failed_on(self, node: str) -> dict[str, list[Range]]:
        """The tasks that failed on a node, by step instance."""
        return {id: merged(ranges) for id, ranges in self._failed.get(node, {}).items()}


def _is_bad(here: _Record, total: _Record, num_nodes: int) -> bool:
    num_ok, num_failed = total.num_ok - here.num_ok, total.num_failed - here.num_failed  # elsewhere
    if not num_ok:
        return False
    rate = (num_failed + 1) / (num_ok + num_failed + 2)  # of failures, that fits the other nodes
    # Every end of a task on any node is one more opportunity for such a series by chance. The n-th of a node has the
    # n (n + 1)-th part of what is allowed for the node, of which the sum is 1 however many there will be.
    num_here = here.num_ok + here.num_failed
    return num_nodes * num_here * (num_here + 1) * rate ** len(here.last_failed) <= CHANCE


def why_quarantined(node: str, step: str) -> str:
    """What people are told about a bad node."""
    return (
        f"node {node} gets nothing more of the study: tasks of step '{step}' fail there and succeed elsewhere"
    )
