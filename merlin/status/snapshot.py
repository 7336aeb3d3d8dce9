"""Where a study stands, from the headers of the ledger's records; no NumPy, no DuckDB, no HDF5."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Counts, LedgerEntry, Replay, replay
from merlin.plan.failed_input import num_on_failed_input
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.counts import Counts as SampleCounts
from merlin.shards.format.counts import counts_of as samples_of
from merlin.status.live import is_live
from merlin.workspace.directory import Workspace

State = Literal["new", "running", "finished", "stopped", "failed"]

RATE_WINDOW_S = 60.0
EXECUTOR = "celery"  # in the event of a run that was published
CANCELLED = "cancelled"  # the stop reason of a run that `merlin cancel` ended
_SUMMED = ("planned", "ok", "failed", "skipped", "missing", "on_failed_input")
KILLED = "killed"  # the stop reason of a run that left no word


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkers:
    """The workers of a run on many machines, as the servers know them; a run on one machine has a lock instead."""

    num_slots: int  # chunks that they run at a time
    running: Mapping[str, int]  # step instance -> chunks
    idle_queues: tuple[str, ...] = ()  # with tasks that could run, and no worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """Tasks of one step (or of the study) by outcome: planned = ok + failed + skipped + missing."""

    step: str  # "" for the study
    queue: str
    instances: int
    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int
    on_failed_input: int  # of those that ran: tasks that depend on a failure which let them
    running: int  # workers that were last seen at this step, while a run is alive: an estimate
    rate: float | None  # tasks per second that ended lately in the current or last run
    busy_s: float  # wall seconds that workers spent
    started: float | None  # epoch seconds of the first record
    ended: float | None  # epoch seconds of the last record
    eta_s: float | None  # until nothing is missing, at the pace so far; None: unknown, or no run

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetStatus:
    """A finished data set, with the samples that extensions have added."""

    aggregate: str  # id of the step instance
    path: str
    samples: SampleCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A study at one moment.

    state: new (never run), running, finished (all ok), failed (nothing missing but not all ok, or the run
    broke), stopped (tasks are missing and no run is alive).
    """

    name: str
    workspace: str
    state: State
    stop_reason: str  # why the last run stopped early; "killed" if it left no word
    steps: tuple[StepStatus, ...]  # in the order of the plan
    totals: StepStatus
    num_workers: int  # of the live run
    started: float | None
    ended: float | None  # of the last activity
    elapsed_s: float
    eta_s: float | None
    damage: tuple[str, ...]  # places in the ledger that cannot be read
    ledger_bytes: int
    data_sets: tuple[DataSetStatus, ...]  # those that are finished; an extension's are its study's


def take_snapshot(workspace: Workspace, *, now: float | None = None) -> Snapshot:
    """Read the ledger's headers and count."""
    state = replay(workspace.ledger_dir, workspace.plan)
    return snapshot_of(workspace, state, is_live(workspace), time.time() if now is None else now)


