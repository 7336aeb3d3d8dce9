"""The records of the ledger, as writers append them and readers get them back.

NumPy is needed only for `ChunkRecord`; this module does not import it, so that readers of headers stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from merlin.plan.tasks import Outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESET = 255  # as the outcome of a `RangeRecord`: earlier records do not count, and these tasks run again

MAX_TAIL_CHARS = 2048
MAX_CAUSE_CHARS = 300


class Failure(Struct, frozen=True, kw_only=True):
    """Why one task failed; `tail` is the end of its stderr or traceback.

    Cause and signature (the tail's last line, normalised) are stored for every failure, tails only for a few.
    """

    task: int
    cause: str
    exit_code: int = 0  # -N: killed by signal N
    tail: str = ""
    signature: str = ""  # filled in by the reader


class ChunkRecord(Struct, frozen=True, kw_only=True):
    """The outcomes of the tasks [lo, hi) of one step instance; n = hi - lo.

    `worker` and `host` describe the writer. Readers fill them in; writers need not.
    """

    instance: str
    lo: int
    hi: int
    started: float  # epoch seconds
    outcomes: NDArray[np.uint8]  # (n,) Outcome or NO_OUTCOME (the record does not concern the task)
    seconds: NDArray[np.float32]  # (n,)
    attempt: int = 1
    elapsed_s: float | None = None  # of the whole record; None: up to the moment it is appended
    started_offsets: NDArray[np.float32] | None = None  # (n,) seconds after `started`
    exit_codes: NDArray[np.int16] | None = None  # (n,) -N: killed by signal N; None: taken from `failures`
    tries: NDArray[np.uint8] | None = None  # (n,) application retries (exit codes 100 and 104)
    failures: tuple[Failure, ...] = ()
    worker: str = ""
    host: str = ""


class RangeRecord(Struct, frozen=True, kw_only=True):
    """One outcome (or `RESET`) for every task of a range. Its size does not depend on the length of the range."""

    instance: str
    lo: int
    hi: int
    outcome: int
    cause: str = ""
    tail: str = ""  # of a task that has killed its worker: what that said
    attempt: int = 1
    started: float | None = None  # None: the moment it is appended
    worker: str = ""
    host: str = ""


class EventRecord(Struct, frozen=True, kw_only=True):
    """An event of the run rather than of a task: it started, it stopped, a worker was lost …"""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)  # JSON
    time: float | None = None  # None: the moment it is appended
    worker: str = ""
    host: str = ""


Record = ChunkRecord | RangeRecord | EventRecord


def range_counts(outcome: int, length: int) -> tuple[int, int, int, int]:
    """The counts (ok, failed, skipped, interrupted) of a range with one outcome."""
    counts = [0, 0, 0, 0]
    if outcome <= Outcome.INTERRUPTED:
        counts[outcome] = length
    return counts[0], counts[1], counts[2], counts[3]
