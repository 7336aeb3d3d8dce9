"""Finds the training runs that steps of a study have left in its workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct

from merlin.plan.plan import StepInstance, StepKind
from merlin.shards.format.regular_file import read_json
from merlin.workspace.directory import Workspace

FACTS, FORMAT = "run.json", "merlin-run"  # as `train.run_directory` writes them; it is above this layer
MAX_RUNS = 50
MAX_INSTANCES = 200  # of steps
MAX_TASKS = 20  # of a step that trains once for each sample: the first ones are looked at
MAX_ENTRIES = 2000  # of directories, for one step instance
MAX_DEPTH = 2  # below a task's directory


class RunLine(Struct, frozen=True, kw_only=True):
    """A training run in the study's workspace."""

    key: str  # of the run, in addresses; without slashes
    path: str
    name: str  # relative to the workspace


def training_runs(workspaces: Iterable[Workspace]) -> list[RunLine]:
    """The runs in the directories of steps, in the order of the plan; of very many the first."""
    found = (line for workspace in workspaces for line in _runs_of(workspace))
    return list(islice(found, MAX_RUNS))


def _runs_of(workspace: Workspace) -> Iterator[RunLine]:
    shell = [instance for instance in workspace.plan.instances if instance.kind is StepKind.CMD]
    # where very many were to be searched, those are that look like training
    likely = [instance for instance in shell if len(shell) <= MAX_INSTANCES or "train" in instance.command]
    for instance in likely[:MAX_INSTANCES]:
        for path in _runs_of_step(workspace, instance):
            name = str(path.relative_to(workspace.root))
            yield RunLine(key=key_of(name), path=str(path), name=name)


def key_of(name: str) -> str:
    """A path below the workspace as one part of an address."""
    return name.replace("/", ":")


def _runs_of_step(workspace: Workspace, instance: StepInstance) -> Iterator[Path]:
    if not instance.per_sample:
        yield from _search(workspace.instance_dir(instance))
    elif "train" in instance.command:
        for task in range(min(instance.num_tasks, MAX_TASKS)):
            yield from _search(workspace.task_dir(instance, task))


def _search(top: Path) -> Iterator[Path]:
    """Runs in `top` or a little below it; a run is not searched for others. Links are not followed."""
    folders, num_left = [(top, 0)], MAX_ENTRIES
    while folders:
        folder, depth = folders.pop(0)
        if _is_run(folder):
            yield folder
            continue
        with suppress(OSError), os.scandir(folder) as entries:
            listed = list(islice(entries, num_left))
            num_left -= len(listed)
            below = sorted(entry.name for entry in listed if entry.is_dir(follow_symlinks=False))
            folders += [(folder / name, depth + 1) for name in below if depth < MAX_DEPTH]


def _is_run(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        facts = read_json(folder / FACTS)
        return isinstance(facts, dict) and facts.get("format") == FORMAT
    return False
