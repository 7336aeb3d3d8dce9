"""Which tasks an edited data set needs again, and which not, because what they have made is still there. Pure.

The results of a script lie in files, those of a function only in data sets; after `cleanup` a script's results are only
there, too. A task whose results are still available does not run: its outputs are collected again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

from msgspec import Struct, field

from merlin.base.ranges import Range, merged, within, without
from merlin.base.records import to_plain
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.rerun import HasFiles
from merlin.plan.restrict import may_lack
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FROM_FILES, NO_OUTCOME, Outcome

PRESENT = 0  # as the number of a revision: the data sets that the study has now
_OF_STORAGE = frozenset({"compression", "level", "shuffle", "description"})  # of a field
_Tasks = dict[str, list[Range]]  # by step instance


class Held(Struct, frozen=True):
    """Which of some tasks have their results in the existing data sets."""

    tasks: list[Range]  # of these, the data sets have all that a new one needs
    lacking: Mapping[str, int] = field(default_factory=dict)  # reason in words -> number of other tasks


class Holds(Protocol):
    """Knows what the existing data sets hold."""

    def __call__(self, target: StepInstance, source: StepInstance, tasks: list[Range], revision: int) -> Held:
        """The tasks of a source for which data sets hold all that the aggregate `target` needs.

        These are the data sets that the `revision` has put aside, or with `PRESENT` those of the study.
        """


class Before(Struct, frozen=True, kw_only=True, dict=True):
    """The study as it was; what concerns tasks is by step instance."""

    plan: Plan
    outcomes: Mapping[str, RunMap]
    has_files: HasFiles  # whether a task of a script left what it made
    # tasks that failed only because of what they left
    badly_collected: Mapping[str, list[Range]] = field(default_factory=dict)
    # where the values of tasks lie that have run and are to be collected again: see `FROM_FILES`
    pending: Mapping[str, RunMap] = field(default_factory=dict)
    # tasks that have not run since they were taken from data sets: by the revision that has put these aside
    taken: Mapping[str, Mapping[int, list[Range]]] = field(default_factory=dict)
    holds: Holds | None = None  # what the existing data sets hold; None: nothing

    @cached_property
    def instances(self) -> dict[str, StepInstance]:
        return {instance.id: instance for instance in self.plan.instances}

    def carried(self, id: str, size: int) -> RunMap:
        """The outcomes of a step instance, which may have more or fewer tasks now. Pending tasks count as ok."""
        had = self.outcomes.get(id)
        if had is None:
            return RunMap(size)
        end = min(size, had.size)
        found = RunMap.from_runs(size, (run for run in had.runs(0, end) if run[2] != NO_OUTCOME))
        for lo, hi, whence in self.pending[id].runs(0, end) if id in self.pending else ():
            if whence:
                found.set(lo, hi, Outcome.OK)
        return found

    def may_lack(self, instance: StepInstance) -> bool:
        """False if all tasks are known to have left their results in files; see `restrict.may_lack`."""
        pending = self.pending.get(instance.id)
        is_stored = pending is not None and any(place > 0 for _, _, place in pending.runs())
        return may_lack(instance, self.has_files) or is_stored

    def __call__(self, instance: StepInstance, task: int) -> bool:
        """Whether the files of a script's task are still there; the values of a pending task may be in data sets."""
        pending = self.pending.get(instance.id)
        if pending is not None and task < pending.size and pending[task] > 0:
            return False
        return self.has_files(instance, task)


class Collected(Struct):
    """What becomes of tasks because data sets are made anew, by step instance."""

    from_files: _Tasks = field(default_factory=dict)  # collected again
    # ... from data sets: by the revision that has put them aside; `PRESENT`: the next one does
    from_data_sets: dict[str, dict[int, list[Range]]] = field(default_factory=dict)
    lost: _Tasks = field(default_factory=dict)  # to run again
    lacking: dict[str, dict[str, int]] = field(default_factory=dict)  # reason -> number of tasks

    def tasks(self) -> _Tasks:
        """All tasks that do not run and are collected again."""
        found: _Tasks = {}
        for id in (*self.from_files, *self.from_data_sets):
            parts = self.from_data_sets.get(id, {}).values()
            found[id] = merged([*self.from_files.get(id, ()), *(each for part in parts for each in part)])
        return found

    def leave_out(self, tasks: Mapping[str, list[Range]]) -> None:
        """Collect nothing of these tasks again."""
        for id, ranges in tasks.items():
            if id in self.from_files:
                self.from_files[id] = without(self.from_files[id], ranges)
            for revision, of in self.from_data_sets.get(id, {}).items():
                self.from_data_sets[id][revision] = without(of, ranges)


def find_collection(
    before: Before, plan: Plan, now: Mapping[str, RunMap], changed: Container[str]
) -> Collected:
    """What is collected again, and what runs again because its results are gone.

    Args:
        before: The study as it was.
        plan: As it will be.
        now: The outcomes that the study has, by step instance of the new plan.
        changed: Step instances all of which runs again in any case.
    """
    found = Collected()
    ours, theirs = _collections(before.plan), _collections(plan)
    instances = {instance.id: instance for instance in plan.instances}
    for source in plan.instances:
        if source.aggregate is not None or source.id not in before.instances or source.id in changed:
            continue
        was, wanted = ours.get(source.id, {}), theirs.get(source.id, {})
        if files := _in_files(before, source, now[source.id], was, wanted):
            found.from_files[source.id] = files
        fed = [instances[id] for id in wanted]
        # whose data sets are made from nothing
        is_anew = any(target.id in changed or target.id not in before.instances for target in fed)
        if is_anew and (failed := _failed_without_files(before, source)):
            found.lost[source.id] = failed
        for revision, tasks in _in_data_sets(before, source, now[source.id], is_anew).items():
            _divide(found, before, source, fed, tasks, revision)
    return found


