"""Prepares the files of a chunk's tasks before a shell runs them, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, islice
from math import inf

from merlin.errors import MerlinError
from merlin.execution.journal import ChunkJournal
from merlin.execution.scripts import Script
from merlin.execution.shell import ShellTask, machine_error
from merlin.execution.shell_step import ShellStep
from merlin.execution.task_files import make_directory, write_script
from merlin.execution.walltime import Walltime
from merlin.ledger.records import Failure
from merlin.plan.tasks import Chunk


class ShellBatches:
    """The batches of a chunk, as long as their tasks can end in time."""

    def __init__(self, step: ShellStep, chunk: Chunk, journal: ChunkJournal, walltime: Walltime) -> None:
        self.step, self.chunk, self.journal, self._walltime = step, chunk, journal, walltime
        self.num_open = 0  # prepared, and not ended
        scripts = step.template.scripts(chunk.task_ids())
        first = next(scripts)
        self._scripts = chain([first], scripts)
        self.warm = step.can_be_warm(first)
        self.unsafe: list[ShellTask] = []  # tasks of a warm step whose values need a fresh shell
        self.error: MerlinError | None = None  # raised after the prepared tasks have run

    def prepared(self) -> Iterator[list[ShellTask]]:
        while self.error is None:
            size = self._num_in_time(self.step.batch_size if self.warm else 1)
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
        if not self.chunk.need_s or left_s == inf:
            return most
        return max(0, min(most, int(left_s / self.chunk.need_s) - self.num_open))

    def _prepare(self, scripts: list[Script]) -> list[ShellTask]:
        """Create directories and scripts."""
        batch: list[ShellTask] = []
        for script in scripts:
            try:
                is_new = make_directory(script.directory)
                task = self.step.task(script, is_new=is_new)
                write_script(script, self.step.stem)
            except OSError as error:
                self.error = machine_error(error)
                if self.error is not None:
                    break
                cause = f"cannot prepare its files: {error.strerror}: {error.filename}"
                failure = Failure(task=script.task, cause=cause, exit_code=1)
                self.journal.fail(failure, started=time.time(), seconds=0.0)
                continue
            (self.unsafe if self.warm and self.step.is_unsafe(script) else batch).append(task)
        return batch
