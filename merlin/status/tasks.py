"""Rows of single tasks, with upstream's words and filters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import short_name
from merlin.errors import UsageError
from merlin.ledger.columns import TaskColumns, task_columns
from merlin.ledger.format import Writer
from merlin.ledger.replay import Replay, replay
from merlin.plan.plan import Scalar, StepInstance
from merlin.plan.tasks import NO_OUTCOME, Outcome, ReturnCode
from merlin.workspace.directory import Workspace, shown_together

TASK_STATUSES = ("INITIALIZED", "RUNNING", "FINISHED", "FAILED", "CANCELLED", "DRY_RUN", "UNKNOWN")
RETURN_CODES = (
    "SUCCESS", "SOFT_FAIL", "HARD_FAIL", "STOP_WORKERS", "RESTART", "RETRY", "DRY_SUCCESS", "UNRECOGNIZED",
)  # fmt: skip

# by outcome and exit code; None: any other
_RETURN_CODES: dict[int, dict[int | None, str]] = {
    Outcome.OK: {
        ReturnCode.DRY_SUCCESS: "DRY_SUCCESS",
        ReturnCode.STOP_WORKERS: "STOP_WORKERS",
        None: "SUCCESS",
    },
    Outcome.FAILED: {
        ReturnCode.RESTART: "RESTART",
        ReturnCode.HARD_FAIL: "HARD_FAIL",
        ReturnCode.RETRY: "RETRY",
        None: "SOFT_FAIL",
    },
}

WINDOW = 200_000  # tasks looked at together
_RUNNING = 253  # in the arrays of this file, in place of an outcome


class TaskFilters(Struct, frozen=True, kw_only=True):
    """Which tasks to show: all conditions must hold, each for one of its words; an empty one always holds."""

    task_status: tuple[str, ...] = ()  # of TASK_STATUSES, any case
    return_code: tuple[str, ...] = ()  # of RETURN_CODES, any case
    steps: tuple[str, ...] = ()  # "all" means every step
    task_queues: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    max_tasks: int | None = None


class TaskRow(Struct, frozen=True, kw_only=True):
    """One task.

    status: FINISHED (ok), DRY_RUN (ok by exit code 103), FAILED, CANCELLED (skipped), INITIALIZED (missing).
    return_code is empty for tasks that have not ended.
    """

    step: str
    instance: str
    task: int
    sample_id: int | None
    workspace: str  # the task's directory, relative to the study's workspace, also in an extension
    status: str
    return_code: str
    exit_code: int
    seconds: float
    started: float | None  # epoch seconds
    restarts: int  # application retries
    attempt: int
    parameters: dict[str, Scalar]
    task_queue: str
    worker: str
    host: str


class RunningTasks(Struct, frozen=True, kw_only=True):
    """Tasks [lo, hi) of a step instance that a worker has, one after another or all at once."""

    study_id: str
    instance: str
    lo: int
    hi: int
    worker: str
    host: str
    since: float  # epoch seconds


def task_rows(
    workspace: Workspace, filters: TaskFilters | None = None, running: Collection[RunningTasks] = ()
) -> Iterator[TaskRow]:
    """The tasks that pass the filters, step by step in the plan's order; then those of the study's extensions.

    Those of `running` that have not ended have the status RUNNING.

    Raises UsageError, at once, for words that the filters do not know.
    """
    studies = shown_together(workspace)
    filters = _checked([i for study in studies for i in study.plan.instances], filters or TaskFilters())
    rows = (_rows(study, replay(study.ledger_dir, study.plan), filters, running) for study in studies)
    return islice(chain.from_iterable(rows), filters.max_tasks)


def _checked(instances: Sequence[StepInstance], filters: TaskFilters) -> TaskFilters:
    """The filters in the words of this file. Raises UsageError for words that there are not."""
    checked = replace(
        filters,
        task_status=tuple(word.upper() for word in filters.task_status),
        return_code=tuple(word.upper().removeprefix("MERLIN_") for word in filters.return_code),
        steps=() if "all" in filters.steps else filters.steps,
    )
    for what, words, known in (
        ("step", checked.steps, sorted({i.step for i in instances})),
        ("task queue", checked.task_queues, sorted({i.queue for i in instances})),
        ("task status", checked.task_status, TASK_STATUSES),
        ("return code", checked.return_code, RETURN_CODES),
    ):
        for word in words:
            if word not in known:
                raise UsageError(f"unknown {what} {word!r}; there are: {', '.join(known)}")
    if checked.max_tasks is not None and checked.max_tasks < 1:
        raise UsageError(f"--max-tasks must be at least 1, not {checked.max_tasks}")
    return checked


def _rows(
    workspace: Workspace, state: Replay, filters: TaskFilters, running: Collection[RunningTasks]
) -> Iterator[TaskRow]:
    for instance in workspace.plan.instances:
        if filters.steps and instance.step not in filters.steps:
            continue
        if filters.task_queues and instance.queue not in filters.task_queues:
            continue
        for lo in range(0, instance.num_tasks, WINDOW):
            columns = task_columns(state, instance.id, instance.num_tasks, lo, lo + WINDOW)
            for chunk in running:
                if (chunk.study_id, chunk.instance) == (workspace.plan.study_id, instance.id):
                    _mark(columns, chunk)
            for i in np.flatnonzero(_passing(columns, filters)).tolist():
                yield task_row(workspace, instance, columns, i)


def _mark(columns: TaskColumns, chunk: RunningTasks) -> None:
    """Mark the tasks of a chunk that have not ended as running on the worker that has the chunk."""
    here = slice(max(0, chunk.lo - columns.lo), max(0, chunk.hi - columns.lo))
    outcomes = columns.outcomes[here]
    where = (outcomes == NO_OUTCOME) | (outcomes == Outcome.INTERRUPTED)
    outcomes[where] = _RUNNING
    columns.started[here][where] = chunk.since
    columns.writers[here][where] = len(columns.writer_table)
    columns.writer_table.append(
        Writer(worker=chunk.worker, host=chunk.host, pid=0, session="", started=chunk.since)
    )


def _passing(columns: TaskColumns, filters: TaskFilters) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which tasks pass, decided once per distinct (outcome, exit code, writer)."""
    ends = columns.outcomes.astype(np.int64) << 16 | columns.exit_codes.astype(np.uint16)
    _, first, where = np.unique(ends, return_index=True, return_inverse=True)
    kinds = zip(columns.outcomes[first].tolist(), columns.exit_codes[first].tolist(), strict=True)
    passes = np.array([_passes(*kind, filters) for kind in kinds], np.bool_)[where]
    if filters.workers:
        wanted = [i for i, w in enumerate(columns.writer_table) if _is_named(w.worker, filters.workers)]
        passes &= np.isin(columns.writers, wanted)
    return passes


