"""When a study was at work: workers and tasks over its time, from the headers of the ledger's records.

A study that was stopped for a night and restarted has a pause; pauses are left out of the time that is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.ledger.replay import Replay
from merlin.plan.plan import Plan
from merlin.plan.tasks import Outcome

NUM_POINTS = 240
_PAUSE_S = 60.0  # so long without any work is a pause
_PAUSE_SHARE = 0.05  # and a pause takes at least this share of the time at work

Floats = NDArray[np.float64]


class Span(Struct, frozen=True, kw_only=True):
    """A time without a pause; epoch seconds."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start


class StepActivity(Struct, frozen=True, kw_only=True):
    """A step in each interval of the time at work: n numbers each."""

    busy: Floats  # workers at it, on average
    ok: Floats  # tasks that ended
    failed: Floats


class Activity(Struct, frozen=True, kw_only=True):
    """The spans one after another, cut into intervals of `width_s`."""

    spans: tuple[Span, ...]
    width_s: float
    steps: Mapping[str, StepActivity]  # in the order of the plan, those that have worked
    there: Floats  # workers that were there, at work or not

    @property
    def length_s(self) -> float:
        return sum(span.length_s for span in self.spans)

    @property
    def busy(self) -> Floats:
        """Workers at work, over all steps."""
        total: Floats = np.sum([step.busy for step in self.steps.values()], axis=0)
        return total


def activity(studies: Sequence[tuple[Plan, Replay]], *, until: float | None = None) -> Activity | None:
    """The activity of a study and its extensions; None if nothing has run. It reaches at least to `until`."""
    steps = dict.fromkeys(i.step for plan, _ in studies for i in plan.instances)
    by_step = {step: _records(studies, step) for step in steps}
    every = np.concatenate(list(by_step.values()))
    if not len(every):
        return None
    last = every[:, 1].max() if until is None else max(until, every[:, 1].max())
    spans = _spans(np.vstack([every[:, :2], [last, last]]))
    clock = _Clock(spans)
    edges = np.linspace(0.0, clock.length_s, NUM_POINTS + 1)
    width_s = clock.length_s / NUM_POINTS
    return Activity(
        spans=spans,
        width_s=width_s,
        steps={
            step: _of_step(records, clock, edges, width_s)
            for step, records in by_step.items()
            if len(records)
        },
        there=_spread(clock, edges, _presence([r for _, r in studies]), None) / width_s,
    )


def _records(studies: Sequence[tuple[Plan, Replay]], step: str) -> Floats:
    """Started, ended, ok, failed (n, 4) of the records of a step that took time."""
    rows = [
        (h.started, h.ended, h.counts[Outcome.OK], h.counts[Outcome.FAILED])
        for plan, replay in studies
        for instance in plan.instances
        if instance.step == step
        for h in (entry.header for entry in replay.entries(instance.id))
        if h.elapsed_s > 0
    ]
    return np.array(rows, np.float64).reshape(-1, 4)


def _presence(replays: Sequence[Replay]) -> Floats:
    """From when to when each worker was there (n, 2), as far as its records tell."""
    seen: dict[Any, float] = {}
    for replay in replays:
        for entry in replay.entries():
            if entry.header.elapsed_s > 0:
                seen[entry.writer] = max(seen.get(entry.writer, 0.0), entry.header.ended)
    return np.array([(writer.started, ended) for writer, ended in seen.items()], np.float64).reshape(-1, 2)


def _spans(times: Floats) -> tuple[Span, ...]:
    """The times at work (n, 2), joined except where there is a pause."""
    joined = _joined(times, _PAUSE_S)
    at_work_s = sum(span.length_s for span in joined)
    rows = np.array([(span.start, span.end) for span in joined])
    return _joined(rows, max(_PAUSE_S, _PAUSE_SHARE * at_work_s))


def _joined(times: Floats, most_s: float) -> tuple[Span, ...]:
    ordered = times[np.argsort(times[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    cuts = np.flatnonzero(ordered[1:, 0] > reach[:-1] + most_s) + 1
    firsts, lasts = np.r_[0, cuts], np.r_[cuts, len(ordered)] - 1
    return tuple(
        Span(start=float(ordered[first, 0]), end=float(max(reach[last], ordered[first, 0] + 1e-3)))
        for first, last in zip(firsts, lasts, strict=True)
    )


class _Clock:
    """Converts epoch seconds to seconds at work."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._times = np.array([t for span in spans for t in (span.start, span.end)])
        lengths = np.array([span.length_s for span in spans])
        ends = np.cumsum(lengths)
        self._at = np.column_stack([ends - lengths, ends]).ravel()
        self.length_s = float(ends[-1])

    def __call__(self, times: Floats) -> Floats:
        at: Floats = np.interp(times, self._times, self._at)
        return at


def _of_step(records: Floats, clock: _Clock, edges: Floats, width_s: float) -> StepActivity:
    times = records[:, :2]
    return StepActivity(
        busy=_spread(clock, edges, times, None) / width_s,
        ok=_spread(clock, edges, times, records[:, 2]),
        failed=_spread(clock, edges, times, records[:, 3]),
    )


def _spread(clock: _Clock, edges: Floats, times: Floats, weights: Floats | None) -> Floats:
    """What each interval gets of weights spread evenly over times (n, 2); by default, of their lengths."""
    starts, ends = clock(times[:, 0]), clock(times[:, 1])
    lengths = np.maximum(ends - starts, 1e-6)
    per_s = np.ones(len(times)) if weights is None else weights / lengths
    changes = np.r_[starts, starts + lengths]  # when the sum of `per_s` changes
    order = np.argsort(changes)
    at, pace = changes[order], np.cumsum(np.r_[per_s, -per_s][order])
    given = np.r_[0.0, np.cumsum(pace[:-1] * np.diff(at))]
    come = np.diff(np.interp(edges, at, given))
    # sums leave tiny values where there was nothing
    return np.where(come > 1e-9 * np.abs(come).sum(), come, 0.0)
