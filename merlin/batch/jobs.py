"""Runs the commands of a batch scheduler; nothing else in Merlin does.

Many users share a scheduler, and it is slow under load: every command has a time limit, there is a minimum time
between questions, and a failed question is not repeated at once. A missing answer is an error, never an empty list.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.commands import CommandResult, run_command
from merlin.batch.contract import BatchScheduler, Job, JobState
from merlin.batch.devices import DEVICE_VARIABLES
from merlin.batch.environment import without
from merlin.errors import SchedulerRefusedError, SchedulerUnreachableError

LIMIT_S = 60.0  # of one command
POLLS_PER_MINUTE = 6.0
LISTED_S = 15.0  # after its submission, any scheduler has listed a job; LSF's answers may be 10 s old
FORGOTTEN = "the scheduler does not know it"
_TAIL_LINES = 5
_COMMAND = "the command: "
# variables about the place of this process, which mean nothing for its jobs
_OF_THIS_PROCESS = (*DEVICE_VARIABLES, *("OMPI_*", "PMI_*", "PMIX_*", "MERLIN_WALLTIME_END"))
_QUESTION = {"LC_ALL": "C", "TZ": "UTC"}


class Call(Struct, frozen=True):
    """A command that was run."""

    at: float  # epoch seconds
    command: tuple[str, ...]


class SchedulerClient:
    """The jobs of one scheduler. Threads may share it, and then they share its pace."""

    def __init__(
        self,
        scheduler: BatchScheduler,
        *,
        environment: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
        polls_per_minute: float = POLLS_PER_MINUTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.calls: deque[Call] = deque(maxlen=10_000)
        self._environment = without(
            os.environ if environment is None else environment,
            (*scheduler.hidden_variables, *_OF_THIS_PROCESS),
        )
        self._limit_s = limit_s
        self._interval_s = 60.0 / polls_per_minute
        self._clock = clock
        self._lock = threading.RLock()
        self._known: dict[str, Job] = {}  # the last answer about each job, also about forgotten jobs
        self._asked_at: float | None = None
        self._trouble: SchedulerUnreachableError | None = None  # of the last question
        # names that may have been submitted -> until when such a job may still appear
        self._in_doubt: dict[str, float] = {}
        # jobs that no answer has named yet -> until when this is normal
        self._unlisted: dict[str, float] = {}

    def submit(self, name: str, script: str, *, is_again: bool = False) -> str:
        """Submit a script whose job is called `name`; returns the job's id.

        If an earlier call with this name may have submitted it, the scheduler is asked first. `is_again` says that
        another process may have made such a call.

        Raises:
            SchedulerRefusedError: the scheduler does not take the job.
            SchedulerUnreachableError: no answer; submit it again by the same name.
        """
        with self._lock:
            if (name in self._in_doubt or is_again) and (found := self.find(name)):
                return self._submitted(name, found.id)
            if self._clock() < self._in_doubt.get(name, 0.0):
                raise SchedulerUnreachableError(f"it is not known yet whether the job {name} was submitted")
            # if the submission succeeds without an answer, the scheduler lists the job by then
            self._in_doubt[name] = self._clock() + LISTED_S
            command = self.scheduler.submit_command(script)
            result = self._run(command)
            if result.code == 0:
                try:
                    return self._submitted(name, self.scheduler.submitted_id(result.output))
                except ValueError as error:
                    trouble = str(error)
            else:
                trouble = _trouble(command, result)
            # the command may have come through before it failed
            if found := self.find(name):
                return self._submitted(name, found.id)
            if _is_answer(result):
                self._in_doubt[name] = 0.0
                raise SchedulerRefusedError(trouble)
            raise SchedulerUnreachableError(
                f"{trouble}; no job is called {name} yet, submit it again by this name"
            )

    def _submitted(self, name: str, job: str) -> str:
        self._in_doubt.pop(name, None)
        self._known.setdefault(job, Job(id=job, name=name, state=JobState.PENDING))
        self._unlisted[job] = self._clock() + LISTED_S
        return job

    def find(self, name: str) -> Job | None:
        """The job of this user with this name, asked now; of several, one that is not over.

        Raises SchedulerUnreachableError.
        """
        with self._lock:
            found = [job for job in self._answer(self.scheduler.find_command(name)) if job.name == name]
        return min(found, key=lambda job: job.state.is_over) if found else None

    def every_job(self) -> list[Job]:
        """The jobs of this user, asked now; not all that are over. Raises SchedulerUnreachableError."""
        with self._lock:
            return self._list(())

    def jobs(self, ids: Collection[str], *, is_urgent: bool = False) -> dict[str, Job]:
        """What the scheduler says about these jobs, by id: now, or a short while ago if it was asked recently.

        With `is_urgent` it is always asked now; the caller must limit such calls.

        A job that it no longer knows keeps the end that it had; without one it is UNKNOWN. A job that was not asked
        about yet is PENDING.

        Raises SchedulerUnreachableError.
        """
        with self._lock:
            for job in ids:
                self._known.setdefault(job, Job(id=job, state=JobState.PENDING))
            if any(_may_change(self._known[job]) for job in ids) and (is_urgent or self._may_ask()):
                self._ask()
            elif self._trouble is not None and any(_may_change(self._known[job]) for job in ids):
                raise SchedulerUnreachableError(str(self._trouble)) from self._trouble
            return {job: self._known[job] for job in ids}

    def _may_ask(self) -> bool:
        return self._asked_at is None or self._clock() - self._asked_at >= self._interval_s

    def _ask(self) -> None:
        wanted = [id for id, job in self._known.items() if _may_change(job)]
        self._asked_at = self._clock()
        try:
            listed = {job.id: job for job in self._list(wanted)}
        except SchedulerUnreachableError as error:
            self._trouble = error
            raise
        self._trouble = None
        for job in wanted:
            if job in listed:
                self._known[job] = listed[job]
                self._unlisted.pop(job, None)
            elif self._asked_at >= self._unlisted.get(job, 0.0):
                self._known[job] = replace(self._known[job], state=JobState.UNKNOWN, reason=FORGOTTEN)

    def cancel(self, ids: Sequence[str]) -> None:
        """End these jobs; jobs that are over already are no error.

        Raises:
            SchedulerRefusedError: some are not ended.
            SchedulerUnreachableError: no answer.
        """
        if not ids:
            return
        with self._lock:
            command = self.scheduler.cancel_command(ids)
            result = self._run(command)
            if result.code == 0:
                return
            alive = {job.id for job in self._list(ids) if not job.state.is_over} & set(ids)
            if alive and _is_answer(result):
                raise SchedulerRefusedError(_trouble(command, result))
            if alive:
                raise SchedulerUnreachableError(_trouble(command, result))

    def own_job(self, environment: Mapping[str, str]) -> Job | None:
        """The job that the environment belongs to, asked now; None if there is none, or the scheduler forgot it.

        Raises SchedulerUnreachableError.
        """
        found = self.scheduler.allocation(environment)
        if found is None:
            return None
        with self._lock:
            listed = self._answer(self.scheduler.own_job_command(environment))
        return next((job for job in listed if job.id == found.job), None)

    def _list(self, ids: Sequence[str]) -> list[Job]:
        return self._answer(self.scheduler.list_command(ids))

    def _answer(self, command: list[str]) -> list[Job]:
        result = self._run(command, _QUESTION)
        if result.code != 0 and not re.search(self.scheduler.knows_none, result.error):
            raise SchedulerUnreachableError(_trouble(command, result))
        try:
            return self.scheduler.listed_jobs(result.output)
        except ValueError as error:
            raise SchedulerUnreachableError(f"{shlex.join(command)}: {error}") from error

    def _run(self, command: list[str], more: Mapping[str, str] | None = None) -> CommandResult:
        self.calls.append(Call(time.time(), tuple(command)))
        try:
            return run_command(
                command, limit_s=self._limit_s, environment={**self._environment, **(more or {})}
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise SchedulerUnreachableError(
                f"cannot run {command[0]} ({reason}); is {self.scheduler.title} installed here?"
            ) from error


def _is_answer(result: CommandResult) -> bool:
    """True if a failed command ended by itself: neither a signal nor we ended it."""
    return result.code is not None and result.code > 0


def _may_change(job: Job) -> bool:
    return job.state in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


def in_short(trouble: str) -> str:
    """What a command that failed has printed, of the text of an error; one line."""
    first, *said = (line.strip() for line in f"{trouble}\n".splitlines())
    return "; ".join(line for line in said if not line.startswith(_COMMAND)) or first


def _trouble(command: Sequence[str], result: CommandResult) -> str:
    """How a command ended, the last lines that it printed, and the whole command."""
    if result.code is None:
        how = "gave no answer in time"
    else:
        how = f"failed with exit code {result.code}" if result.code >= 0 else f"died of signal {-result.code}"
    said = [line.rstrip() for line in (result.error or result.output).splitlines() if line.strip()]
    tail = "".join(f"\n    {line[:300]}" for line in said[-_TAIL_LINES:])
    line = shlex.join(command)
    whole = line if len(line) <= 200 else f"{line[:200]} …"
    return f"{command[0]} {how}" + (f":{tail}" if tail else "") + f"\n    {_COMMAND}{whole}"
