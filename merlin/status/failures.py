"""Failures explained: grouped by step, kind of end, and the last line of stderr that says something."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from merlin.base.files import end_of
from merlin.base.ranges import Range, distinct, merged
from merlin.errors import SamplesError, WorkspaceError, command_line
from merlin.ledger.encode import FailureTable, failure_table
from merlin.ledger.replay import LedgerEntry, Ranges, Replay, replay
from merlin.ledger.signature import normalise
from merlin.plan.layout import LOGS
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import ReturnCode
from merlin.status.failed_inputs import StepInputs
from merlin.status.input_ranges import InputRange
from merlin.workspace.directory import Workspace

NUM_EXAMPLES = 3
MAX_TESTED = 10  # so many groups, the largest ones, have their inputs tested
TAIL_LINES = 20
_LOG_BYTES = 8192


class Example(Struct, frozen=True, kw_only=True):
    """One failed task to look at."""

    instance: str
    task: int
    sample_id: int | None
    directory: str  # where its files are, or the logs of its step; "" if there are none
    inputs: Mapping[str, Any] = field(default_factory=dict)  # its parameters and the values of its sample


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Tasks of one step that failed in the same way."""

    id: str  # a short name, which the same group has tomorrow: `merlin failures --group`
    step: str
    # "exit code 3", "signal 9 (SIGKILL)", "timeout", "bad output", "crash", "cancelled", "exception"
    exit_class: str
    # the last line of stderr that says something, or the cause, without numbers, paths, identifiers and times
    signature: str
    cause: str  # of one of them, as recorded
    count: int
    first: float  # epoch seconds: when the first and the last of them were recorded
    last: float
    hosts: tuple[str, ...]
    workers: tuple[str, ...]
    ranges: tuple[InputRange, ...]  # values of inputs with which more tasks fail so than chance explains
    examples: tuple[Example, ...]
    log_tail: str  # the end of the stderr of one of them
    rerun: str  # the command line that runs these tasks again
    extension: str = ""  # "extensions/001": of the study that they are in


class _Gathered(Struct):
    cause: str
    count: int = 0
    first: float = float("inf")
    last: float = 0.0
    hosts: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)
    tasks: dict[str, list[Tasks]] = field(default_factory=dict)  # by step instance
    tail: str = ""

    def examples(self) -> list[tuple[str, int]]:
        """The first tasks, each with its step instance."""
        every = ((id, task) for id, parts in self.tasks.items() for part in parts for task in part.tolist())
        return list(islice(every, NUM_EXAMPLES))


Tasks = np.ndarray[tuple[int], np.dtype[np.int64]]
Key = tuple[str, str, str]  # step, exit class, signature


def group_failures(
    workspace: Workspace, *, steps: Collection[str] = (), with_ranges: bool = True
) -> list[FailureGroup]:
    """All failures that still count (of `steps` or step instances, if given), the largest group first.

    Without `with_ranges`, samples are read for the examples alone.
    """
    state = replay(workspace.ledger_dir, workspace.plan)
    instances = _instances(workspace, steps)
    inputs: dict[str, StepInputs] = {}
    groups: list[FailureGroup] = []
    found = sorted(_gather(state, instances).items(), key=lambda item: (-item[1].count, item[0]))
    for key, gathered in found:
        ranges: tuple[InputRange, ...] = ()
        if with_ranges and len(groups) < MAX_TESTED:
            of_step = [i for i in instances.values() if i.step == key[0]]
            reader = inputs.setdefault(key[0], StepInputs(workspace, state, of_step))
            ranges = tuple(reader.ranges({id: np.concatenate(parts) for id, parts in gathered.tasks.items()}))
        groups.append(_finish(workspace, instances, key, gathered, ranges))
    return groups


def failed_tasks(
    workspace: Workspace, *, groups: Collection[str] = (), steps: Collection[str] = ()
) -> dict[str, list[Range]]:
    """The tasks of the groups with these ids (of all, without), and of these steps, by step instance."""
    state = replay(workspace.ledger_dir, workspace.plan)
    found: dict[str, list[Range]] = {}
    for key, gathered in _gather(state, _instances(workspace, steps)).items():
        if not groups or group_id(key, workspace.member) in groups:
            for id, parts in gathered.tasks.items():
                found.setdefault(id, []).extend((task, task + 1) for task in np.concatenate(parts).tolist())
    return {id: merged(ranges) for id, ranges in found.items()}


def group_id(key: Key, member: str) -> str:
    """The short name of a group; `member`: "extensions/001", or "" for the study itself."""
    return hashlib.sha256("\0".join((member, *key)).encode("utf-8", "surrogatepass")).hexdigest()[:6]


def _instances(workspace: Workspace, steps: Collection[str]) -> dict[str, StepInstance]:
    return {i.id: i for i in workspace.plan.instances if not steps or i.step in steps or i.id in steps}


