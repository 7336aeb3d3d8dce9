"""What tasks have printed: the files of scripts, and the logs of the workers that called functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from merlin.errors import UsageError
from merlin.execution.conductor import CONTROLLER
from merlin.ledger.columns import task_columns
from merlin.ledger.replay import Replay, replay
from merlin.plan.layout import LOGS
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.workspace.directory import Workspace, shown_together

OUTCOMES: dict[int, str] = {
    Outcome.OK: "ok",
    Outcome.FAILED: "failed",
    Outcome.SOFT_FAILED: "failed",
    Outcome.SKIPPED: "skipped",
}  # any other: "missing"


class LogFile(Struct, frozen=True, kw_only=True):
    """A file that may not be there yet."""

    path: Path
    is_shared: bool = False  # the log of a worker, which also has what it printed for other samples


class TaskLog(Struct, frozen=True, kw_only=True):
    """What one task has left to read."""

    step: str
    instance: str
    task: int
    sample_id: int | None
    outcome: str  # ok, failed, skipped or missing
    worker: str  # the worker that ran it last, or ""
    host: str
    cause: str  # of a failure
    tail: str  # the end of its stderr or traceback, where the ledger has kept it
    files: tuple[LogFile, ...]
    extension: str = ""  # "extensions/001": of the study that it is in


class TaskLogs:
    """The logs of a sample's tasks, or of steps that run once, followed over time."""

    def __init__(self, workspace: Workspace, sample: int | None, steps: Collection[str]) -> None:
        """Raises UsageError if the study has no such sample, or if a step runs per sample and `sample` is None."""
        studies = shown_together(workspace)
        if sample is None:
            self._tasks = _tasks_of_steps(studies, steps)
        else:
            self._tasks = _tasks_of_sample(studies, sample, steps)
        members = {study.member: study for study, _, _ in self._tasks}
        self._states = {name: replay(study.ledger_dir, study.plan) for name, study in members.items()}

    def look(self) -> list[TaskLog]:
        """The logs now, in the order of the plan."""
        for state in self._states.values():
            state.update()
        return [
            _log_of(study, self._states[study.member], instance, task)
            for study, instance, task in self._tasks
        ]


Task = tuple[Workspace, StepInstance, int]


def _tasks_of_sample(studies: Sequence[Workspace], sample: int, steps: Collection[str]) -> list[Task]:
    having = [study for study in studies if study.plan.samples is not None]
    for study in having:
        task = sample - study.first_sample
        if 0 <= task < study.plan.num_samples:
            return [(study, i, task) for i in _of_steps(study, steps) if i.per_sample]
    if not having:
        raise UsageError(f"{studies[0].path} has no samples; give --step NAME alone")
    first, last = having[0].first_sample, having[-1].first_sample + having[-1].plan.num_samples - 1
    raise UsageError(f"there is no sample {sample}; {studies[0].path} has {first} to {last}")


def _tasks_of_steps(studies: Sequence[Workspace], steps: Collection[str]) -> list[Task]:
    chosen = [(study, instance) for study in studies for instance in _of_steps(study, steps)]
    for _, instance in chosen:
        if instance.per_sample:
            raise UsageError(f"step {instance.step!r} runs for each sample; say of which: a sample's id")
    return [(study, instance, task) for study, instance in chosen for task in range(instance.num_tasks)]


def logs_of_failures(workspace: Workspace, steps: Collection[str] = ()) -> Iterator[TaskLog]:
    """The logs of all failed tasks."""
    for study in shown_together(workspace):
        yield from FailureLogs(study, steps).new()


class FailureLogs:
    """The failed tasks of one study, each once."""

    def __init__(self, study: Workspace, steps: Collection[str]) -> None:
        self._study, self._ids = study, [i.id for i in _of_steps(study, steps)]
        self._state = replay(study.ledger_dir, study.plan)
        self._known: set[tuple[str, int, float]] = set()

    def new(self) -> Iterator[TaskLog]:
        """The logs of tasks that have failed since the last call."""
        if not self._state.update() and self._known:
            return
        for found in self._state.failures(self._ids):
            task = found.failure.task
            if (found.instance, task, found.ended) in self._known:
                continue
            self._known.add((found.instance, task, found.ended))
            instance = self._study.instance(found.instance)
            worker, host = _who_ran(found.worker, found.host)
            yield TaskLog(
                step=instance.step,
                instance=instance.id,
                task=task,
                sample_id=self._study.sample_id(instance, task),
                outcome="failed",
                worker=worker,
                host=host,
                cause=found.failure.cause,
                tail=found.failure.tail,
                files=files_of(self._study, instance, task, worker),
                extension=self._study.member,
            )


def outcome_of(state: Replay, instance: str, task: int) -> str:
    """ok, failed, skipped or missing."""
    return OUTCOMES.get(state.outcomes_of(instance)[task], "missing")


def _of_steps(study: Workspace, steps: Collection[str]) -> list[StepInstance]:
    return [i for i in study.plan.instances if not steps or i.step in steps]


def _log_of(study: Workspace, state: Replay, instance: StepInstance, task: int) -> TaskLog:
    columns = task_columns(state, instance.id, instance.num_tasks, task, task + 1)
    writer = columns.writer_table[columns.writers[0]] if columns.writers[0] >= 0 else None
    outcome = outcome_of(state, instance.id, task)
    failure = None
    if outcome == "failed":
        every = (found.failure for found in state.failures([instance.id]))
        failure = next((each for each in every if each.task == task), None)
    worker, host = _who_ran(writer.worker, writer.host) if writer else ("", "")
    ran = outcome in ("ok", "failed")
    return TaskLog(
        step=instance.step,
        instance=instance.id,
        task=task,
        sample_id=study.sample_id(instance, task),
        outcome=outcome,
        worker=worker if ran else "",
        host=host if ran else "",
        cause=failure.cause if failure else "",
        tail=failure.tail if failure else "",
        files=files_of(study, instance, task, worker),
        extension=study.member,
    )


def _who_ran(worker: str, host: str) -> tuple[str, str]:
    """The worker and its host, unless a run has decided an outcome that no worker reports."""
    return ("", "") if worker == CONTROLLER else (worker, host)


def files_of(study: Workspace, instance: StepInstance, task: int, worker: str) -> tuple[LogFile, ...]:
    """The files that a task prints into; those of a script also before they exist."""
    if instance.kind is StepKind.FUNCTION:
        folder = study.instance_dir(instance) / LOGS
        return (LogFile(path=folder / f"{worker}.out", is_shared=True),) if worker else ()
    if instance.kind is not StepKind.CMD:
        return ()
    directory = study.task_dir(instance, task)
    stems = [instance.script_name, *([f"{instance.script_name}.restart"] if instance.restart else [])]
    return tuple(LogFile(path=directory / f"{stem}{suffix}") for stem in stems for suffix in (".out", ".err"))
