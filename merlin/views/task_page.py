"""One task: what it was given, how it ended, and what it left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.errors import SamplesError, WorkspaceError
from merlin.ledger.encode import decode
from merlin.ledger.records import ChunkRecord, RangeRecord
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Outcome
from merlin.views.study_ledgers import Member
from merlin.views.study_page import StudyView
from merlin.views.task_files import TaskFile, folder_of, list_files
from merlin.workspace.directory import Workspace

MAX_RELATED = 100


class RelatedTask(Struct, frozen=True, kw_only=True):
    """The same sample in another step, or in another instance of the same step; or the shard that has its row."""

    step: str
    instance: str
    task: int
    outcome: str


class OneTask(Struct, frozen=True, kw_only=True):
    """A task. `outcome`: ok, failed, skipped or missing."""

    instance: str  # with "extensions/001/" before it, if it is an extension's
    step: str
    task: int
    sample_id: int | None
    outcome: str
    exit_code: int
    seconds: float
    started: float | None  # epoch seconds
    tries: int  # application retries
    attempt: int
    host: str
    worker: str
    cause: str  # of a failure, or of an outcome that was decided for a whole range of tasks
    tail: str  # the end of its stderr or traceback, where the ledger has kept it
    inputs: Mapping[str, Any]  # parameters and the values of the sample
    directory: str  # absolute; "" if it has none
    files: tuple[TaskFile, ...]
    num_files_left_out: int  # because there are too many
    previous: int | None  # task numbers in the same instance
    next: int | None
    related: tuple[RelatedTask, ...]


def task_page(study: StudyView, instance: str, task: int) -> OneTask:
    """All about one task. Raises WorkspaceError if there is none, or the study cannot be read."""
    with study.ledgers() as ledgers:
        member, found = ledgers.find_task(instance, task)
        row = next(member.rows(found, [(task, task + 1)]))
        cause, tail = _cause(member, found, task)
        outcome = member.runs_of(found.id).outcome(task)
        related = tuple(_related(member, found, task))
    folder = folder_of(member, found, task)
    files, num_left_out = list_files(folder)
    values = sample_values(member.workspace, task) if found.per_sample else {}
    return OneTask(
        instance=row.instance,
        step=row.step,
        task=row.task,
        sample_id=row.sample_id,
        outcome=outcome,
        exit_code=row.exit_code,
        seconds=row.seconds,
        started=row.started,
        tries=row.restarts,
        attempt=row.attempt,
        host=row.host,
        worker=row.worker,
        cause=cause,
        tail=tail,
        inputs={**found.params, **values},
        directory=str(folder.path) if folder.path.is_dir() else "",
        files=files,
        num_files_left_out=num_left_out,
        previous=task - 1 if task else None,
        next=task + 1 if task + 1 < found.num_tasks else None,
        related=related,
    )


def _cause(member: Member, instance: StepInstance, task: int) -> tuple[str, str]:
    """Why a task ended as it did, and the end of what it printed: as the last record with this outcome says."""
    outcome = member.tally.outcomes_of(instance.id)[task]
    if outcome == Outcome.SOFT_FAILED:
        outcome = int(Outcome.FAILED)  # as records have it
    entries = sorted(
        member.records_over(instance.id, [(task, task + 1)]), key=member.state.order, reverse=True
    )
    for entry, payload in member.state.payloads(entries):
        record = decode(entry.header, payload, entry.writer)
        if isinstance(record, RangeRecord) and record.outcome == outcome:
            return record.cause, record.tail
        if isinstance(record, ChunkRecord) and record.outcomes[task - record.lo] == outcome:
            failures = (f for f in record.failures if f.task == task and outcome == Outcome.FAILED)
            return next(((f.cause, f.tail) for f in failures), ("", ""))
    return "", ""


def sample_values(study: Workspace, task: int) -> dict[str, Any]:
    """The values of the sample of a task; none if the samples file is lost."""
    with suppress(SamplesError, WorkspaceError, OSError):
        row = study.samples().picked(np.array([task]))
        return {label: values.tolist()[0] for label, values in row.items()}
    return {}


def _related(member: Member, instance: StepInstance, task: int) -> Iterator[RelatedTask]:
    if not instance.per_sample:
        return
    num = 0
    for other in member.plan.instances:
        at = _task_in(other, instance, task)
        if at is not None and other is not instance:
            num += 1
            if num > MAX_RELATED:
                return
            outcome = member.runs_of(other.id).outcome(at)
            yield RelatedTask(step=other.step, instance=member.key(other), task=at, outcome=outcome)


def _task_in(other: StepInstance, instance: StepInstance, task: int) -> int | None:
    """The task of another instance that is about the same sample."""
    if other.per_sample:
        return task
    aggregate = other.aggregate
    if other.id in instance.feeds and aggregate is not None and instance.id in aggregate.sources:
        row = aggregate.sources.index(instance.id) * instance.num_tasks + task
        return row // aggregate.samples_per_shard
    return None
