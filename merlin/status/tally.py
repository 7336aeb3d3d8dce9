"""A study's numbers, kept up while its ledger grows: what has been counted is not counted again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from merlin.base.ranges import merged
from merlin.ledger.replay import LedgerEntry, Replay
from merlin.plan.plan import Plan
from merlin.plan.runs import RunMap
from merlin.plan.tasks import Outcome
from merlin.status.eta import Cost

RATE_WINDOW_S = 60
_KEEP_S = 2 * RATE_WINDOW_S
_MAX_SECONDS = 10 * _KEEP_S  # so many seconds are kept before the old ones are thrown away


class Sums(Struct):
    """What the records of a step instance add up to."""

    num_records: int = 0
    counts: dict[int, int] = field(default_factory=dict)  # Outcome or NO_OUTCOME -> tasks
    started: float | None = None  # epoch seconds of the first record
    ended: float | None = None  # … and of the end of the last one
    busy_s: float = 0.0  # wall seconds that workers spent
    num_ran: int = 0  # tasks that ended ok or failed in these seconds; a task that ran again counts again
    num_timed: int = 0  # records with such tasks
    squares: float = 0.0  # the sum of seconds² / tasks over these records
    longest_s: float = 0.0  # the longest of these records

    def add(self, entry: LedgerEntry) -> None:
        """Add the header of a record, but not to `counts`: these need the other records of the same tasks."""
        header = entry.header
        ended = header.started + header.elapsed_s
        self.num_records += 1
        self.started = header.started if self.started is None else min(self.started, header.started)
        self.ended = ended if self.ended is None else max(self.ended, ended)
        if header.elapsed_s > 0:
            num = header.counts[Outcome.OK] + header.counts[Outcome.FAILED]
            self.busy_s += header.elapsed_s
            self.num_ran += num
            if num:
                self.num_timed += 1
                self.squares += header.elapsed_s**2 / num
                self.longest_s = max(self.longest_s, header.elapsed_s)


def cost_of_sums(sums: Iterable[Sums]) -> Cost | None:
    """The cost of a step's tasks; None without a task.

    The averages of records are taken to vary as averages of so many single tasks do. With few records, tasks are taken
    to differ by as much as their mean time.
    """
    timed = [each for each in sums if each.num_timed]
    if not timed:
        return None
    num, busy_s = sum(s.num_ran for s in timed), sum(s.busy_s for s in timed)
    mean_s = busy_s / num
    squares = max(0.0, sum(s.squares for s in timed) - mean_s * busy_s)
    num_timed = sum(s.num_timed for s in timed)
    return Cost(
        num=num,
        mean_s=mean_s,
        deviation_s=math.sqrt((squares + mean_s**2) / num_timed),
        longest_s=max(s.longest_s for s in timed),
    )


class _Second(Struct):
    num: int = 0  # tasks that ended
    started: float = math.inf  # when the first of their records began
    busy_s: float = 0.0


class Recent:
    """Tasks that ended lately, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, _Second] = {}
        self.kept_since = -math.inf  # epoch seconds: what ended before is not known any more

    def add(self, entry: LedgerEntry) -> None:
        header = entry.header
        if header.elapsed_s <= 0:
            return
        num = header.counts[Outcome.OK] + header.counts[Outcome.FAILED]
        self.add_second(int(header.started + header.elapsed_s), num, header.started, header.elapsed_s)

    def add_second(self, at: int, num: float, started: float, busy_s: float) -> None:
        """Add tasks that ended in the second `at`, by records of which the first began at `started`."""
        second = self._seconds.setdefault(at, _Second())
        second.num += int(num)
        second.started = min(second.started, started)
        second.busy_s += busy_s
        if len(self._seconds) > _MAX_SECONDS:
            oldest = self.kept_since = max(self._seconds) - _KEEP_S
            self._seconds = {at: found for at, found in self._seconds.items() if at >= oldest}

    def since(self, begin: float) -> Iterator[_Second]:
        return (second for at, second in self._seconds.items() if at >= math.floor(begin))


def rate_of(recents: Iterable[Recent], until: float, run_started: float | None) -> float | None:
    """Tasks per second that ended in the last minute before `until`, and since `run_started`; None: none ended."""
    since = max(until - RATE_WINDOW_S, run_started or 0.0)
    seconds = [second for recent in recents for second in recent.since(since)]
    if not seconds:
        return None
    since = max(since, min(second.started for second in seconds))
    return sum(second.num for second in seconds) / (until - since) if until > since else None


def seen_in_newest_run(last: Iterable[LedgerEntry]) -> dict[str, int]:
    """Step instance -> how many of these last records of workers are about it, of those of the newest run."""
    found = list(last)
    if not found:
        return {}
    session = max(found, key=lambda entry: entry.writer.started).writer.session
    return Counter(entry.header.instance for entry in found if entry.writer.session == session)


class Tally:
    """The numbers of every step instance of one replay. Only one thread uses it, and nobody else updates the replay."""

    def __init__(self, state: Replay, plan: Plan) -> None:
        self.state, self._instances = state, [instance.id for instance in plan.instances]
        self._clear()

    def _clear(self) -> None:
        self.generation, self._num_records = self.state.generation, -1
        self.sums = {instance: Sums() for instance in self._instances}
        self.recent = {instance: Recent() for instance in self._instances}
        self._maps: dict[str, RunMap] = {}

    def update(self) -> list[LedgerEntry]:
        """Read what was appended to the ledger, and count it; returns the new records. Raises LedgerError."""
        self.state.update()
        return self.count()

    def count(self) -> list[LedgerEntry]:
        """Count what was read of the ledger; returns the new records.

        Where segments were replaced, everything is counted anew: `generation` is another one, and all records are new.
        """
        if self.state.generation != self.generation:
            self._clear()
        if self.state.num_records == self._num_records:
            return []
        new: list[LedgerEntry] = []
        for instance, sums in self.sums.items():
            entries = self.state.entries(instance, sums.num_records)
            if entries or instance not in self._maps:
                self._count(instance, sums, entries)
                new += entries
        self._num_records = self.state.num_records
        return new

    def _count(self, instance: str, sums: Sums, entries: list[LedgerEntry]) -> None:
        before = self._maps.get(instance)
        spans = merged((e.header.lo, e.header.hi) for e in entries) if before is not None else []
        old = _counts_in(before, spans) if before is not None else {}
        now = self._maps[instance] = self.state.outcomes_of(instance)
        if before is None:
            sums.counts = now.counts()
        else:
            for value, num in _counts_in(now, spans).items():
                sums.counts[value] = sums.counts.get(value, 0) + num
            for value, num in old.items():
                sums.counts[value] -= num
        recent = self.recent[instance]
        for entry in entries:
            sums.add(entry)
            recent.add(entry)

    def outcomes_of(self, instance: str) -> RunMap:
        """The outcome of every task, as of the last update. Callers must not change the map."""
        return self._maps[instance]


def _counts_in(outcomes: RunMap, spans: Iterable[tuple[int, int]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for lo, hi in spans:
        for a, b, value in outcomes.runs(lo, hi):
            counts[value] = counts.get(value, 0) + b - a
    return counts
