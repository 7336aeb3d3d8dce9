"""How long the rest of a study takes, as an interval. Pure.

All work is counted in seconds of slots: a slot runs one task of one core at a time. The work that is left, divided by
the slots at work, is its time; the wait for the last tasks of each step, when most slots are idle, is added.

    low   every slot is at work all the time, the tasks are short, and those that run now are nearly done
    mid   as many slots are at work as in the last minutes, and the tasks take what they took so far
    high  as few slots are at work as in the last minutes or in the whole run, the tasks are long, and each step ends
          with as long a wait as any of its records took

Samples that grow slower than all before them, workers that will come or go, and the delay of tasks that asked to run
again, are not foreseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

SURE = 2.0  # standard deviations on both sides: nine of ten forecasts hold, also where a few tasks take very long


class Eta(Struct, frozen=True, kw_only=True):
    """Seconds from now on until the end; low_s <= mid_s <= high_s."""

    low_s: float
    mid_s: float
    high_s: float
    # steps whose time is not in it: no task of theirs, or of a step that they wait for, has shown yet how long it takes
    without: tuple[str, ...] = ()


NOW = Eta(low_s=0.0, mid_s=0.0, high_s=0.0)


class Cost(Struct, frozen=True, kw_only=True):
    """How long the tasks of a step took."""

    num: int  # tasks that have ended
    mean_s: float
    deviation_s: float  # standard deviation of single tasks
    longest_s: float  # the longest time that a worker held tasks before it reported them


class Slots(Struct, frozen=True, kw_only=True):
    """The slots that work; see `slots_at_work`. Without slots, nobody works."""

    num: int
    usual: float = math.inf  # at work on average, in the last minutes
    slow: float = math.inf  # the lesser of `usual` and the average over the run


class StepWork(Struct, frozen=True, kw_only=True):
    """What is left of one step."""

    step: str
    missing: int
    running: int = 0  # of those that are missing
    cost: Cost | None = None  # None: no task has ended
    slots_per_task: int = 1
    # steps that this one waits for: for their end (`after`), or for their task of the same sample (`along`)
    after: frozenset[str] = frozenset()
    along: frozenset[str] = frozenset()
    own_slots: Slots | None = None  # its tasks run in batch jobs, beside those of the others


class Estimate(Struct, frozen=True, kw_only=True):
    """The time to go; None where it is not known: nobody works, or no task has shown yet how long it takes."""

    steps: Mapping[str, Eta | None]
    study: Eta | None


def slots_at_work(num: int, lately: float | None, in_all: float | None) -> Slots:
    """Of `num` slots, `lately` and `in_all` were at work on average; None: not known."""
    known = [min(float(num), each) for each in (lately, in_all) if each is not None and each > 0]
    return Slots(num=num, usual=known[0], slow=min(known)) if known else Slots(num=num)


def estimate(steps: Sequence[StepWork], slots: Slots) -> Estimate:
    """The time to go of each step and of all; a step stands after those that it waits for."""
    found: dict[str, _Outlook] = {}
    before = _all_before(steps)
    known = _known(steps, before, slots)
    for step in steps:
        if step.step in known and step.missing:
            found[step.step] = _outlook(step, known, before, found, slots)
    etas = {s.step: found[s.step].eta if s.missing and s.step in found else None for s in steps}
    etas |= {s.step: NOW for s in steps if not s.missing}
    without = tuple(s.step for s in steps if s.missing and s.step not in found)
    return Estimate(steps=etas, study=_study(known, found, without, slots))


class _Outlook(Struct, frozen=True):
    """A step's end, and the waits at the ends of it and of the steps before it."""

    eta: Eta
    tail_s: float


def _all_before(steps: Sequence[StepWork]) -> dict[str, frozenset[str]]:
    """What each step waits for, also indirectly, through other steps."""
    before: dict[str, frozenset[str]] = {}
    for step in steps:
        direct = step.after | step.along
        before[step.step] = direct.union(*(before.get(name, frozenset()) for name in direct))
    return before


def _known(
    steps: Sequence[StepWork], before: Mapping[str, frozenset[str]], slots: Slots
) -> dict[str, StepWork]:
    """The steps whose time is known: they and all steps before them have ended, or have slots and a cost."""

    def is_told(step: StepWork) -> bool:
        return not step.missing or (step.cost is not None and _of(step, slots).num > 0)

    told = {step.step for step in steps if is_told(step)}
    names = {step.step for step in steps}
    return {s.step: s for s in steps if s.step in told and (before[s.step] & names) <= told}


