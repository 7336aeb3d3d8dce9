"""What an edited spec changes in a study that has run: which tasks keep their outcomes, and which run again. Pure.

A task keeps its outcome if its step instance is defined as before, its sample has the values of before, and everything
that it has seen keeps its outcome, too. Who runs a step, how often it is tried and what is shown of it do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from merlin.plan.change_words import changed, changes
from merlin.plan.differences import anywhere
from merlin.plan.pieces import Range, merged, without
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.plan_io import relocate
from merlin.plan.reopen import reopen
from merlin.plan.rerun import HasFiles, tasks_to_rerun
from merlin.plan.restrict import may_lack
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome

_WORKSPACE = "$(MERLIN_WORKSPACE)"  # in what is compared and shown
# what says who runs a step, how often it is tried, and what is shown of it; `num_tasks` is compared apart
_FREE = frozenset(
    {
        "description", "queue", "on_failure", "max_retries", "retry_delay_s", "timeout_s", "max_failures", "canary",
        "crash_limit", "resources", "fresh_shell", "feeds", "same_workspaces", "num_tasks", "aggregate",
    }
)  # fmt: skip
_FREE_OF_AGGREGATES = frozenset({"cleanup", "needed_by", "fields"})
OF_THE_MANIFEST = frozenset({"splits", "seed"})  # what shards do not hold
_OF_STORAGE = frozenset({"compression", "level", "shuffle", "description"})  # of a field
# parts of a definition that are named otherwise in the spec
_KEYS = {"command": "cmd", "sources": "from", "per_sample": "runs per sample", "params": "parameters"}
_ENDED = (Outcome.OK, Outcome.FAILED, Outcome.SOFT_FAILED, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceChange:
    """A step instance of the new plan, or one that is gone."""

    id: str
    step: str
    why: tuple[str, ...] = ()  # it is not what it was before; empty: its definition is the same
    is_new: bool = False
    is_gone: bool = False
    again: tuple[Range, ...] = ()  # tasks that have ended and run again
    fresh: tuple[Range, ...] = ()  # tasks that there were not before
    collected: tuple[
        Range, ...
    ] = ()  # tasks of which the script does not run, and the outputs are collected again
    has_lost: bool = False  # what it has made is in a data set alone, which is made anew
    num_kept: int = 0  # tasks that have ended, and keep their outcomes
    num_open: int = 0  # tasks of before that had not ended

    @property
    def num_again(self) -> int:
        return sum(hi - lo for lo, hi in self.again)

    @property
    def num_collected(self) -> int:
        return sum(hi - lo for lo, hi in self.collected)

    @property
    def num_to_run(self) -> int:
        return self.num_again + self.num_open + sum(hi - lo for lo, hi in self.fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a plan changes in a study, step instance by step instance, in the order of the plan; then what is gone."""

    instances: tuple[InstanceChange, ...]

    @property
    def resets(self) -> dict[str, list[Range]]:
        """The tasks whose recorded outcomes must not count any more, by step instance.

        What is new is among them: an earlier revision may have had a step or a sample of the same name.
        """
        found = {each.id: merged([*each.again, *each.fresh]) for each in self.instances if not each.is_gone}
        return {id: ranges for id, ranges in found.items() if ranges}

    @property
    def collected(self) -> dict[str, list[Range]]:
        """The tasks of which nothing but the outputs is collected again: that decides anew how they ended."""
        return {each.id: list(each.collected) for each in self.instances if each.collected}


@dataclass(slots=True)
class _Before:
    """The study as it was."""

    plan: Plan
    outcomes: Mapping[str, RunMap]
    badly_collected: Mapping[str, list[Range]]
    instances: Mapping[str, StepInstance] = field(init=False)

    def __post_init__(self) -> None:
        self.instances = {instance.id: instance for instance in self.plan.instances}


