"""A condition that is not met, so that something does not run."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """What sort of condition it is."""

    OTHER = ""
    STATE = "state"  # the study has ended, has stopped, or was never started
    LIMIT = "limit"  # canary, max_failures, or a task that failed hard
    DEPENDENCY = "dependency"
    BUSY = "busy"  # all workers have work
    WORKERS = "workers"  # none on the queue
    RETRY = "retry"  # tasks that asked to run again wait for their delay
    LEASE = "lease"  # a worker that may be dead holds tasks
    MESSAGE = "message"  # nobody takes what is offered
    WALLTIME = "walltime"
    SIZE = "size"  # cores or GPUs that no worker has
    NODE = "node"  # a bad node
    CAP = "cap"  # of the autoscaler, or of batch jobs of a step
    JOB = "job"  # a batch job that waits, was refused, or has ended
    SERVER = "server"
    SCHEDULER = "scheduler"
    DISK = "disk"
    LEDGER = "ledger"  # a part of it cannot be read
    PLAN = "plan"  # it differs from the one that was published
    VERSION = "version"


class Obstacle(Struct, frozen=True, kw_only=True):
    """A condition that is not met, and what to do about it."""

    what: str
    remedy: str = ""
    kind: Kind = Kind.OTHER
    step: str = ""  # that it keeps from running; "": all, or several
    is_normal: bool = False  # it passes by itself as the study goes on
