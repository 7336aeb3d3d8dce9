"""How many tasks ended when: bars for each step, from the headers of the ledger's records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from merlin.ledger.replay import LedgerEntry
from merlin.plan.tasks import Outcome

NUM_POINTS = 240
_FINEST_S = 0.125


class StepThroughput(Struct, frozen=True, kw_only=True):
    """Tasks that ended in each interval; a task that ran again has ended twice."""

    ok: tuple[int, ...]
    failed: tuple[int, ...]


class Throughput(Struct, frozen=True, kw_only=True):
    """Intervals from the begin of the first record to the end of the last.

    Interval i is [start + i * width_s, start + (i + 1) * width_s).
    """

    start: float  # epoch seconds
    width_s: float
    steps: Mapping[str, StepThroughput]  # in the order of the plan; each as long as the others


class ThroughputBars:
    """Counts ends of tasks as records come in. When the study outgrows the bars, neighbours merge."""

    def __init__(self, steps: Mapping[str, str], num_points: int = NUM_POINTS) -> None:
        """`steps`: step instance -> step."""
        self._steps, self._num_points = steps, num_points
        self._width_s = _FINEST_S  # doubles, so that neighbours always merge
        self._first, self._last = math.inf, -math.inf  # numbers of the intervals that have ends
        names = dict.fromkeys(steps.values())
        self._ok: dict[str, Counter[int]] = {step: Counter() for step in names}
        self._failed: dict[str, Counter[int]] = {step: Counter() for step in names}

    def add(self, entries: Iterable[LedgerEntry]) -> None:
        """Count the tasks of these records, evenly over the time that each record took."""
        for entry in entries:
            header = entry.header
            ok, failed = header.counts[Outcome.OK], header.counts[Outcome.FAILED]
            if ok or failed:
                began, ended = header.started, header.ended
                self._make_room(began, ended)
                bars = range(math.floor(began / self._width_s), math.floor(ended / self._width_s) + 1)
                step = self._steps[header.instance]
                _spread(self._ok[step], bars, ok)
                _spread(self._failed[step], bars, failed)

    def _make_room(self, began: float, ended: float) -> None:
        """Widen the bars until they hold this time, too."""
        while True:
            first = min(self._first, math.floor(began / self._width_s))
            last = max(self._last, math.floor(ended / self._width_s))
            if last - first < self._num_points:
                self._first, self._last = first, last
                return
            self._widen()

    def _widen(self) -> None:
        self._width_s *= 2
        if self._first <= self._last:
            self._first, self._last = self._first // 2, self._last // 2
        for bars in (*self._ok.values(), *self._failed.values()):
            pairs = list(bars.items())
            bars.clear()
            for at, num in pairs:
                bars[at // 2] += num

    def throughput(self) -> Throughput:
        if self._last < self._first:
            none = StepThroughput(ok=(), failed=())
            return Throughput(start=0.0, width_s=self._width_s, steps=dict.fromkeys(self._ok, none))
        every = range(int(self._first), int(self._last) + 1)
        return Throughput(
            start=self._first * self._width_s,
            width_s=self._width_s,
            steps={
                step: StepThroughput(
                    ok=tuple(self._ok[step][at] for at in every),
                    failed=tuple(self._failed[step][at] for at in every),
                )
                for step in self._ok
            },
        )


def _spread(bars: Counter[int], over: range, num: int) -> None:
    """Add `num` evenly to some of the bars; the last of them gets one in any case."""
    before = 0
    for i, at in enumerate(over, start=1):
        upto = num * i // len(over)
        if upto > before:
            bars[at] += upto - before
            before = upto
