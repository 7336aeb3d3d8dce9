"""What an extension runs again because the study that it was added to has changed. Pure.

Its own plan has no edges to what the study made before, because that had ended when the extension began.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from merlin.base.ranges import Range
from merlin.plan.growing import users_of_data_sets
from merlin.plan.plan import Plan
from merlin.plan.revise import Change


class Revised(Struct, frozen=True, kw_only=True):
    """A study, or one of its extensions, as it was and as it will be."""

    old: Plan
    new: Plan
    change: Change

    @property
    def made_anew(self) -> set[str]:
        """Ids of the step instances of which some tasks run again, or for the first time."""
        return {each.id for each in self.change.instances if each.again or each.fresh}


def because_of_study(extension: Plan, before: Sequence[Revised]) -> dict[str, list[Range]]:
    """The tasks of an extension that have seen what is made anew elsewhere in its study, by step instance.

    That is all of a step that depends on a step of the study alone, or on a data set of which rows before those of
    the extension change.

    Args:
        extension: The new plan.
        before: The study itself, then its extensions before this one.
    """
    if not before:
        return {}
    ours = {instance.id for instance in extension.instances}
    was, now = (_foreign_sources(plan, ours) for plan in (before[0].old, before[0].new))
    seen = saw_what_is_made(extension, before[0].new, [each.made_anew for each in before])
    return seen | _all_tasks(extension, {id for id in ours if now.get(id) != was.get(id)})


def saw_what_is_made(extension: Plan, study: Plan, made: Sequence[Collection[str]]) -> dict[str, list[Range]]:
    """The tasks of an extension that have seen what is made again elsewhere in its study, by step instance.

    `made`: ids of step instances that run again, of the study itself and then of its extensions before this one.
    """
    if not made:
        return {}
    sources = _foreign_sources(study, {instance.id for instance in extension.instances})
    seen = {id for id, of in sources.items() if of & set(made[0])}
    changing = set().union(*made)
    for manifest, steps in users_of_data_sets(extension).items():
        if manifest in changing:
            seen.update(steps)
    return _all_tasks(extension, seen)


def _all_tasks(extension: Plan, ids: Collection[str]) -> dict[str, list[Range]]:
    # aggregates and manifests use only the extension's own tasks and shards; for the rest they only wait
    return {i.id: [(0, i.num_tasks)] for i in extension.instances if i.id in ids and i.aggregate is None}


def _foreign_sources(study: Plan, ours: Collection[str]) -> dict[str, frozenset[str]]:
    """For each step instance that an extension runs, too: the instances of only the study on which it depends."""
    return {
        instance.id: frozenset(edge.source for edge in instance.edges if edge.source not in ours)
        for instance in study.instances
        if instance.id in ours
    }
