"""What a batch scheduler is to Merlin. Everything here is pure: `jobs` alone runs commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

Scalar = str | int | float | bool


class JobState(StrEnum):
    PENDING = "pending"  # submitted, held or requeued
    RUNNING = "running"  # also while it starts or ends
    OK = "ok"  # ended with exit code 0
    FAILED = "failed"  # ended with another exit code, or could not be started
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"  # ended by its walltime
    LOST = "lost"  # ended by its node, or preempted and not requeued
    UNKNOWN = "unknown"  # the scheduler does not know it (any more)

    @property
    def is_over(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A parallel program that a script starts. Numbers are text: they may be tokens or shell variables."""

    procs: str = "1"
    nodes: str = ""  # "": the scheduler decides
    resources: Mapping[str, Scalar] = field(default_factory=dict)  # of the step, by YAML key
    launch_pre: str = ""  # text before the launcher
    launch_args: str = ""  # more arguments of the launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A batch job to submit."""

    name: str
    nodes: int = 1
    procs: int | None = None  # None: one per node
    cores_per_task: int | None = None
    gpus: int | None = None  # per node
    walltime_s: float | None = None  # None: the scheduler's own limit
    bank: str = ""
    queue: str = ""
    reservation: str = ""
    qos: str = ""
    is_exclusive: bool = False
    excluded_hosts: Sequence[str] = ()
    output: str = ""  # paths; may be the same
    error: str = ""
    warning_s: float | None = None  # send SIGUSR1 so long before the walltime ends, where the scheduler can
    may_requeue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A batch job as its scheduler describes it. Times are epoch seconds; None: not known."""

    id: str
    name: str = ""
    state: JobState = JobState.UNKNOWN
    num_nodes: int | None = None
    hosts: Sequence[str] = ()
    submitted: float | None = None
    started: float | None = None
    ends: float | None = None  # when its walltime is over
    exit_code: int | None = None
    reason: str = ""  # why it waits, or how it ended, in the scheduler's words


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The batch job that this process lives in, as its environment describes it."""

    scheduler: str
    job: str
    num_nodes: int = 1
    hosts: Sequence[str] = ()  # () if the environment does not say
    host: str = ""  # of this process, as the scheduler calls it
    cores: int | None = None  # of this host, for this job
    ends: float | None = None  # epoch seconds; None: ask the scheduler
    num_restarts: int = 0  # how often it was requeued


class BatchScheduler(Protocol):
    """One kind of scheduler. Without state; the suite in `merlin.testing.schedulers` says what each must do."""

    name: ClassVar[str]  # batch.type in specs
    title: ClassVar[str]  # e.g. "Slurm"
    programs: ClassVar[tuple[str, ...]]  # what must be on the PATH to use it: the first one submits
    prefix: ClassVar[str]  # of directives in job scripts, e.g. "#SBATCH"

    def launch_line(self, request: LaunchRequest) -> str:
        """The words that stand before a program in a script, e.g. ``srun -n 4 -N 2``; "" if none are needed."""

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        """The words that start one program on each node of an allocation; [] to start it here only."""

    def directives(self, request: JobRequest) -> list[str]:
        """The header lines of a job script, without the first line."""

    def submit_command(self, script: str) -> list[str]:
        """Submit the script."""

    def submitted_id(self, output: str) -> str:
        """The id of the job, from what the command printed. Raises ValueError."""

    def list_command(self, ids: Sequence[str]) -> list[str]:
        """The state of these jobs in one question; without ids, of all jobs of this user."""

    def listed_jobs(self, output: str) -> list[Job]:
        """The jobs, from what the command printed. Raises ValueError."""

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """End these jobs."""

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """The job that the environment belongs to, if it is one of this scheduler."""
