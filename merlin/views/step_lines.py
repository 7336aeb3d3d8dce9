"""The steps of a study with its extensions, each summed over its instances and over the extensions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from merlin.plan.outcome_counts import OutcomeCounts, summed
from merlin.plan.plan import Plan, StepKind
from merlin.shards.format.counts import Counts as SampleCounts
from merlin.status.eta import Eta
from merlin.status.snapshot import Snapshot, StepStatus
from merlin.views.graph import graph_of
from merlin.views.training_runs import key_of


class StepLine(OutcomeCounts, frozen=True, kw_only=True):
    """Tasks of a step by outcome, over its instances and the study's extensions; of the study, if `step` is ""."""

    step: str
    kind: str  # cmd, function or aggregate; "" for the study
    queue: str
    instances: int
    running: int  # chunks on workers; an estimate for a run on one machine
    on_failed_input: int  # tasks that ran on failed input: the failure lets later tasks run
    filtered: int | None  # of an aggregate that has finished: samples that a `valid:` condition rejected
    rate: float | None  # tasks per second that ended in the last minute
    eta_s: float | None
    busy_s: float  # seconds that workers spent
    started: float | None
    ended: float | None


class StepEdge(Struct, frozen=True, kw_only=True):
    """`target` comes after `source`."""

    source: str
    target: str
    kind: str  # same, all or block


class DataSetLine(Struct, frozen=True, kw_only=True):
    """A finished data set."""

    key: str  # of the data set, in addresses; without slashes
    aggregate: str  # id of the step instance
    path: str
    samples: SampleCounts


class SamplesLine(Struct, frozen=True, kw_only=True):
    """The samples of the study, with its extensions'."""

    num: int
    columns: tuple[str, ...]


def step_lines(
    plans: Sequence[Plan], snapshots: Sequence[Snapshot], data_sets: Iterable[DataSetLine]
) -> tuple[StepLine, ...]:
    """A line for each step, in the order of the plan; a manifest counts with its aggregate, whose name it has."""
    kinds: dict[str, str] = {}
    steps_of: dict[str, str] = {}
    for plan in plans:
        for instance in plan.instances:
            steps_of[instance.id] = instance.step
            if instance.kind is not StepKind.MANIFEST:
                kinds.setdefault(instance.step, instance.kind.value)
    filtered: Counter[str] = Counter()
    for found in data_sets:
        filtered[steps_of[found.aggregate]] += found.samples.filtered
    by_step: dict[str, list[StepStatus]] = {}
    for snapshot in snapshots:
        for status in snapshot.steps:
            by_step.setdefault(status.step, []).append(status)
    return tuple(
        _line(statuses, kind=kinds[step], filtered=filtered.get(step)) for step, statuses in by_step.items()
    )


NOTHING = StepLine(
    step="", kind="", queue="", instances=0, running=0, on_failed_input=0, filtered=None, rate=None, eta_s=None,
    busy_s=0.0, started=None, ended=None,
)  # fmt: skip


def total_line(snapshots: Sequence[Snapshot]) -> StepLine:
    return _line([snapshot.totals for snapshot in snapshots], kind="", filtered=None)


def _line(statuses: Sequence[StepStatus], *, kind: str, filtered: int | None) -> StepLine:
    rates = [each.rate for each in statuses if each.rate is not None and each.missing] or [
        each.rate for each in statuses[-1:] if each.rate is not None
    ]
    eta = sum_of([each.eta for each in statuses])
    return StepLine(
        step=statuses[0].step,
        kind=kind,
        queue=statuses[0].queue,
        **summed(statuses),
        instances=sum(each.instances for each in statuses),
        running=sum(each.running for each in statuses),
        on_failed_input=sum(each.on_failed_input for each in statuses),
        filtered=filtered,
        rate=sum(rates) if rates else None,
        eta_s=None if eta is None else eta.mid_s,
        busy_s=sum(each.busy_s for each in statuses),
        started=min((each.started for each in statuses if each.started is not None), default=None),
        ended=max((each.ended for each in statuses if each.ended is not None), default=None),
    )


def sum_of(etas: Sequence[Eta | None]) -> Eta | None:
    """The time until all of these have ended, one after another; None if one of them is not known."""
    known = [eta for eta in etas if eta is not None]
    if len(known) < len(etas):
        return None
    return Eta(
        low_s=max((eta.low_s for eta in known), default=0.0),
        mid_s=sum(eta.mid_s for eta in known),
        high_s=sum(eta.high_s for eta in known),
        without=tuple(dict.fromkeys(step for eta in known for step in eta.without)),
    )


def step_edges(plan: Plan) -> tuple[StepEdge, ...]:
    """Which step comes after which."""
    return tuple(
        StepEdge(source=source, target=node.step, kind=kind)
        for node in graph_of(plan)
        for source, kind in node.after.items()
    )


def data_set_lines(snapshots: Iterable[Snapshot]) -> tuple[DataSetLine, ...]:
    """The finished data sets, each once: extensions add to those of their study."""
    found = {line.path: line for snapshot in snapshots for line in snapshot.data_sets}
    return tuple(
        DataSetLine(key=key_of(line.aggregate), aggregate=line.aggregate, path=path, samples=line.samples)
        for path, line in found.items()
    )


def samples_line(plans: Iterable[Plan]) -> SamplesLine | None:
    """All samples; None if the study has none."""
    known = [plan.samples for plan in plans if plan.samples is not None]
    return SamplesLine(num=sum(each.num for each in known), columns=known[0].labels) if known else None
