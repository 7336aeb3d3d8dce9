"""Runs a chunk of a step: writes its outcomes into the ledger and returns a result."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import assert_never

from merlin.errors import ExecutionError, MerlinError, ShardError
from merlin.execution.assignment import Assignment
from merlin.execution.fresh_shell import FreshShell
from merlin.execution.functions import TAIL_CHARS, FunctionRunner
from merlin.execution.journal import ChunkJournal, EndedTask, ProgressCallback
from merlin.execution.scripts import Script, ScriptTemplate
from merlin.execution.shell import (
    Shell,
    ShellExit,
    ShellTask,
    full_disk,
    machine_error,
    read_tail,
    shell_argv,
    task_environment,
)
from merlin.execution.task_files import (
    file_size,
    make_directory,
    mark_finished,
    set_aside,
    unmark_finished,
    write_script,
)
from merlin.execution.verdict import judge
from merlin.execution.waiting import Waiter
from merlin.execution.walltime import WARNINGS, Walltime, Warnings
from merlin.execution.warm_rules import (
    bash_is_new_enough,
    can_run_warm,
    environment_allows,
    has_valid_syntax,
    is_harmless,
    is_plain_bash,
)
from merlin.execution.warm_shell import WarmShell
from merlin.ledger.records import Failure
from merlin.ledger.writer import LedgerWriter
from merlin.plan.durations import added
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Chunk, ChunkResult, Outcome, ReturnCode
from merlin.workspace.directory import Workspace

_FIRST_BATCH, _LARGEST_BATCH = 8, 256
_LONGEST_WARM_VALUE = 10_000  # characters; in quotes they become up to 16 times as many bytes
_BATCH_S = 0.5  # of work, from which the size of the next batch follows
SIGNAL_S = 0.3  # for a signal to all processes of a job to reach this one after it has ended a task
_NOT_TASK_ERRORS = (MerlinError, MemoryError, ImportError)  # running the tasks one by one would not help


class ChunkRunner:
    """Runs chunks of every kind of step, one at a time; a worker has one runner."""

    def __init__(
        self,
        workspace: Workspace,
        worker: str,
        ledger: LedgerWriter,
        on_progress: ProgressCallback | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        wake_fd: int | None = None,
        fence: Callable[[], None] | None = None,
        walltime: Walltime | None = None,
        warnings: Warnings | None = None,
    ) -> None:
        """Make the worker's one runner.

        `on_progress(ended, failed)` receives counts of the running chunk's tasks. `wake_fd` becomes readable when
        `should_stop` must be called. `fence` is called before outputs are collected and records committed; it raises
        LeaseLostError if that is not allowed any more. Tasks that cannot end before `walltime` is over do not start.
        """
        self._workspace, self._worker, self._ledger = workspace, worker, ledger
        self._on_progress = on_progress
        self._fence = fence
        self._walltime, self._warnings = walltime or Walltime(), warnings or Warnings()
        self._waiter = Waiter(should_stop, wake_fd)
        self._env = task_environment(os.environ, workspace.plan.env)
        self._steps: dict[tuple[str, bool], _ShellStep] = {}
        self._functions = FunctionRunner(workspace, worker)
        self._shell: Shell | None = None
        self._variables: Mapping[str, str] = {}  # of the environment of the chunk that runs

    def run(self, chunk: Chunk, assignment: Assignment | None = None) -> ChunkResult:
        """Run the chunk's tasks, on what is assigned to it. When this returns, the ledger has their outcomes.

        An unexpected error of our own code fails only the tasks that cause it. Raises ExecutionError for errors of the
        machine, such as a full disk; the outcomes of finished tasks are in the ledger then.
        """
        if assignment is None:
            return self._run_chunk(chunk)
        with assignment.in_force():
            self._variables = assignment.variables
            try:
                return self._run_chunk(chunk)
            finally:
                self._variables = {}

    def _run_chunk(self, chunk: Chunk) -> ChunkResult:
        instance = self._workspace.instance(chunk.instance)
        journal = self._journal(instance, chunk)
        try:
            try:
                return self._run(instance, chunk, journal)
            except (*_NOT_TASK_ERRORS, OSError):
                raise
            except Exception:  # noqa: BLE001 - a bug must not end one worker after the other
                traceback.print_exc()
                return self._run_one_by_one(instance, chunk, journal)
        except OSError as error:
            raise machine_error(error) or ExecutionError(
                f"step {instance.id}: {error.strerror}: {error.filename or ''}"
            ) from error

    def _journal(
        self, instance: StepInstance, chunk: Chunk, *, reports_progress: bool = True
    ) -> ChunkJournal:
        on_progress = self._on_progress if reports_progress else None
        return ChunkJournal(
            self._workspace, instance, chunk, self._worker, self._ledger, on_progress, self._fence
        )

    def _run(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> ChunkResult:
        match instance.kind:
            case StepKind.CMD:
                self._run_shell(instance, chunk, journal)
            case StepKind.FUNCTION:
                if (part := self._in_time(chunk)) is not None:
                    self._functions.run(instance, part, journal, self._waiter)
            case StepKind.AGGREGATE | StepKind.MANIFEST:
                self._run_shards(instance, chunk, journal)
            case _:
                assert_never(instance.kind)
        return journal.result()

    def _in_time(self, chunk: Chunk) -> Chunk | None:
        """The first tasks of the chunk that can end before the walltime is over, one after the other."""
        left_s = self._walltime.left_s()
        tasks = chunk.task_ids()
        if left_s < 0 or chunk.need_s > left_s:
            return None
        if chunk.need_s * len(tasks) <= left_s:
            return chunk
        last = tasks[int(left_s / chunk.need_s) - 1]
        return replace(chunk, hi=last + 1, holes=tuple(hole for hole in chunk.holes if hole[1] <= last))

    def _run_one_by_one(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> ChunkResult:
        """Run the chunk's remaining tasks, each alone."""
        left = journal.discard_pending()
        results = [journal.result()]
        for task, ended in left.items():
            if self._waiter.stopped or results[-1].stop == "hard_fail":
                break
            if not self._walltime.has_time_for(chunk.need_s):
                break
            results.append(self._run_alone(instance, replace(chunk, lo=task, hi=task + 1, holes=()), ended))
        return _merged(chunk, results)

    def _run_alone(self, instance: StepInstance, chunk: Chunk, ended: EndedTask | None) -> ChunkResult:
        """Run a chunk of one task, or only commit it if it `ended` ok. The task fails if an error is raised."""
        journal = self._journal(instance, chunk, reports_progress=False)
        started, clock = time.time(), time.perf_counter()
        try:
            if ended is None:
                return self._run(instance, chunk, journal)
            journal.end(chunk.lo, Outcome.OK, started=ended.started, seconds=ended.seconds, code=ended.code)
            return journal.result()
        except (*_NOT_TASK_ERRORS, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - see `run`
            traceback.print_exc()
            for task in journal.discard_pending():
                if instance.kind is StepKind.CMD:
                    unmark_finished(str(self._workspace.task_dir(instance, task)))
                cause = f"internal error: {type(error).__name__}: {error}"
                failure = Failure(
                    task=task, cause=cause, exit_code=1, tail=traceback.format_exc()[-TAIL_CHARS:]
                )
                journal.fail(failure, started=started, seconds=time.perf_counter() - clock)
            return journal.result()

    def close(self) -> None:
        """Kill the running task."""
        self._close_shell()
        self._functions.close()

    # ------------------------------------------------------------------ shell

    def _run_shell(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> None:
        step = self._step(instance, chunk.use_restart)
        batches = _Batches(step, chunk, journal, self._walltime)
        try:
            if batches.warm:
                self._run_batches(step, chunk, journal, batches, batches.prepared(), warm=True)
                rest = batches.left_over()
            else:
                rest = batches.prepared()
            self._run_batches(step, chunk, journal, batches, rest, warm=False)
        except BaseException:
            journal.flush()
            raise
        if batches.error is not None:
            journal.flush()
            raise batches.error

    def _run_batches(
        self,
        step: _ShellStep,
        chunk: Chunk,
        journal: ChunkJournal,
        batches: _Batches,
        prepared: Iterator[list[ShellTask]],
        *,
        warm: bool,
    ) -> None:
        shell = self._shell = step.shell(self._variables, warm=warm, waiter=self._waiter)
        try:
            for ended in shell.run(prepared):
                batches.num_open -= 1
                step.update_batch_size(ended.seconds)
                self._record_exit(step.instance, chunk, journal, ended)
                if journal.stop == "hard_fail":
                    return
        finally:
            self._close_shell()

    def _close_shell(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()

    def _step(self, instance: StepInstance, use_restart: bool) -> _ShellStep:
        key = (instance.id, use_restart)
        if key not in self._steps:
            self._steps[key] = _ShellStep(self._workspace, instance, self._env, is_restart=use_restart)
        return self._steps[key]

    def _record_exit(
        self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal, ended: ShellExit
    ) -> None:
        """Judge one exit and record it."""
        task = ended.task
        if ended.interrupted or self._was_hit_by_stop(ended):
            unmark_finished(task.directory)
            journal.end(
                task.task, Outcome.INTERRUPTED, started=ended.started, seconds=ended.seconds, code=ended.code
            )
            return
        verdict = judge(instance, chunk, ended.code, ended.cause)
        journal.stop = verdict.stop or journal.stop
        if verdict.outcome is Outcome.OK:
            mark_finished(task.directory)
            journal.end(task.task, Outcome.OK, started=ended.started, seconds=ended.seconds, code=ended.code)
            journal.flush_if_due()
            return
        unmark_finished(task.directory)  # the script may have copied a mark
        if verdict.outcome is None:
            journal.defer(task.task, use_restart=verdict.use_restart)
        else:
            if (error := full_disk(task.directory)) is not None:
                raise error
            failure = Failure(
                task=task.task,
                cause=verdict.cause,
                exit_code=ended.code if verdict.code is None else verdict.code,
                tail=read_tail(task.err, task.err_at),
            )
            journal.fail(failure, started=ended.started, seconds=ended.seconds)
        journal.flush_if_due()

    def _was_hit_by_stop(self, ended: ShellExit) -> bool:
        """Whether a signal that ended the task was meant for the whole job, and so is no fault of the task."""
        if ended.cause or ended.code in (ReturnCode.SUCCESS, ReturnCode.RESTART, ReturnCode.RETRY):
            return False
        if ended.code < 0 and self._waiter.stopped:
            return True
        wait_s = SIGNAL_S if -ended.code in WARNINGS else 0.0
        return self._warnings.came_since(ended.started, wait_s=wait_s)

    # ----------------------------------------------------------------- shards

    def _run_shards(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> None:
        for task in chunk.task_ids():
            if self._waiter.stopped or not self._walltime.has_time_for(chunk.need_s):
                return
            started, clock = time.time(), time.perf_counter()
            if self._fence is not None:
                self._fence()
            try:
                self._write_shard(instance, chunk, task)
            except ShardError as error:
                failure = Failure(task=task, cause=str(error), exit_code=1)
                journal.fail(failure, started=started, seconds=time.perf_counter() - clock)
            else:
                journal.end(task, Outcome.OK, started=started, seconds=time.perf_counter() - clock)
            journal.flush()

    def _write_shard(self, instance: StepInstance, chunk: Chunk, task: int) -> None:
        if instance.kind is StepKind.MANIFEST:
            from merlin.shards.writing.manifest import write_manifest

            write_manifest(self._workspace, instance)
        else:
            from merlin.shards.format.rows import row_map
            from merlin.shards.writing.cleanup import clean_after_shard
            from merlin.shards.writing.gather import write_shard

            shard, absent = row_map(self._workspace, instance).shard_task(task, chunk.absent_rows)
            info = write_shard(self._workspace, instance, shard, absent)
            clean_after_shard(self._workspace, instance, info)


def _merged(chunk: Chunk, parts: Sequence[ChunkResult]) -> ChunkResult:
    """Merge the results of a chunk's parts."""
    return ChunkResult(
        chunk=chunk,
        runs=tuple(sorted(run for part in parts for run in part.runs)),
        deferred=tuple(deferred for part in parts for deferred in part.deferred),
        busy_s=sum(part.busy_s for part in parts),
        spread=added(part.spread for part in parts),
        cut_off_s=max((part.cut_off_s for part in parts), default=0.0),
        stop=next((part.stop for part in reversed(parts) if part.stop), ""),
        note=next((part.note for part in parts if part.note), ""),
    )


class _ShellStep:
    """The script template and the shell of one step instance. Its chunks share them."""

    def __init__(
        self, workspace: Workspace, instance: StepInstance, env: dict[str, str], *, is_restart: bool
    ) -> None:
        self.instance = instance
        self.is_restart = is_restart  # the tasks have asked to continue where they were
        restart = instance.restart if is_restart else None
        self.stem = instance.script_name if restart is None else f"{instance.script_name}.restart"
        command = instance.command if restart is None else restart
        self._leftovers = _leftovers(workspace, instance)
        self.template = ScriptTemplate(workspace, instance, command)
        self.batch_size = _FIRST_BATCH
        self._task_s: float | None = None
        self._argv = shell_argv(instance.shell)
        self._env = env
        self._home = str(workspace.path)
        self._checked: bool | None = None  # whether the template can run warm; None before the first script
        self._is_text = self.template.uses_columns and instance.per_sample and not workspace.samples().numeric

    def shell(self, variables: Mapping[str, str], *, warm: bool, waiter: Waiter) -> Shell:
        timeout_s, env = self.instance.timeout_s, {**self._env, **variables}
        if warm:
            return WarmShell(self._argv, env, waiter, timeout_s, self._home, self.prepare_retry)
        return FreshShell(self._argv, env, waiter, timeout_s)

    def prepare_retry(self, task: ShellTask) -> None:
        """Prepare the directory of a task for another try."""
        if not self.is_restart:
            set_aside(task.directory, self._leftovers)

    def task(self, script: Script, *, is_new: bool) -> ShellTask:
        """The task of a script. With `is_new` its directory is new, so it has no leftovers of an earlier try."""
        task = ShellTask(script.task, script.directory, self.stem, script.variables)
        if is_new:
            return task
        self.prepare_retry(task)
        return replace(task, err_at=file_size(task.err)) if self.is_restart else task

    def can_be_warm(self, script: Script) -> bool:
        """Return whether the step may run in a warm shell, judged by its first script."""
        if self._checked is None:
            self._checked = (
                not self.instance.fresh_shell
                and is_plain_bash(self._argv)
                and environment_allows(self._env)
                and can_run_warm(script.text)
                and bash_is_new_enough(tuple(self._argv))
                and has_valid_syntax(self._argv, script.text)
            )
        return self._checked

    def is_unsafe(self, script: Script) -> bool:
        """Return whether this task's values rule out a warm shell. Numbers never do."""
        if any(len(value) > _LONGEST_WARM_VALUE for _, value in script.variables):
            return True  # too long for the program of a warm shell
        return self._is_text and not (is_harmless(script.values) and can_run_warm(script.text))

    def update_batch_size(self, seconds: float) -> None:
        """Choose the size of the next batch from the time that tasks take."""
        self._task_s = seconds if self._task_s is None else 0.9 * self._task_s + 0.1 * seconds
        self.batch_size = max(1, min(int(_BATCH_S / max(self._task_s, 1e-6)), _LARGEST_BATCH))


def _leftovers(workspace: Workspace, instance: StepInstance) -> tuple[str, ...]:
    """The files of a try that must not count for the next one: its output, and the files that data sets collect."""
    name = instance.script_name
    output = [f"{stem}{suffix}" for stem in (name, f"{name}.restart") for suffix in (".out", ".err")]
    aggregates = (workspace.instance(target).aggregate for target in instance.feeds)
    collected = (field.file for aggregate in aggregates if aggregate for field in aggregate.fields)
    return tuple(dict.fromkeys([*output, *(file for file in collected if file)]))


class _Batches:
    """Prepares the files of a chunk's tasks, a batch at a time, as long as they can end in time."""

    def __init__(self, step: _ShellStep, chunk: Chunk, journal: ChunkJournal, walltime: Walltime) -> None:
        self._step, self._need_s, self._walltime = step, chunk.need_s, walltime
        self.num_open = 0  # prepared, and not ended
        self._journal = journal
        scripts = step.template.scripts(chunk.task_ids())
        first = next(scripts)
        self._scripts = chain([first], scripts)
        self.warm = step.can_be_warm(first)
        self.unsafe: list[ShellTask] = []  # tasks of a warm step whose values need a fresh shell
        self.error: MerlinError | None = None  # raised after the prepared tasks have run

    def prepared(self) -> Iterator[list[ShellTask]]:
        while self.error is None:
            size = self._num_in_time(self._step.batch_size if self.warm else 1)
            scripts = list(islice(self._scripts, size))
            if not scripts:
                return
            batch = self._prepare(scripts)
            if batch:
                self.num_open += len(batch)
                yield batch

    def left_over(self) -> Iterator[list[ShellTask]]:
        """The tasks of a warm step whose values need a fresh shell."""
        for task in self.unsafe:
            if not self._num_in_time(1):
                return
            self.num_open += 1
            yield [task]

    def _num_in_time(self, most: int) -> int:
        """How many more tasks can end before the walltime is over, after those that are prepared."""
        left_s = self._walltime.left_s()
        if left_s < 0:
            return 0
        if not self._need_s or left_s == inf:
            return most
        return max(0, min(most, int(left_s / self._need_s) - self.num_open))

    def _prepare(self, scripts: list[Script]) -> list[ShellTask]:
        """Create directories and scripts."""
        batch: list[ShellTask] = []
        for script in scripts:
            try:
                is_new = make_directory(script.directory)
                task = self._step.task(script, is_new=is_new)
                write_script(script, self._step.stem)
            except OSError as error:
                self.error = machine_error(error)
                if self.error is not None:
                    break
                cause = f"cannot prepare its files: {error.strerror}: {error.filename}"
                failure = Failure(task=script.task, cause=cause, exit_code=1)
                self._journal.fail(failure, started=time.time(), seconds=0.0)
                continue
            (self.unsafe if self.warm and self._step.is_unsafe(script) else batch).append(task)
        return batch