def find_change(
    old: Plan,
    new: Plan,
    outcomes: Mapping[str, RunMap],
    has_files: HasFiles,
    *,
    changed_samples: Collection[Range] = (),
    changed_inputs: Mapping[str, list[Range]] | None = None,
    changed_code: Mapping[str, Iterable[str]] | None = None,
    keep: Collection[str] = (),
    badly_collected: Mapping[str, list[Range]] | None = None,
) -> Change:
    """Compare two plans of the same workspace.

    Args:
        old: The plan that the study has.
        new: The plan of the edited spec.
        outcomes: Of the old plan's tasks, by step instance.
        has_files: Whether a task of a script left what it made.
        changed_samples: Rows of the samples that have other values now.
        changed_inputs: By step instance, tasks whose inputs outside of these plans change.
        changed_code: By step, what has changed in files that it uses; these steps run again.
        keep: Steps whose results are taken as they are, however differently they are defined now.
        badly_collected: Tasks that failed only because their outputs could not be collected.
    """
    before = _Before(old, outcomes, badly_collected or {})
    kept = {instance.id for instance in new.instances if instance.step in keep}
    reasons = {id: () if id in kept else why for id, why in _reasons(before.plan, new, changed_code or {})}
    chosen: dict[str, list[Range]] = {}
    now: dict[str, RunMap] = {}
    fresh: dict[str, list[Range]] = {}
    for instance in new.instances:
        known = before.instances.get(instance.id)
        num_before = 0 if known is None else known.num_tasks
        now[instance.id] = _carried(outcomes.get(instance.id), instance.num_tasks)
        if num_before < instance.num_tasks:
            fresh[instance.id] = [(num_before, instance.num_tasks)]
        if reasons.get(instance.id):
            chosen[instance.id] = [(0, instance.num_tasks)]
        elif known is not None:
            ranges = list(changed_samples) if instance.per_sample else []
            ranges += (changed_inputs or {}).get(instance.id, ())
            chosen[instance.id] = merged([*ranges, *_other_inputs(known, instance, before, new)])
    chosen = {id: ranges for id, ranges in chosen.items() if ranges}
    lost = _without_results(before, new, now, reasons, has_files)
    tasks = _Tasks(*_again(before, new, now, chosen, lost, has_files), fresh, frozenset(lost))
    described = (
        _describe(instance, before, reasons.get(instance.id, ()), now[instance.id], tasks)
        for instance in new.instances
    )
    return Change(instances=(*described, *_gone(before, new)))


@dataclass(slots=True)
class _Tasks:
    """What becomes of tasks, by step instance; see `InstanceChange`."""

    again: Mapping[str, list[Range]]
    collected: Mapping[str, list[Range]]
    fresh: Mapping[str, list[Range]]
    lost: frozenset[str]


def _again(
    before: _Before,
    new: Plan,
    now: Mapping[str, RunMap],
    chosen: Mapping[str, list[Range]],
    lost: Mapping[str, list[Range]],
    has_files: HasFiles,
) -> tuple[dict[str, list[Range]], dict[str, list[Range]]]:
    """The tasks that run again, and those of which only the outputs are collected again."""
    collected = _to_collect(before, new, now, has_files)
    gone = dict(lost)
    for id, ranges in reopen(new, now, collected).items():
        gone[id] = merged([*gone.get(id, ()), *without(ranges, collected.get(id, ()))])
    again = tasks_to_rerun(new, now, chosen, has_files, gone)
    return again, {id: without(ranges, again.get(id, ())) for id, ranges in collected.items()}


def _describe(
    instance: StepInstance, before: _Before, why: tuple[str, ...], outcomes: RunMap, tasks: _Tasks
) -> InstanceChange:
    ranges, added = tuple(tasks.again.get(instance.id, ())), tuple(tasks.fresh.get(instance.id, ()))
    ended = sum(hi - lo for lo, hi in outcomes.ranges(_ENDED))
    num_again = sum(hi - lo for lo, hi in ranges)
    is_new = instance.id not in before.instances
    return InstanceChange(
        id=instance.id,
        step=instance.step,
        why=why,
        is_new=is_new,
        again=ranges,
        fresh=added,
        collected=tuple(tasks.collected.get(instance.id, ())),
        has_lost=instance.id in tasks.lost,
        num_kept=ended - num_again,
        num_open=instance.num_tasks - ended - sum(hi - lo for lo, hi in added),
    )


def _gone(before: _Before, new: Plan) -> Iterator[InstanceChange]:
    left = {instance.id for instance in new.instances}
    for instance in before.plan.instances:
        if instance.id not in left:
            yield InstanceChange(id=instance.id, step=instance.step, is_gone=True)


def _carried(outcomes: RunMap | None, size: int) -> RunMap:
    """The outcomes of before for a step instance that may have more or fewer tasks now."""
    if outcomes is None:
        return RunMap(size)
    if outcomes.size == size:
        return outcomes
    kept = outcomes.runs(0, min(size, outcomes.size))
    return RunMap.from_runs(size, (run for run in kept if run[2] != NO_OUTCOME))


def _other_inputs(old: StepInstance, new: StepInstance, before: _Before, plan: Plan) -> list[Range]:
    """Tasks that see all of another step instance, if that has more or fewer tasks than before."""
    sizes = {instance.id: instance.num_tasks for instance in plan.instances}
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
        if len(new.aggregate.sources) > 1:  # the rows of all but the first have other numbers
            return [(0, new.num_tasks)]
        size = new.aggregate.samples_per_shard
        first = min(sizes[differs[0]], before.instances[differs[0]].num_tasks) // size
        return [(first, new.num_tasks)] if first < new.num_tasks else []
    sees_all = any(edge.kind == "all" for edge in new.edges if edge.source in differs)
    return [(0, new.num_tasks)] if sees_all else []


