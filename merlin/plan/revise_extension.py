"""What an extension runs again because the study that it was added to has changed. Pure.

Its own plan has no edges to what the study made before, because that had ended when the extension began.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from merlin.base.ranges import Range
from merlin.plan.growing import users_of_data_sets
from merlin.plan.plan import Plan


def because_of_study(
    extension: Plan, was: Plan, now: Plan, made: Sequence[Collection[str]]
) -> dict[str, list[Range]]:
    """The tasks of an extension that have seen what is made anew elsewhere in its study, by step instance.

    That is all of a step that depends on a step of the study alone, or on a data set of which rows before those of
    the extension change.

    Args:
        extension: The new plan.
        was: The plan that the study had.
        now: The new plan of the study.
        made: As `saw_what_is_made` takes it.
    """
    ours = {instance.id for instance in extension.instances}
    old, new = (_foreign_sources(plan, ours) for plan in (was, now))
    seen = saw_what_is_made(extension, now, made)
    return seen | _all_tasks(extension, {id for id in ours if new.get(id) != old.get(id)})


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