def _is_named(worker: str, names: Iterable[str]) -> bool:
    """True if `names` has a process ("simw.node7.1") or its worker, the worker with its host or as in the spec.

    A name may also be a regular expression for the whole name of the process, as in upstream.
    """
    name = short_name(worker)
    return any(
        name == wanted or re.match(rf"{re.escape(wanted)}(-\d+)?\.", name) or _matches(wanted, name)
        for wanted in (short_name(n) for n in names)
    )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def _passes(outcome: int, code: int, filters: TaskFilters) -> bool:
    if filters.task_status and task_status(outcome, code) not in filters.task_status:
        return False
    return not filters.return_code or return_code(outcome, code) in filters.return_code


def task_status(outcome: int, exit_code: int) -> str:
    """Upstream's word for the state of a task."""
    if outcome == Outcome.OK:
        return "DRY_RUN" if exit_code == ReturnCode.DRY_SUCCESS else "FINISHED"
    if outcome == Outcome.FAILED:
        return "FAILED"
    if outcome == _RUNNING:
        return "RUNNING"
    return "CANCELLED" if outcome == Outcome.SKIPPED else "INITIALIZED"


def return_code(outcome: int, exit_code: int) -> str:
    """Upstream's word for how a task ended; empty if it has not run to an end."""
    names = _RETURN_CODES.get(outcome)
    return "" if names is None else names.get(exit_code, names[None])


def task_row(workspace: Workspace, instance: StepInstance, columns: TaskColumns, i: int) -> TaskRow:
    """The row of task `columns.lo + i`."""
    task = columns.lo + i
    outcome, code = int(columns.outcomes[i]), int(columns.exit_codes[i])
    has_run = outcome in (Outcome.OK, Outcome.FAILED, Outcome.INTERRUPTED, _RUNNING)
    writer = columns.writer_table[columns.writers[i]] if has_run and outcome != NO_OUTCOME else None
    return TaskRow(
        step=instance.step,
        instance=instance.id,
        task=task,
        sample_id=workspace.sample_id(instance, task),
        workspace="/".join(
            filter(None, (workspace.member, instance.id, workspace.sample_path(instance, task)))
        ),
        status=task_status(outcome, code),
        return_code=return_code(outcome, code),
        exit_code=code,
        seconds=float(columns.seconds[i]),
        started=float(columns.started[i]) if has_run else None,
        restarts=int(columns.tries[i]),
        attempt=int(columns.attempts[i]),
        parameters=instance.params,
        task_queue=instance.queue,
        worker=writer.worker if writer else "",
        host=writer.host if writer else "",
    )
