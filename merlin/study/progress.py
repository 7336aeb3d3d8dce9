"""What keeps the progress of a run: who runs what, what is ready, what has ended.

Two implementations pass one contract suite (`merlin.testing.progress`): `Scheduler` keeps it in the memory of one
process, `RedisProgress` in a Redis that any number of workers share. The ledger outranks both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from merlin.study.schedule import Counts, Verdict
from merlin.study.tasks import Chunk, ChunkResult

Run = tuple[int, int, int]


class Progress(Protocol):
    """The progress of one run of a study.

    A chunk that `take` returns carries a lease. Whoever holds it calls `finished`, `lost` or `give_back` once, and
    `beat` more often than the lease is long. These return False, and change nothing, when the lease is not held
    any more: somebody else has taken the chunk over. An implementation whose answers may get lost remembers the
    reports that it accepted for a while, and answers the same one again with True. Times are seconds on one clock
    of the implementation.
    """

    def take(self, now: float, instance: str | None = None, *, worker: str = "") -> Chunk | None:
        """The next chunk to run (of `instance`), or None when nothing is ready or the study stops."""

    def finished(self, result: ChunkResult, now: float) -> bool:
        """The holder has ended the chunk; tasks it does not report are run again."""

    def lost(
        self,
        chunk: Chunk,
        done: Iterable[Run],
        now: float,
        *,
        signal: str = "",
        infrastructure: bool = False,
    ) -> bool:
        """The chunk's worker is gone; `done` is what it left in the ledger for this attempt.

        What it did not end is split in halves, down to single tasks. A task that alone kills its worker
        `crash_limit` times has failed; with `infrastructure` (the lease ran out, the machine is gone) one that was
        alone in its chunk `LOSS_LIMIT` times.
        """

    def give_back(self, chunk: Chunk) -> bool:
        """The chunk was not started; it waits again as it was."""

    def beat(self, chunks: Iterable[Chunk], now: float) -> list[Chunk]:
        """Renew the leases of chunks that run; returns those that are not held any more."""

    def expired(self, now: float) -> list[Chunk]:
        """Take over chunks whose lease ran out, under new leases; call `lost` for each of them."""

    def stop(self, reason: str, *, now: bool = False) -> None:
        """Hand out nothing more; with `now`, running tasks are to be interrupted. The first reason stays."""

    @property
    def stop_reason(self) -> str:
        """Why the study stops, "" while it does not."""

    @property
    def stop_now(self) -> bool:
        """Running tasks are to be interrupted, too."""

    def verdicts(self) -> list[Verdict]:
        """Outcomes decided here and not yet `written`; write them into the ledger, at least once."""

    def written(self, verdicts: Sequence[Verdict]) -> None:
        """The ledger has these verdicts; forget them."""

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, if one waits."""

    def counts(self) -> Mapping[str, Counts]:
        """Tasks by state, per step instance."""

    @property
    def is_complete(self) -> bool:
        """Every task has an outcome."""

    @property
    def num_running(self) -> int:
        """Chunks handed out and not ended."""
