"""Shell steps: runs the tasks of a chunk as scripts, judges how they ended, and records it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

from merlin.base.files import end_of
from merlin.batch.slurm import JOB_IS_OVER
from merlin.execution.journal import ChunkJournal
from merlin.execution.shell import TAIL_BYTES, Shell, ShellExit, ShellTask, full_disk
from merlin.execution.shell_batches import ShellBatches
from merlin.execution.shell_step import ShellStep
from merlin.execution.task_files import mark_finished, unmark_finished
from merlin.execution.verdict import judge
from merlin.execution.waiting import Waiter
from merlin.execution.walltime import WARNINGS, Walltime, Warnings
from merlin.ledger.records import Failure
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Chunk, Outcome, ReturnCode
from merlin.workspace.directory import Workspace

JOB_END_S = 10.0  # for the signal that ends a job to come, after `srun` has refused to start anything in it
SIGNAL_S = 0.3  # for a signal to all processes of a job to reach this one after it has ended a task


class ShellRunner:
    """Runs scripts, one chunk at a time; keeps what the chunks of a step share."""

    def __init__(
        self,
        workspace: Workspace,
        env: dict[str, str],
        waiter: Waiter,
        walltime: Walltime,
        warnings: Warnings,
    ) -> None:
        self._workspace, self._env = workspace, env
        self._waiter, self._walltime, self._warnings = waiter, walltime, warnings
        self._steps: dict[tuple[str, bool], ShellStep] = {}
        self._shell: Shell | None = None

    def run(
        self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal, variables: Mapping[str, str]
    ) -> None:
        """Run the chunk's tasks with these variables in their environment, in a warm shell if that changes nothing."""
        if chunk.collect_only:
            self._collect(instance, chunk, journal)
            return
        step = self._step(instance, chunk.use_restart)
        batches = ShellBatches(step, chunk, journal, self._walltime)
        new_shell = partial(step.shell, variables, waiter=self._waiter)
        try:
            rest = batches.prepared()
            if batches.warm:
                self._run_batches(new_shell(warm=True), batches, rest)
                rest = batches.left_over()
            self._run_batches(new_shell(warm=False), batches, rest)
        except BaseException:
            journal.flush()
            raise
        if batches.error is not None:
            journal.flush()
            raise batches.error

    def _collect(self, instance: StepInstance, chunk: Chunk, journal: ChunkJournal) -> None:
        """Let the journal collect what the scripts have left in an earlier revision: that decides the outcomes."""
        for task in chunk.task_ids():
            if self._waiter.stopped:
                return
            mark_finished(str(self._workspace.task_dir(instance, task)))
            journal.end(task, Outcome.OK, started=time.time(), seconds=0.0)
            journal.flush_if_due()

    def _run_batches(self, shell: Shell, batches: ShellBatches, prepared: Iterator[list[ShellTask]]) -> None:
        self._shell = shell
        try:
            for ended in shell.run(prepared):
                batches.num_open -= 1
                batches.step.update_batch_size(ended.seconds)
                self._record_exit(batches, ended)
                if batches.journal.stop == "hard_fail":
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Kill the running task."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()

    def _step(self, instance: StepInstance, use_restart: bool) -> ShellStep:
        key = (instance.id, use_restart)
        if key not in self._steps:
            self._steps[key] = ShellStep(self._workspace, instance, self._env, is_restart=use_restart)
        return self._steps[key]

    def _record_exit(self, batches: ShellBatches, ended: ShellExit) -> None:
        """Judge one exit and record it."""
        task, journal = ended.task, batches.journal
        if ended.interrupted or self._was_hit_by_stop(ended):
            unmark_finished(task.directory)
            journal.end(
                task.task, Outcome.INTERRUPTED, started=ended.started, seconds=ended.seconds, code=ended.code
            )
            return
        verdict = judge(batches.step.instance, batches.chunk, ended.code, ended.cause)
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
                tail=end_of(task.err, TAIL_BYTES, start=task.err_at),
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
        if JOB_IS_OVER.search(end_of(ended.task.err, TAIL_BYTES, start=ended.task.err_at)):
            wait_s = JOB_END_S
        return self._warnings.came_since(ended.started, wait_s=wait_s)