def _in_files(
    before: Before, source: StepInstance, outcomes: RunMap, was: Mapping[str, Any], wanted: Mapping[str, Any]
) -> list[Range]:
    """Tasks of a script whose files hold what a data set collects in another way now.

    A task fails if its outputs are missing or not as the spec says, so how it ended is decided anew. A change that
    only stores rows in another way does not count.
    """
    if source.kind is not StepKind.CMD:
        return []
    ranges = _pending(before, source).get(FROM_FILES, [])
    if was != wanted:
        ranges += before.badly_collected.get(source.id, ())
        if any(one not in was.get(target, ()) for target, fields in wanted.items() for one in fields):
            ranges += outcomes.ranges([Outcome.OK])
    ranges = list(_below(source.num_tasks, ranges))
    if before.may_lack(source):
        ranges = [(t, t + 1) for lo, hi in ranges for t in range(lo, hi) if before(source, t)]
    return merged(ranges)


def _in_data_sets(
    before: Before, source: StepInstance, outcomes: RunMap, is_anew: bool
) -> dict[int, list[Range]]:
    """Tasks with needed results that are only in data sets, by the revision that has put these aside."""
    found = {place: ranges for place, ranges in _pending(before, source).items() if place > 0}
    if is_anew:
        elsewhere = merged(each for ranges in found.values() for each in ranges)
        if alone := without(_without_files(before, source, outcomes.ranges([Outcome.OK])), elsewhere):
            found[PRESENT] = alone
    return found


def _pending(before: Before, source: StepInstance) -> dict[int, list[Range]]:
    """Tasks that are to be collected again because of an earlier revision, by the places of their values."""
    found: dict[int, list[Range]] = {}
    marks = before.pending.get(source.id)
    for lo, hi, place in () if marks is None else marks.runs(0, min(marks.size, source.num_tasks)):
        if place:
            found.setdefault(place, []).append((lo, hi))
    return found


def _failed_without_files(before: Before, source: StepInstance) -> list[Range]:
    """Tasks that failed only because a data set could not collect from them, and that have left no files."""
    failed = merged(_below(source.num_tasks, before.badly_collected.get(source.id, ())))
    return _without_files(before, source, failed)


def _without_files(before: Before, source: StepInstance, ranges: list[Range]) -> list[Range]:
    if source.kind is not StepKind.CMD:
        return ranges
    if not before.may_lack(source):
        return []
    return merged((t, t + 1) for lo, hi in ranges for t in range(lo, hi) if not before(source, t))


def _divide(
    found: Collected,
    before: Before,
    source: StepInstance,
    fed: list[StepInstance],
    tasks: list[Range],
    revision: int,
) -> None:
    """Divide tasks: for some, data sets have all that the aggregates need, and the others run again."""
    gone: list[Range] = tasks
    taken: Mapping[int, list[Range]] = before.taken.get(source.id, {})
    for place in (revision, *sorted(taken.keys() - {revision}, reverse=True)):
        # values that these data sets lack may still be in those from which they were taken earlier
        there = gone if place == revision else within(gone, taken[place])
        if had := _held(before, source, fed, there, place).tasks if there else []:
            of_source = found.from_data_sets.setdefault(source.id, {})
            of_source[place] = merged([*of_source.get(place, ()), *had])
            gone = without(gone, had)
    if gone:
        found.lost[source.id] = merged([*found.lost.get(source.id, ()), *gone])
        why = _held(before, source, fed, gone, revision).lacking  # of the remaining tasks
        found.lacking[source.id] = added(found.lacking.get(source.id, {}), why)


def _held(
    before: Before, source: StepInstance, fed: list[StepInstance], tasks: list[Range], revision: int
) -> Held:
    """Tasks for which data sets have all that every one of the aggregates needs."""
    had, lacking = tasks, dict[str, int]()
    for target in fed if tasks else ():
        held = Held([]) if before.holds is None else before.holds(target, source, had, revision)
        had, lacking = held.tasks, added(lacking, held.lacking)
    return Held(had, lacking)


def added(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """The sums of numbers by reason."""
    return {why: some.get(why, 0) + others.get(why, 0) for why in (*some, *others)}


def _below(end: int, ranges: Iterable[Range]) -> Iterator[Range]:
    return ((lo, min(hi, end)) for lo, hi in ranges if lo < end)


def _collections(plan: Plan) -> dict[str, dict[str, Any]]:
    """By step instance, and by aggregate: how it takes values from the outputs of the step's tasks."""
    found: dict[str, dict[str, Any]] = {}
    for target in plan.instances:
        if target.kind is StepKind.AGGREGATE and target.aggregate is not None:
            fields = [
                {key: value for key, value in to_plain(one).items() if key not in _OF_STORAGE}
                for one in target.aggregate.fields
            ]
            for source in target.aggregate.sources:
                found.setdefault(source, {})[target.id] = fields
    return found
