"""What an edited spec changes in a study that has run: which tasks keep their outcomes, and which run again. Pure.

A task keeps its outcome if its step instance is defined as before, its sample has the same values, and every task whose
results it has seen keeps its outcome, too. Who runs a step, how often it is tried and what is shown of it do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from merlin.base.ranges import Range, merged, total, without
from merlin.base.records import to_plain
from merlin.plan.change_words import changed, changes
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.plan_io import anywhere, relocate
from merlin.plan.reopen import reopen
from merlin.plan.rerun import tasks_to_rerun, with_downstream
from merlin.plan.revise_collection import Before, Collected, find_collection
from merlin.plan.runs import RunMap
from merlin.plan.tasks import ENDED, NO_OUTCOME, Outcome

_WORKSPACE = "$(MERLIN_WORKSPACE)"  # in what is compared and shown
# what says who runs a step, how often it is tried, and what is shown of it; `num_tasks` is compared apart
_FREE = frozenset(
    {
        "description", "queue", "on_failure", "max_retries", "retry_delay_s", "timeout_s", "max_failures", "canary",
        "crash_limit", "resources", "fresh_shell", "feeds", "same_workspaces", "num_tasks", "aggregate",
    }
)  # fmt: skip
_FREE_OF_AGGREGATES = frozenset({"cleanup", "needed_by", "fields"})
_ORDER = "order of splits"  # it decides which samples are in them
_OF_THE_MANIFEST = frozenset({"splits", _ORDER, "seed"})  # what shards do not hold
# parts of a definition that are named otherwise in the spec
_KEYS = {"command": "cmd", "sources": "from", "per_sample": "runs per sample", "params": "parameters"}
_OPEN = (NO_OUTCOME, Outcome.INTERRUPTED)


class InstanceChange(Struct, frozen=True, kw_only=True):
    """A step instance of the new plan, or one that is gone."""

    id: str
    step: str
    why: tuple[str, ...] = ()  # it is not what it was before; empty: its definition is the same
    is_new: bool = False
    is_gone: bool = False
    again: tuple[Range, ...] = ()  # tasks that have ended and run again
    # tasks of a script that have not ended, and whose files, if they have begun, are of another sample, input or script
    begun: tuple[Range, ...] = ()
    fresh: tuple[Range, ...] = ()  # tasks that there were not before
    # tasks that do not run, and of which the outputs are collected again: from their files,
    collected: tuple[Range, ...] = ()
    # ... or from data sets that a revision has put aside, by its number; `PRESENT`: the one that this makes
    taken: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    has_lost: bool = False  # what some tasks have made is nowhere any more, and a data set needs it
    lacking: Mapping[str, int] = field(default_factory=dict)  # in words: why how many are in no data set
    num_kept: int = 0  # tasks that have ended, and keep their outcomes
    num_open: int = 0  # earlier tasks that had not ended

    @property
    def num_again(self) -> int:
        return total(self.again)

    @property
    def num_collected(self) -> int:
        return total(self.collected)

    @property
    def num_taken(self) -> int:
        return sum(map(total, self.taken.values()))

    @property
    def num_to_run(self) -> int:
        return self.num_again + self.num_open + total(self.fresh)

    @property
    def what(self) -> str:
        return "new" if self.is_new else "gone" if self.is_gone else "changed" if self.why else "same"


class Change(Struct, frozen=True, kw_only=True):
    """What a plan changes in a study, step instance by step instance, in the order of the plan; then what is gone."""

    instances: tuple[InstanceChange, ...]

    @property
    def made_anew(self) -> set[str]:
        """Ids of the step instances of which some tasks run again, or for the first time."""
        return {each.id for each in self.instances if each.again or each.fresh}

    @property
    def resets(self) -> dict[str, list[Range]]:
        """The tasks whose recorded outcomes must not count any more, by step instance.

        What is new is among them: an earlier revision may have had a step or a sample of the same name.
        """
        found = {each.id: merged([*each.again, *each.fresh]) for each in self.instances if not each.is_gone}
        return {id: ranges for id, ranges in found.items() if ranges}

    @property
    def collected(self) -> dict[str, list[Range]]:
        """The tasks that do not run, and whose files are collected again; this decides anew how they ended."""
        return {each.id: list(each.collected) for each in self.instances if each.collected}

    @property
    def taken(self) -> dict[int, dict[str, list[Range]]]:
        """The tasks whose values are collected again from data sets, by the revision that has put these aside."""
        found: dict[int, dict[str, list[Range]]] = {}
        for each in self.instances:
            for revision, ranges in each.taken.items():
                found.setdefault(revision, {})[each.id] = list(ranges)
        return found


def find_change(
    before: Before,
    new: Plan,
    *,
    changed_samples: Collection[Range] = (),
    changed_inputs: Mapping[str, list[Range]] | None = None,
    changed_code: Mapping[str, Iterable[str]] | None = None,
    keep: Collection[str] = (),
) -> Change:
    """Compare a study with another plan of the same workspace, that of the edited spec.

    Args:
        before: The study as it is.
        new: The plan of the edited spec.
        changed_samples: Rows of the samples that have other values now.
        changed_inputs: By step instance, tasks whose inputs outside of these plans change.
        changed_code: By step, what has changed in files that it uses; these steps run again.
        keep: Steps whose results are taken as they are, however differently they are defined now.
    """
    reasons = _reasons_to_run(before, new, changed_code or {}, keep)
    now = {each.id: before.carried(each.id, each.num_tasks) for each in new.instances}
    chosen = with_downstream(new, _chosen(before, new, reasons, changed_samples, changed_inputs or {}))
    changed = {id for id, why in reasons.items() if why}
    collection = find_collection(before, new, now, changed)
    again = _again(before, new, now, chosen, collection)
    tasks = _Tasks(again, chosen, _fresh(before, new), collection)
    described = (
        _describe(instance, before, reasons.get(instance.id, ()), now[instance.id], tasks)
        for instance in new.instances
    )
    return Change(instances=(*described, *_gone(before, new)))


class _Tasks(Struct):
    """What becomes of tasks, by step instance; see `InstanceChange`."""

    again: Mapping[str, list[Range]]
    chosen: Mapping[str, list[Range]]  # whether they have ended or not
    fresh: Mapping[str, list[Range]]
    collection: Collected


def _reasons_to_run(
    before: Before, new: Plan, changed_code: Mapping[str, Iterable[str]], keep: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """By step instance of the new plan: why all of it runs again."""
    kept = {instance.id for instance in new.instances if instance.step in keep}
    found = {id: () if id in kept else why for id, why in _reasons(before.plan, new, changed_code)}
    for instance in new.instances:
        if instance.id in before.instances and _is_numbered_otherwise(instance, before, new):
            found[instance.id] = (*found[instance.id], "its rows have other numbers")
    return found


def _is_numbered_otherwise(target: StepInstance, before: Before, plan: Plan) -> bool:
    """Whether a data set collects from several steps, and these have more or fewer tasks than before."""
    if target.kind is not StepKind.AGGREGATE or target.aggregate is None or len(target.aggregate.sources) < 2:
        return False
    was, now = ({each.id: each.num_tasks for each in of.instances} for of in (before.plan, plan))
    return any(source in was and was[source] != now[source] for source in target.aggregate.sources)


def _chosen(
    before: Before,
    new: Plan,
    reasons: Mapping[str, tuple[str, ...]],
    changed_samples: Collection[Range],
    changed_inputs: Mapping[str, list[Range]],
) -> dict[str, list[Range]]:
    """The tasks that run again for a reason of their own."""
    chosen: dict[str, list[Range]] = {}
    sizes = {instance.id: instance.num_tasks for instance in new.instances}
    for instance in new.instances:
        known = before.instances.get(instance.id)
        if reasons.get(instance.id):
            chosen[instance.id] = [(0, instance.num_tasks)]
        elif known is not None:
            ranges = list(changed_samples) if instance.per_sample else []
            ranges += changed_inputs.get(instance.id, ())
            chosen[instance.id] = merged([*ranges, *_other_inputs(known, instance, before, sizes)])
    return {id: ranges for id, ranges in chosen.items() if ranges}


def _fresh(before: Before, new: Plan) -> dict[str, list[Range]]:
    """Tasks that there were not before."""
    sizes = {id: instance.num_tasks for id, instance in before.instances.items()}
    return {
        each.id: [(sizes.get(each.id, 0), each.num_tasks)]
        for each in new.instances
        if sizes.get(each.id, 0) < each.num_tasks
    }


def _again(
    before: Before,
    new: Plan,
    now: Mapping[str, RunMap],
    chosen: Mapping[str, list[Range]],
    collection: Collected,
) -> dict[str, list[Range]]:
    """The tasks that run again; nothing of them is left in the collection."""
    collected = collection.tasks()
    gone = dict(collection.lost)
    for id, ranges in reopen(new, now, collected).items():
        gone[id] = merged([*gone.get(id, ()), *without(ranges, collected.get(id, ()))])
    again = tasks_to_rerun(new, now, chosen, before, gone)
    collection.leave_out(again)
    return again


def _describe(
    instance: StepInstance, before: Before, why: tuple[str, ...], outcomes: RunMap, tasks: _Tasks
) -> InstanceChange:
    id, found = instance.id, tasks.collection
    ranges, added = tuple(tasks.again.get(id, ())), tuple(tasks.fresh.get(id, ()))
    ended = total(outcomes.ranges(ENDED))
    begun = [r for lo, hi in tasks.chosen.get(id, ()) for r in outcomes.ranges(_OPEN, lo, hi)]
    return InstanceChange(
        id=id,
        step=instance.step,
        why=why,
        is_new=id not in before.instances,
        again=ranges,
        begun=tuple(begun) if instance.kind is StepKind.CMD else (),
        fresh=added,
        collected=tuple(found.from_files.get(id, ())),
        taken={revision: tuple(of) for revision, of in found.from_data_sets.get(id, {}).items()},
        has_lost=id in found.lost,
        lacking=found.lacking.get(id, {}),
        num_kept=ended - total(ranges),
        num_open=instance.num_tasks - ended - total(added),
    )


def _gone(before: Before, new: Plan) -> Iterator[InstanceChange]:
    left = {instance.id for instance in new.instances}
    for instance in before.plan.instances:
        if instance.id not in left:
            yield InstanceChange(id=instance.id, step=instance.step, is_gone=True)


def _other_inputs(
    old: StepInstance, new: StepInstance, before: Before, sizes: Mapping[str, int]
) -> list[Range]:
    """Tasks that see all of another step instance, if that has more or fewer tasks than before."""
    differs = [
        edge.source
        for edge in new.edges
        if edge.source in before.instances and sizes[edge.source] != before.instances[edge.source].num_tasks
    ]
    if not differs:
        return []
    if new.kind is StepKind.MANIFEST:
        return [(0, 1)]
    if new.aggregate is not None:
        size = new.aggregate.samples_per_shard
        first = min(sizes[differs[0]], before.instances[differs[0]].num_tasks) // size
        return [(first, new.num_tasks)] if first < new.num_tasks else []
    sees_all = any(edge.kind == "all" for edge in new.edges if edge.source in differs)
    return [(0, new.num_tasks)] if sees_all else []


# ----------------------------------------------------------------------- definitions


def num_changed(old: Plan, new: Plan) -> int:
    """How many step instances are not defined as before."""
    return sum(bool(why) for _, why in _reasons(old, new, {}))


def _reasons(
    old: Plan, new: Plan, changed_code: Mapping[str, Iterable[str]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """By step instance of the new plan: why it is not what it was."""
    ours, theirs = definitions(old), definitions(new)
    environment = list(changes("environment", old.env, new.env)) if old.env != new.env else []
    for instance in new.instances:
        if instance.id not in ours:
            yield instance.id, ()
            continue
        found = list(definition_changes(ours[instance.id], theirs[instance.id]))
        if instance.aggregate is None:
            found += environment
        yield instance.id, (*found, *changed_code.get(instance.step, ()))


def definitions(plan: Plan) -> dict[str, dict[str, Any]]:
    """All that determines the results of each step instance, independent of where spec and workspace lie."""
    place = f"{_WORKSPACE}/extensions/{plan.extension}" if plan.extension else _WORKSPACE
    placed = relocate(plan, place)
    return {one.id: anywhere(_parts(one), plan.spec_root) for one in placed.instances}


def _parts(instance: StepInstance) -> dict[str, Any]:
    values = to_plain(instance)
    is_manifest = instance.kind is StepKind.MANIFEST
    free = _FREE | {"edges"} if instance.aggregate is not None else _FREE
    parts = {key: value for key, value in values.items() if key not in free}
    if values["aggregate"]:
        hidden = _FREE_OF_AGGREGATES if is_manifest else _FREE_OF_AGGREGATES | _OF_THE_MANIFEST
        parts |= {key: value for key, value in values["aggregate"].items() if key not in hidden}
        if is_manifest:
            parts[_ORDER] = [name for name, _ in parts["splits"]]
            parts["splits"] = dict(parts["splits"])
        for one in values["aggregate"]["fields"]:
            parts[f"field {one['name']}"] = "there"
            parts |= {f"{key} of field {one['name']}": value for key, value in one.items()}
    return parts


def definition_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], say: Callable[[Any, Any], str] = changed
) -> Iterator[str]:
    """How two definitions of a step instance differ, in the words of the spec; `say` is that of `changes`."""
    for part in dict.fromkeys((*old, *new)):
        if part not in old or part not in new:
            if part.startswith("field "):  # what else is said of the field does not matter then
                yield f"{part} is {'new' if part in new else 'gone'}"
        elif part == "edges" and old[part] != new[part]:
            yield f"depends: {say(*_depends(old[part], new[part]))}"
        elif old[part] != new[part]:
            key, _, name = part.partition(" of field ")
            path = f"fields.{name}.{key}" if name else _KEYS.get(part, part)
            yield from changes(path, old[part], new[part], say)


def _depends(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """What two instances wait for: the entries of the spec if these differ, else the step instances."""
    words = [list(dict.fromkeys(edge["group"] for edge in edges)) for edges in (old, new)]
    if words[0] == words[1]:
        words = [[edge["source"] for edge in edges] for edges in (old, new)]
    return words[0], words[1]
