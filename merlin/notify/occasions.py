"""Decides when a notice is due. Pure: numbers, times and earlier notices in; occasions out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from merlin.base.text import duration
from merlin.ledger.signature import normalise
from merlin.plan.notify_rule import NotifyRule
from merlin.plan.task_states import TaskCounts


@dataclass(frozen=True, slots=True)
class Occasion:
    """An event that one of the rules waits for. Two with the same mark in one run are the same event."""

    rule: int  # which entry of `notify`
    event: str
    mark: str = ""
    reason: str = field(default="", compare=False)


class Told(Struct, frozen=True):
    """The notices that were sent before, by the ledger."""

    in_run: frozenset[Occasion] = frozenset()  # since the run has started
    of_failures: frozenset[int] = frozenset()  # the rules that have ever sent a notice of too many failures


NOTHING_TOLD = Told()


class Occasions:
    """The rules of one run; every occasion is returned once."""

    def __init__(self, rules: Sequence[NotifyRule], told: Told, *, now: float, quiet_s: float = 0.0) -> None:
        """`quiet_s`: seconds without an ended task before this process began to look."""
        self._rules = tuple(enumerate(rules))
        self._told = set(told.in_run)
        self._told_of_failures = set(told.of_failures)
        self._num_ended: int | None = None
        self._has_work = True
        self._quiet_since = now - quiet_s

    def look(self, counts: TaskCounts, now: float, refusal: str = "") -> list[Occasion]:
        """The new occasions of a running study; `counts`: all tasks; `refusal`: why no job is accepted."""
        num_ended = counts.done
        if self._num_ended not in (None, num_ended):
            self._quiet_since = now
        self._num_ended, self._has_work = num_ended, counts.missing > 0
        found: list[Occasion] = []
        for number, rule in self._rules:
            found += self._of_failures(number, rule, counts)
            if "stall" in rule.when and counts.missing and now - self._quiet_since >= rule.after_s:
                reason = f"no task has ended for {duration(rule.after_s)}, and {counts.missing:,} are missing"
                found.append(Occasion(number, "stall", str(num_ended), reason))
            if "refused" in rule.when and refusal:
                found.append(Occasion(number, "refused", normalise(refusal), refusal))
        return self._new(found)

    def end(self, event: str, counts: TaskCounts, reason: str) -> list[Occasion]:
        """The new occasions at the end of the run: finished, failed or stopped."""
        found = [o for number, rule in self._rules for o in self._of_failures(number, rule, counts)]
        found += [Occasion(n, event, "", reason) for n, rule in self._rules if event in rule.when]
        return self._new(found)

    def stir(self, now: float) -> None:
        """Take note that tasks have ended which the counts do not show yet."""
        self._quiet_since = now

    def next_wakeup(self) -> float | None:
        """When the study counts as stalled if no task ends before; None: no stall is left to report."""
        if not self._has_work:
            return None
        told = {o.rule for o in self._told if o.event == "stall" and o.mark == str(self._num_ended)}
        times = [
            self._quiet_since + rule.after_s
            for number, rule in self._rules
            if "stall" in rule.when and number not in told
        ]
        return min(times, default=None)

    def _of_failures(self, number: int, rule: NotifyRule, counts: TaskCounts) -> list[Occasion]:
        """The occasion of too many failures: once, until there are fewer because failed tasks run again."""
        if "failures" not in rule.when or not is_above(rule, counts):
            self._told_of_failures.discard(number)
            return []
        if number in self._told_of_failures:
            return []
        self._told_of_failures.add(number)
        return [Occasion(number, "failures", str(counts.failed))]

    def _new(self, found: Collection[Occasion]) -> list[Occasion]:
        new = [occasion for occasion in found if occasion not in self._told]
        self._told.update(new)
        return new


def is_above(rule: NotifyRule, counts: TaskCounts) -> bool:
    """Return whether more tasks have failed than the rule allows."""
    if rule.above is None:
        return False
    is_share = 0 < rule.above < 1
    return counts.failed > rule.above * (counts.planned if is_share else 1)