def _gather(state: Replay, instances: dict[str, StepInstance]) -> dict[Key, _Gathered]:
    groups: dict[Key, _Gathered] = {}
    found = list(state.failing(instances))
    payloads = state.payloads([entry for entry, _ in found])
    for (entry, only), (_, payload) in zip(found, payloads, strict=True):
        table = failure_table(entry.header, payload)
        step = instances[entry.header.instance].step
        _add(groups, step, entry, table, _which(table, only))
    return groups


def _which(table: FailureTable, only: Ranges | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The failures of the table that still count."""
    if only is None:
        return np.ones(len(table.tasks), np.bool_)
    keep = np.zeros(len(table.tasks), np.bool_)
    for lo, hi in only:
        first, last = np.searchsorted(table.tasks, [lo, hi])
        keep[first:last] = True
    return keep


def _add(
    groups: dict[Key, _Gathered],
    step: str,
    entry: LedgerEntry,
    table: FailureTable,
    keep: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    tasks, codes = table.tasks[keep], table.exit_codes[keep]
    kinds = table.cause_indices[keep].astype(np.int64) << 16 | codes.astype(np.uint16)
    for kind in distinct(kinds).tolist():
        cause, signature = table.causes[kind >> 16]
        these = tasks[kinds == kind]
        code = int(codes[kinds == kind][0])
        key = (step, exit_class(cause, code), signature or normalise(cause))
        group = groups.setdefault(key, _Gathered(cause))
        group.count += len(these)
        group.first = min(group.first, entry.header.ended)
        group.last = max(group.last, entry.header.ended)
        group.hosts.add(entry.writer.host)
        group.workers.add(entry.writer.worker)
        group.tasks.setdefault(entry.header.instance, []).append(these)
        if not group.tail and table.tails:
            group.tail = next((text for task, text in table.tails.items() if task in these), "")


# how Merlin's own causes begin; what tasks say may hold such words, too
_OWN_KINDS = {
    "timeout": re.compile(r"timeout after |the walltime( of .*)? of its job was over "),
    "crash": re.compile(r"killed its worker |its worker was lost "),
    "cancelled": re.compile(r"cancelled: merlin cancel"),
    "bad output": re.compile(r"(field|output|graph|valid) '"),
}


def exit_class(cause: str, exit_code: int) -> str:
    """The kind of end that follows from a cause and an exit code."""
    for kind, beginning in _OWN_KINDS.items():
        if beginning.match(cause):
            return kind
    if exit_code < 0:
        try:
            return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
        except ValueError:
            return f"signal {-exit_code}"
    # 1 is also recorded for errors of functions, and of Merlin, which are no exit codes
    if exit_code > 1 or (exit_code == 1 and cause in ("", "exit code 1")):
        return f"exit code {exit_code}" + (
            f" ({ReturnCode(exit_code).name})" if exit_code in set(ReturnCode) else ""
        )
    return "exception"


def _finish(
    workspace: Workspace,
    instances: dict[str, StepInstance],
    key: Key,
    gathered: _Gathered,
    ranges: tuple[InputRange, ...],
) -> FailureGroup:
    step, kind, signature = key
    examples = tuple(_example(workspace, instances[id], task) for id, task in gathered.examples())
    name = group_id(key, workspace.member)
    return FailureGroup(
        id=name,
        step=step,
        exit_class=kind,
        signature=signature,
        cause=gathered.cause,
        count=gathered.count,
        first=gathered.first,
        last=gathered.last,
        hosts=tuple(sorted(gathered.hosts)),
        workers=tuple(sorted(gathered.workers)),
        ranges=ranges,
        examples=examples,
        log_tail=_last_lines(gathered.tail) or _tail_of_files(instances, examples),
        rerun=command_line("failures", workspace.path, "--group", name, "--rerun"),
        extension=workspace.member,
    )


def _example(workspace: Workspace, instance: StepInstance, task: int) -> Example:
    # a function has no directories of its samples
    places = (workspace.task_dir(instance, task), workspace.instance_dir(instance) / LOGS)
    return Example(
        instance=instance.id,
        task=task,
        sample_id=workspace.sample_id(instance, task),
        directory=next((str(place) for place in places if place.is_dir()), ""),
        inputs=_inputs(workspace, instance, task),
    )


def _inputs(workspace: Workspace, instance: StepInstance, task: int) -> dict[str, Any]:
    """The inputs of the task; without the sample's values if the samples file is lost by now."""
    inputs: dict[str, Any] = dict(instance.params)
    if instance.per_sample:
        with suppress(SamplesError, WorkspaceError, OSError):
            row = workspace.samples().picked(np.array([task]))
            inputs |= {label: values.tolist()[0] for label, values in row.items()}
    return inputs


def _tail_of_files(instances: dict[str, StepInstance], examples: Iterable[Example]) -> str:
    """The end of the first example's .err, or of its .out if that is empty; of its `restart` script, if that ran."""
    for example in examples:
        stem = instances[example.instance].script_name
        if (Path(example.directory) / f"{stem}.restart.out").exists():
            stem = f"{stem}.restart"
        for suffix in (".err", ".out"):
            text = _last_lines(end_of(Path(example.directory) / f"{stem}{suffix}", _LOG_BYTES))
            if text:
                return text
    return ""


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])
