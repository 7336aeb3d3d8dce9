"""Tasks, their outcomes, and the half-open ranges of them that everything else is made of."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from merlin.spec.variables import ReturnCode as ReturnCode


class Outcome(IntEnum):
    """How a task ended. A planned task with none of these is *missing*."""

    OK = 0
    FAILED = 1
    SKIPPED = 2  # an upstream task of the same sample failed
    INTERRUPTED = 3  # not its fault: worker lost, walltime, Ctrl-C; it counts as missing and runs again
    # failed by its own choice, so what depends on it runs; the ledger has it as FAILED with exit code 101
    SOFT_FAILED = 4


FAILURES = (Outcome.FAILED, Outcome.SOFT_FAILED)  # users see one number
ENDED = frozenset(int(o) for o in (Outcome.OK, Outcome.SKIPPED, *FAILURES))
NO_OUTCOME = 255  # in arrays of outcomes: nothing is recorded for this task
# where the values of a task lie that does not run and is only collected again: FROM_FILES: in its files; a number above
# 0: in the data sets that the revision with this number has put aside; 0: nowhere, the task runs
FROM_FILES = -1


class Chunk(Struct, frozen=True, kw_only=True):
    """A half-open range of tasks of one step instance; the only thing a queue holds."""

    instance: str  # StepInstance.id
    lo: int
    hi: int  # exclusive; hi > lo, an empty chunk is a bug
    attempt: int = 1  # how often this range has been handed out; the fencing token
    holes: tuple[tuple[int, int], ...] = ()  # sorted ranges inside [lo, hi) that must not run
    retries: int = 0  # application retries so far (exit codes 100 and 104) of every task in it
    use_restart: bool = False  # its tasks continue where they stopped, by the step's `restart` if it has one
    collect_only: bool = False  # its tasks have run in an earlier revision: their outputs are collected anew
    taken_from: int = 0  # if so: from the data sets that this revision has put aside; 0: from their files
    isolate: bool = False  # a worker died of this chunk before: run its tasks one by one
    absent_rows: tuple[tuple[int, int], ...] = ()  # aggregate: rows of its shards whose task did not end ok
    lease: str = ""  # "" while it waits; of one hand-out
    need_s: float = 0.0  # seconds that a task of it may take, as far as known; 0: not known
    avoid: tuple[str, ...] = ()  # nodes on which it must not run

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi:
            raise ValueError(f"bad chunk [{self.lo}, {self.hi}) of {self.instance}")

    def task_ids(self) -> list[int]:
        """The tasks to run, holes left out, in order."""
        out: list[int] = []
        at = self.lo
        for a, b in self.holes:
            out.extend(range(at, a))
            at = b
        out.extend(range(at, self.hi))
        return out


class Deferred(Struct, frozen=True, kw_only=True):
    """Tasks that asked to be run again (exit code 100 or 104); they have no outcome yet."""

    chunk: Chunk
    delay_s: float


class ChunkResult(Struct, frozen=True, kw_only=True):
    """What a worker reports about a chunk it has finished; the ledger already holds the details."""

    chunk: Chunk
    runs: tuple[tuple[int, int, int], ...]  # (lo, hi, Outcome), sorted, without the deferred tasks
    deferred: tuple[Deferred, ...] = ()
    busy_s: float = 0.0  # wall seconds the chunk took in its worker
    spread: tuple[tuple[int, int], ...] = ()  # how long its tasks took, as `durations` counts it
    cut_off_s: float = 0.0  # the longest time that a task had run when it was interrupted
    stop: str = ""  # "", "hard_fail" (exit 102: the study stops) or "stop_workers" (exit 105: it goes on)
    note: str = ""  # one line for the user, e.g. the first failure's cause
