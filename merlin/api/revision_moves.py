"""Which files of a study a new revision puts aside: tasks that run again find their place free; nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from merlin.base.ranges import Range, merged
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.revise import Change, InstanceChange
from merlin.shards.format.manifest_file import NAME, VIRTUAL_NAME
from merlin.workspace.directory import Workspace
from merlin.workspace.revisions import BEFORE, Move, aside_dir

_SHARD = re.compile(r"shard_(\d+)\..*")  # a shard or its description

Member = tuple[Workspace, Plan, Change]


def moves_of(members: Sequence[Member], number: int, *, gone: Sequence[str], grows: bool) -> Iterator[Move]:
    """The moves, in the order in which they are made.

    `gone` are extensions that leave the study. `grows` says that an extension will add to the data sets.
    If all tasks of a step instance run again, its directory is put aside as a whole, else the directories of those
    tasks. A data set is always put aside as a whole, so that it stays complete; what the new one keeps of it are links
    to the same files.
    """
    aside = aside_dir(number, BEFORE)
    data_sets: dict[str, bool] = {}  # of the study, by the aggregate's id: whether it is made from nothing
    for name in gone:
        yield Move(name, f"{aside}/{name}")
    if grows or gone:
        planned = members[0][0].plan.instances
        data_sets |= {each.id: False for each in planned if each.kind is StepKind.AGGREGATE}
    for workspace, plan, change in members:
        old = {instance.id: instance for instance in workspace.plan.instances}
        new = {instance.id: instance for instance in plan.instances}
        for each in change.instances:
            instance = old.get(each.id)
            if instance is None:
                continue
            if instance.kind is StepKind.CMD and instance.per_sample and not (each.is_gone or each.why):
                samples_gone = (new[each.id].num_tasks, instance.num_tasks)
                yield from _of_directories(workspace, instance, [samples_gone], aside)
            is_touched = each.is_gone or each.why or each.again or each.begun
            if not (is_touched or _makes_data_set(members[0][0], instance, each)):
                continue
            if instance.kind is StepKind.MANIFEST:
                data_sets.setdefault(instance.finishes, False)
            elif instance.kind is StepKind.AGGREGATE:
                is_other = each.is_gone or bool(each.why)
                data_sets[instance.id] = data_sets.get(instance.id, False) or is_other
                if workspace.member and is_other:  # its bundles
                    yield _move(workspace, each.id, aside)
            else:
                yield from _of_tasks(workspace, instance, new.get(each.id), each, aside)
    study = members[0][0]
    for id, is_other in data_sets.items():
        yield _move(study, id, aside)
        if not is_other:
            yield from _links(study, id, aside, _num_shards(id, [plan for _, plan, _ in members]))


def _makes_data_set(study: Workspace, instance: StepInstance, each: InstanceChange) -> bool:
    """Whether the next revision makes a data set that is not there yet."""
    is_open = instance.kind is StepKind.AGGREGATE and each.num_open > 0
    return is_open and not (study.path / each.id).exists()


def _move(workspace: Workspace, name: str, aside: str) -> Move:
    place = workspace.below_root(name)
    return Move(place, f"{aside}/{place}")


def _of_tasks(
    workspace: Workspace, old: StepInstance, new: StepInstance | None, each: InstanceChange, aside: str
) -> Iterator[Move]:
    tasks = merged([*each.again, *each.begun])
    is_whole = new is None or each.why or tasks == [(0, new.num_tasks)]
    if is_whole and (new is None or new.num_tasks >= old.num_tasks or each.why):
        yield _move(workspace, old.id, aside)
    elif old.kind is StepKind.CMD:
        yield from _of_directories(workspace, old, tasks, aside)


def _of_directories(
    workspace: Workspace, instance: StepInstance, tasks: Iterable[Range], aside: str
) -> Iterator[Move]:
    """The moves of tasks' directories; that of the step instance is enough if it is not there, because none has run."""
    numbers = [task for lo, hi in tasks for task in range(lo, hi)]
    if numbers and not (workspace.path / instance.id).exists():
        yield _move(workspace, instance.id, aside)
        return
    for task in numbers:
        below = workspace.sample_path(instance, task)
        yield _move(workspace, f"{instance.id}/{below}" if below else instance.id, aside)


def _links(study: Workspace, id: str, aside: str, num_shards: int) -> Iterator[Move]:
    """Links in the place of the data set: to its old shards, and to bundles that no shard contains yet."""
    root: Path = study.path / id
    for path in sorted(root.rglob("*")):
        shard = _SHARD.fullmatch(path.name)
        is_gone = path.parent == root and shard is not None and int(shard[1]) >= num_shards
        if path.is_file() and path.name not in (NAME, VIRTUAL_NAME) and not is_gone:
            name = str(path.relative_to(study.path))
            yield Move(f"{aside}/{name}", name, is_link=True)


def _num_shards(id: str, plans: Sequence[Plan]) -> int:
    """The number of shards of a data set, with those that extensions have added."""
    return sum(instance.num_tasks for plan in plans for instance in plan.instances if instance.id == id)