def _of(step: StepWork, slots: Slots) -> Slots:
    return slots if step.own_slots is None else step.own_slots


def _work(step: StepWork) -> tuple[float, float, float]:
    """Low, mid and high seconds of slots that are left."""
    if step.cost is None or not step.missing:
        return 0.0, 0.0, 0.0
    cost = step.cost
    # tasks differ from each other, and their true mean is only estimated, from the tasks that ended
    doubt_s = SURE * cost.deviation_s * math.sqrt(step.missing + step.missing**2 / cost.num)
    mid_s, begun_s = step.missing * cost.mean_s, min(step.running, step.missing) * cost.mean_s
    low, mid, high = max(0.0, mid_s - doubt_s - begun_s), mid_s, mid_s + doubt_s
    return low * step.slots_per_task, mid * step.slots_per_task, high * step.slots_per_task


def _outlook(
    step: StepWork,
    known: Mapping[str, StepWork],
    before: Mapping[str, frozenset[str]],
    found: Mapping[str, _Outlook],
    slots: Slots,
) -> _Outlook:
    """The end of a step; the ends of the steps before it are in `found` already."""
    assert step.cost is not None
    first = [known[name] for name in before[step.step] if name in known]
    beside = [
        o for o in known.values() if o.step not in before[step.step] and step.step not in before[o.step]
    ]
    beside = [other for other in beside if other is not step]
    low_s = max([_time(0, [*first, step], slots), *(found[o.step].eta.low_s for o in first if o.missing)])
    tail_s = step.cost.longest_s + max((found[o.step].tail_s for o in first if o.missing), default=0.0)
    mid_s = max(low_s, _mid_s(step, first, beside, found, slots))
    high_s = max(mid_s, _time(2, [*first, *beside, step], slots) + tail_s)
    return _Outlook(Eta(low_s=low_s, mid_s=mid_s, high_s=high_s), tail_s)


def _mid_s(
    step: StepWork, first: list[StepWork], beside: list[StepWork], found: Mapping[str, _Outlook], slots: Slots
) -> float:
    """The likely end: after the steps before it, while the steps beside it take their share of the slots."""
    assert step.cost is not None
    one_s, usual = step.cost.mean_s, min(_of(step, slots).usual, _of(step, slots).num)
    ends = {o.step: found[o.step].eta.mid_s for o in first if o.missing}
    alone_s = max(one_s, _work(step)[1] / usual)
    waits = [ends[name] + alone_s for name in step.after if name in ends]
    waits += [ends[name] + one_s for name in step.along if name in ends]
    if step.own_slots is not None:
        return max([alone_s, *waits])
    line = sum(_work(each)[1] for each in [*first, step] if each.own_slots is None)
    shared = sum(min(line, _work(other)[1]) for other in beside if other.own_slots is None)
    return max([alone_s, (line + shared) / usual, *waits])


def _time(which: int, steps: Iterable[StepWork], slots: Slots) -> float:
    """Seconds in which slots do the low (0), mid (1) or high (2) work of steps; batch jobs run at the same time."""
    shared, own = 0.0, [0.0]
    for step in steps:
        if step.own_slots is None:
            shared += _work(step)[which]
        elif step.missing:
            own.append(_work(step)[which] / _speed(which, step.own_slots))
    pooled = shared / _speed(which, slots) if shared else 0.0
    return pooled + sum(own) if which == 2 else max(pooled, *own)


def _speed(which: int, slots: Slots) -> float:
    """Slots at work, for the low (0), mid (1) or high (2) time."""
    usual = min(slots.usual, slots.num)
    return (float(slots.num), usual, min(usual, slots.slow))[which]


def _study(
    known: Mapping[str, StepWork], found: Mapping[str, _Outlook], without: tuple[str, ...], slots: Slots
) -> Eta | None:
    """The end of the last step."""
    if not found:
        return None if without else NOW
    steps = known.values()
    low_s = max([_time(0, steps, slots), *(o.eta.low_s for o in found.values())])
    mid_s = max([low_s, _time(1, steps, slots), *(o.eta.mid_s for o in found.values())])
    tail_s = max(o.tail_s for o in found.values())
    high_s = max([mid_s, _time(2, steps, slots) + tail_s, *(o.eta.high_s for o in found.values())])
    return Eta(low_s=low_s, mid_s=mid_s, high_s=high_s, without=without)