def _without_results(
    before: _Before,
    plan: Plan,
    outcomes: Mapping[str, RunMap],
    reasons: Mapping[str, tuple[str, ...]],
    has_files: HasFiles,
) -> dict[str, list[Range]]:
    """Tasks whose results a data set collects anew, and that have left no files to collect them from."""
    instances = {instance.id: instance for instance in plan.instances}
    found: dict[str, list[Range]] = {}
    for target in plan.instances:
        is_other = target.id not in before.instances or bool(reasons.get(target.id))
        if target.kind is not StepKind.AGGREGATE or target.aggregate is None or not is_other:
            continue
        for source in (instances[id] for id in target.aggregate.sources):
            ended = outcomes[source.id].ranges([Outcome.OK])
            if source.kind is not StepKind.CMD:
                ended += _below(source.num_tasks, before.badly_collected.get(source.id, ()))
            if source.kind is StepKind.CMD and not may_lack(source, has_files):
                continue
            if source.kind is StepKind.CMD:
                ended = [(t, t + 1) for lo, hi in ended for t in range(lo, hi) if not has_files(source, t)]
            found[source.id] = merged([*found.get(source.id, ()), *ended])
    return {id: ranges for id, ranges in found.items() if ranges}


def _to_collect(
    before: _Before, plan: Plan, outcomes: Mapping[str, RunMap], has_files: HasFiles
) -> dict[str, list[Range]]:
    """Tasks of scripts whose files hold what a data set collects in another way now.

    Whether all of that is there, and as the spec says, is a part of how a task ends, so it is decided anew. What only
    stores rows in another way does not count.
    """
    ours, theirs = _collections(before.plan), _collections(plan)
    found: dict[str, list[Range]] = {}
    for instance in plan.instances:
        was = ours.get(instance.id, {})
        now = theirs.get(instance.id, {})
        if instance.kind is not StepKind.CMD or was == now:
            continue
        ranges = list(before.badly_collected.get(instance.id, ()))
        if any(one not in was.get(target, ()) for target, fields in now.items() for one in fields):
            ranges += outcomes[instance.id].ranges([Outcome.OK])
        if may_lack(instance, has_files):
            ranges = [(t, t + 1) for lo, hi in ranges for t in range(lo, hi) if has_files(instance, t)]
        found[instance.id] = merged(_below(instance.num_tasks, ranges))
    return {id: ranges for id, ranges in found.items() if ranges}


def _below(end: int, ranges: Iterable[Range]) -> Iterator[Range]:
    return ((lo, min(hi, end)) for lo, hi in ranges if lo < end)


def _collections(plan: Plan) -> dict[str, dict[str, Any]]:
    """By step instance, and by aggregate: how it takes values from the outputs of the step's tasks."""
    found: dict[str, dict[str, Any]] = {}
    for target in plan.instances:
        if target.kind is StepKind.AGGREGATE and target.aggregate is not None:
            fields = [
                {key: value for key, value in asdict(one).items() if key not in _OF_STORAGE}
                for one in target.aggregate.fields
            ]
            for source in target.aggregate.sources:
                found.setdefault(source, {})[target.id] = fields
    return found


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
        found = list(_differences(ours[instance.id], theirs[instance.id]))
        if instance.aggregate is None:
            found += environment
        yield instance.id, (*found, *changed_code.get(instance.step, ()))


def definitions(plan: Plan) -> dict[str, dict[str, Any]]:
    """What shapes the results of each step instance, wherever the spec and the workspace lie."""
    place = f"{_WORKSPACE}/extensions/{plan.extension}" if plan.extension else _WORKSPACE
    placed = relocate(plan, place)
    return {one.id: anywhere(_parts(one), plan.spec_root) for one in placed.instances}


def _parts(instance: StepInstance) -> dict[str, Any]:
    values = asdict(instance)
    is_manifest = instance.kind is StepKind.MANIFEST
    free = _FREE | {"edges"} if instance.aggregate is not None else _FREE
    parts = {key: value for key, value in values.items() if key not in free}
    if values["aggregate"]:
        hidden = _FREE_OF_AGGREGATES if is_manifest else _FREE_OF_AGGREGATES | OF_THE_MANIFEST
        parts |= {key: value for key, value in values["aggregate"].items() if key not in hidden}
        if is_manifest:
            parts["splits"] = dict(parts["splits"])
        for one in values["aggregate"]["fields"]:
            parts[f"field {one['name']}"] = "there"
            parts |= {f"{key} of field {one['name']}": value for key, value in one.items()}
    return parts


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for part in dict.fromkeys((*old, *new)):
        if part not in old or part not in new:
            if part.startswith("field "):  # what else is said of the field does not matter then
                yield f"{part} is {'new' if part in new else 'gone'}"
        elif part == "edges" and old[part] != new[part]:
            yield f"depends: {changed(*_depends(old[part], new[part]))}"
        elif old[part] != new[part]:
            key, _, name = part.partition(" of field ")
            path = f"fields.{name}.{key}" if name else _KEYS.get(part, part)
            yield from changes(path, old[part], new[part])


def _depends(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """What two instances wait for: as the spec says it, else the step instances."""
    words = [list(dict.fromkeys(edge["group"] for edge in edges)) for edges in (old, new)]
    if words[0] == words[1]:
        words = [[edge["source"] for edge in edges] for edges in (old, new)]
    return words[0], words[1]