def snapshot_of(
    workspace: Workspace, state: Replay, live: bool, now: float, *, workers: LiveWorkers | None = None
) -> Snapshot:
    """The snapshot of a replay; `live` says that a run holds the workspace or workers have the study."""
    plan, events = workspace.plan, state.events()
    facts = _Facts(
        state=state,
        counts=state.counts(),
        on_failed_input=num_on_failed_input(plan, state),
        starts=[event for event in events if event.kind == "run_started"],
        now=now if live else None,
        workers=workers or _local_workers(state, live),
    )
    by_step: dict[str, list[StepInstance]] = {}
    for instance in plan.instances:
        by_step.setdefault(instance.step, []).append(instance)
    steps = tuple(_step_status(step, instances, facts) for step, instances in by_step.items())
    totals = _totals(steps, len(plan.instances), facts)
    started = facts.starts[0].time if facts.starts else totals.started
    ended = max([e.time or 0.0 for e in events] + [totals.ended or 0.0], default=0.0) or None
    last = now if live else ended
    return Snapshot(
        name=plan.name,
        workspace=str(workspace.path),
        state=_state(totals, live, events),
        stop_reason="" if live or not totals.missing else _stop_reason(events),
        steps=steps,
        totals=totals,
        num_workers=facts.workers.num_slots,
        started=started,
        ended=ended,
        elapsed_s=max(0.0, last - started) if last is not None and started is not None else 0.0,
        eta_s=totals.eta_s,
        damage=tuple(str(d) for d in state.damage if not d.torn),
        ledger_bytes=state.size_bytes,
        data_sets=tuple(_data_sets(workspace, facts.counts)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known of the study when its steps are looked at."""

    state: Replay
    counts: Mapping[str, Counts]
    on_failed_input: Mapping[str, int]  # step instance -> tasks
    starts: list[EventRecord]  # of the runs
    now: float | None  # None: no run is alive
    workers: LiveWorkers


def _local_workers(state: Replay, live: bool) -> LiveWorkers:
    """The workers of a run on one machine: how many there are, and at what they were last seen."""
    if not live:
        return LiveWorkers(num_slots=0, running={})
    starts = [event for event in state.events() if event.kind == "run_started"]
    num = int(starts[-1].data.get("workers", 0)) if starts else 0
    return LiveWorkers(num_slots=num, running=_last_seen(state))


def _step_status(step: str, instances: list[StepInstance], facts: _Facts) -> StepStatus:
    planned = sum(i.num_tasks for i in instances)
    ok, failed, skipped = (
        sum(facts.counts[i.id].get(o, 0) for i in instances)
        for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    )
    pace = _pace([e for i in instances for e in facts.state.entries(i.id)], facts)
    missing = planned - ok - failed - skipped
    cost = pace.busy_s / pace.num_ended if pace.num_ended else None
    eta_s = None
    if facts.now is not None and facts.workers.num_slots and (cost is not None or not missing):
        eta_s = missing * (cost or 0.0) / facts.workers.num_slots
    return StepStatus(
        step=step,
        queue=instances[0].queue,
        instances=len(instances),
        planned=planned,
        ok=ok,
        failed=failed,
        skipped=skipped,
        missing=missing,
        on_failed_input=sum(facts.on_failed_input.get(i.id, 0) for i in instances),
        running=min(missing, sum(facts.workers.running.get(i.id, 0) for i in instances)),
        rate=pace.rate,
        busy_s=pace.busy_s,
        started=pace.started,
        ended=pace.ended,
        eta_s=eta_s,
    )


def _totals(steps: tuple[StepStatus, ...], num_instances: int, facts: _Facts) -> StepStatus:
    sums = {name: sum(getattr(step, name) for step in steps) for name in _SUMMED}
    etas = [step.eta_s for step in steps if step.eta_s is not None]
    return StepStatus(
        step="",
        queue="",
        instances=num_instances,
        **sums,
        running=min(sums["missing"], facts.workers.num_slots),
        rate=_pace(facts.state.entries(), facts).rate,
        busy_s=sum(step.busy_s for step in steps),
        started=min((step.started for step in steps if step.started is not None), default=None),
        ended=max((step.ended for step in steps if step.ended is not None), default=None),
        eta_s=sum(etas) if etas and any(step.busy_s for step in steps) else None,
    )


@dataclass(slots=True)
class _Pace:
    """What records say about time."""

    busy_s: float = 0.0
    num_ended: int = 0
    started: float | None = None
    ended: float | None = None
    rate: float | None = None


def _pace(entries: list[LedgerEntry], facts: _Facts) -> _Pace:
    """Busy time, first and last record, and the rate over the last minute of the current or last run."""
    pace = _Pace()
    headers = [e.header for e in entries]
    if not headers:
        return pace
    pace.started = min(h.started for h in headers)
    pace.ended = max(h.started + h.elapsed_s for h in headers)
    ran = [
        (h.started + h.elapsed_s, h.started, h.counts[0] + h.counts[1]) for h in headers if h.elapsed_s > 0
    ]
    pace.busy_s = sum(ended - started for ended, started, _ in ran)
    pace.num_ended = sum(num for _, _, num in ran)
    until = pace.ended if facts.now is None else facts.now
    run_started = facts.starts[-1].time if facts.starts else None
    since = max(until - RATE_WINDOW_S, run_started or 0.0)
    recent = [(started, num) for ended, started, num in ran if ended >= since]
    if recent:
        since = max(since, min(started for started, _ in recent))
        if until > since:
            pace.rate = sum(num for _, num in recent) / (until - since)
    return pace


def _last_seen(state: Replay) -> dict[str, int]:
    """Step instance -> workers whose last record was about it, in the current run."""
    last: dict[str, LedgerEntry] = {}
    for entry in state.entries():
        if entry.header.elapsed_s > 0:
            last[entry.segment.path.name] = entry
    if not last:
        return {}
    session = max(last.values(), key=lambda e: e.writer.started).writer.session
    seen: dict[str, int] = {}
    for entry in last.values():
        if entry.writer.session == session:
            seen[entry.header.instance] = seen.get(entry.header.instance, 0) + 1
    return seen


def _data_sets(workspace: Workspace, counts: Mapping[str, Counts]) -> Iterator[DataSetStatus]:
    """The finished data sets of a study, in the order of the plan; `counts`: tasks by outcome of every step instance.

    While samples run again, the manifest of before is still there, and not what the ledger says any more.
    """
    for instance in workspace.plan.instances:
        if instance.kind is StepKind.MANIFEST and counts[instance.id].get(Outcome.OK) == instance.num_tasks:
            assert instance.finishes is not None
            directory = workspace.data_set_dir(workspace.instance(instance.finishes))
            if samples := samples_of(directory):
                yield DataSetStatus(aggregate=instance.finishes, path=str(directory), samples=samples)


def _state(totals: StepStatus, live: bool, events: list[EventRecord]) -> State:
    if live:
        return "running"
    if not totals.missing:
        return "finished" if totals.ok == totals.planned else "failed"
    if not events and not totals.done:
        return "new"
    return "failed" if events and events[-1].kind == "run_failed" else "stopped"


def is_published(state: Replay) -> bool:
    """True if the last run was handed to workers on other machines, and has not ended as far as they reported."""
    runs = _runs(state.events())
    return bool(runs) and runs[-1].kind == "run_started" and runs[-1].data.get("executor") == EXECUTOR


def end_of_run(state: Replay) -> str | None:
    """Why the last run ended before its end, as it said itself; None if it did not."""
    runs = _runs(state.events())
    return str(runs[-1].data.get("reason", "")) if runs and runs[-1].kind == "run_stopped" else None


def was_published(state: Replay) -> bool:
    """True if the last run was handed to workers on other machines, even if it has ended."""
    starts = [e for e in state.events() if e.kind == "run_started"]
    return bool(starts) and starts[-1].data.get("executor") == EXECUTOR


def _stop_reason(events: list[EventRecord]) -> str:
    """What the last run said when it ended."""
    runs = _runs(events)
    if not runs:
        return ""
    return KILLED if runs[-1].kind == "run_started" else str(runs[-1].data.get("reason", ""))


def _runs(events: list[EventRecord]) -> list[EventRecord]:
    """The events that say how runs began and ended."""
    return [event for event in events if event.kind.startswith("run_")]
