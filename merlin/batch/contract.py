"""What a batch scheduler is to Merlin. Everything here is pure: `jobs` alone runs commands.

Methods raise ValueError for values that they cannot write, and for output that they cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Protocol

from msgspec import Struct, field

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


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """A parallel program that a script starts. Numbers are text: they may be tokens or shell variables."""

    procs: str = "1"
    nodes: str = ""  # "": the scheduler decides
    resources: Mapping[str, Scalar] = field(default_factory=dict)  # of the step, by YAML key
    launch_pre: str = ""  # text before the launcher
    launch_args: str = ""  # more arguments of the launcher


class JobRequest(Struct, frozen=True, kw_only=True):
    """A batch job to submit. Raises ValueError for text that would not stay on one line of a job script."""

    name: str  # unique among the user's jobs, to find a job whose submission was not confirmed
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
    output: str = ""  # paths, taken literally; may be the same
    error: str = ""
    may_requeue: bool = False
    priority: str = ""  # Flux: held, minimal, low, medium, high, expedited, or 0 to 1
    is_waitable: bool = False  # Flux

    def __post_init__(self) -> None:
        if not _JOB_NAME.fullmatch(self.name):
            raise ValueError(
                f"a job cannot be called {self.name[:60]!r}; write letters, digits, dots, dashes"
            )
        for what in ("bank", "queue", "reservation", "qos", "output", "error", "priority"):
            _check_text(what, getattr(self, what))
        for host in self.excluded_hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"not the name of a host: {host[:60]!r}")
        for what in ("nodes", "procs", "cores_per_task", "gpus", "walltime_s"):
            number = getattr(self, what)
            if number is not None and not 0 < number < _MOST and (what, number) != ("gpus", 0):
                raise ValueError(f"a job of {number} {what} is not possible")


_JOB_NAME = re.compile(r"[A-Za-z][\w.-]{0,62}", re.ASCII)  # what every scheduler takes as it is
_HOST = re.compile(r"\w[\w.-]{0,252}", re.ASCII)
_MOST = 1e9


def _check_text(what: str, text: str) -> None:
    if not text.isprintable():
        bad = next(character for character in text if not character.isprintable())
        raise ValueError(f"the {what} of a job may hold no {bad!a}, so use another name: {text!a}")


class Job(Struct, frozen=True, kw_only=True):
    """A batch job as its scheduler describes it. Times are epoch seconds; None: not known."""

    id: str
    name: str = ""
    state: JobState = JobState.UNKNOWN
    num_nodes: int | None = None
    hosts: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ends: float | None = None  # when its walltime is over
    exit_code: int | None = None
    reason: str = ""  # why it waits, or how it ended, in the scheduler's words


class Allocation(Struct, frozen=True, kw_only=True):
    """The batch job that this process lives in, as its environment describes it."""

    scheduler: str  # BatchScheduler.system
    job: str
    num_nodes: int = 1
    hosts: tuple[str, ...] = ()  # () if the environment does not say
    host: str = ""  # of this process, as the scheduler calls it
    cores: int | None = None  # of this host, for this job
    ends: float | None = None  # epoch seconds; None: ask the scheduler


class BatchScheduler(Protocol):
    """One kind of scheduler, a subclass without state; `merlin.testing.schedulers` says what each must do.

    Commands that ask run with TZ=UTC and LC_ALL=C, so that their times can be read.
    """

    name: ClassVar[str]  # batch.type in specs
    title: ClassVar[str]  # e.g. "Slurm"
    # what must be on the PATH to use it: the first one submits, the last one launches
    programs: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]  # of directives in job scripts, e.g. "#SBATCH"
    script_suffix: ClassVar[str] = ".sh"  # of step scripts with directives, e.g. ".slurm.sh"
    # variables that would change what the commands do, or that one launch would pass on to the next; "X_*" for many
    hidden_variables: ClassVar[tuple[str, ...]] = ()
    launch_variables: ClassVar[tuple[str, ...]] = ()
    launcher_nests: ClassVar[bool] = True  # a program that its launcher has started may use it, too
    knows_none: ClassVar[str] = r"(?!)"  # pattern of what a question prints on stderr about unknown jobs

    @property
    def system(self) -> str:
        """The name in its allocations: that of the scheduler whose jobs these are, which for lsf-srun is lsf."""
        return self.name

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
        """The state of these jobs in one question; without ids, of this user's jobs, if they are not over."""

    def find_command(self, name: str) -> list[str]:
        """The state of this user's jobs of this name, those that are over included; others may be listed, too."""
        return self.list_command([])

    def own_job_command(self, environment: Mapping[str, str]) -> list[str]:
        """The state of the job that the environment belongs to; [] outside of one."""
        found = self.allocation(environment)
        return self.list_command([found.job]) if found is not None else []

    def listed_jobs(self, output: str) -> list[Job]:
        """The jobs, from what the command printed. Raises ValueError."""

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """End these jobs."""

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """The job that the environment belongs to, if it is one of this scheduler."""

    def side_by_side(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that limit each of several programs on one node of an allocation to what it asks for."""
        return {}
