"""Where a study stands, from the headers of the ledger's records; no NumPy, no DuckDB, no HDF5."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.segments import has_many_records
from merlin.plan.failed_input import num_on_failed_input
from merlin.plan.outcome_counts import OutcomeCounts, summed
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.counts import Counts as SampleCounts
from merlin.shards.format.counts import counts_of as samples_of
from merlin.status.activity import NOBODY, Activity, LiveWorkers, of_holder
from merlin.status.eta import NOW, Estimate, Eta
from merlin.status.facts import LedgerFacts
from merlin.status.live import holder_of, last_sign
from merlin.status.remaining import Remaining, estimate_of
from merlin.status.run_events import EXECUTOR as EXECUTOR
from merlin.status.run_events import end_of_run as end_of_run
from merlin.status.run_events import is_published as is_published
from merlin.status.run_events import runs_of
from merlin.status.run_events import was_published as was_published
from merlin.status.tally import Tally, rate_of
from merlin.status.tally_facts import TallyFacts
from merlin.workspace.directory import Workspace

State = Literal["new", "running", "stalled", "unknown", "finished", "stopped", "failed"]

CANCELLED = "cancelled"  # the stop reason of a run that `merlin cancel` ended
KILLED = "killed"  # the stop reason of a run that left no word


class StepStatus(OutcomeCounts, frozen=True, kw_only=True):
    """Tasks of one step (or of the study) by outcome."""

    step: str  # "" for the study
    queue: str
    instances: int
    on_failed_input: int  # tasks that ran on failed input: the failure lets later tasks run
    running: int  # workers that were last seen at this step, while a run is alive: an estimate
    rate: float | None  # tasks per second that ended lately in the current or last run
    busy_s: float  # wall seconds that workers spent
    started: float | None  # epoch seconds of the first record
    ended: float | None  # epoch seconds of the last record
    eta: Eta | None  # None: not known, or nobody works on it


class DataSetStatus(Struct, frozen=True, kw_only=True):
    """A finished data set, with the samples that extensions have added."""

    aggregate: str  # id of the step instance
    path: str
    samples: SampleCounts


class Snapshot(Struct, frozen=True, kw_only=True):
    """A study at one moment.

    state: new (never run), running (somebody works on it, or would at once), stalled (it is to run, and nobody can),
    unknown (it is to run, and those who know of it cannot be asked), finished (all ok), failed (nothing missing but
    not all ok, or the run broke), stopped (tasks are missing and no run is alive).
    """

    name: str
    workspace: str
    state: State
    state_reason: str  # of `stalled` and `unknown`: why, and what to do
    stop_reason: str  # why the last run stopped early; "killed" if it left no word
    steps: tuple[StepStatus, ...]  # in the order of the plan
    totals: StepStatus
    num_workers: int  # chunks that the workers of the study run at a time
    started: float | None
    ended: float | None  # of the last activity
    elapsed_s: float
    eta: Eta | None
    damage: tuple[str, ...]  # places in the ledger that cannot be read
    ledger_bytes: int
    data_sets: tuple[DataSetStatus, ...]  # those that are finished; an extension's are its study's


def take_snapshot(workspace: Workspace, *, now: float | None = None) -> Snapshot:
    """Read the ledger's headers and count. Servers are not asked: a study on workers seems to be stopped."""
    facts = read_facts(workspace)
    at = time.time() if now is None else now
    return snapshot_of(workspace, facts, local_activity(workspace, facts, at), at)


def read_facts(workspace: Workspace) -> LedgerFacts:
    """The ledger of a workspace, as it is now."""
    if has_many_records(workspace.ledger_dir):
        from merlin.ledger.header_columns import NeedsCare  # NumPy
        from merlin.status.census import CensusFacts

        with suppress(NeedsCare):
            return CensusFacts(workspace.plan, workspace.ledger_dir)
    tally = Tally(replay(workspace.ledger_dir, workspace.plan), workspace.plan)
    facts = TallyFacts(tally)
    facts.update(tally.count())
    return facts


def local_activity(workspace: Workspace, facts: LedgerFacts, now: float) -> Activity:
    """Whether a command here, or on another machine of the file system, runs the study."""
    holder = holder_of(workspace, facts)
    if holder is None:
        return NOBODY
    return of_holder(
        holder,
        last_sign=None if holder.is_here else last_sign(workspace),
        longest_s=max((sums.longest_s for sums in facts.sums.values()), default=0.0),
        now=now,
    )


def snapshot_of(
    workspace: Workspace,
    ledger: LedgerFacts,
    activity: Activity,
    now: float,
    *,
    workers: LiveWorkers | None = None,
    step_jobs: Mapping[str, int] | None = None,
) -> Snapshot:
    """The snapshot of a ledger.

    `workers`: of a study that was published; `step_jobs`: batch jobs of steps, waiting or running, by step instance.
    """
    runs, is_live = runs_of(ledger.events()), activity.state == "running"
    starts = [event for event in runs if event.kind == "run_started"]
    facts = _Facts(
        workspace=workspace,
        ledger=ledger,
        on_failed_input=num_on_failed_input(workspace.plan, ledger),
        run_started=starts[-1].time if starts else None,
        now=now if is_live else None,
        workers=(workers or _local_workers(ledger, starts)) if is_live else _NO_WORKERS,
        step_jobs=step_jobs or {},
    )
    steps, totals = _counted(facts)
    state = _state(totals, activity, runs)
    started, ended = starts[0].time if starts else totals.started, _last_activity(runs, totals)
    return Snapshot(
        name=workspace.plan.name,
        workspace=str(workspace.path),
        state=state,
        state_reason=activity.reason if state in ("stalled", "unknown") else "",
        stop_reason=_stop_reason(runs) if activity.state == "none" and totals.missing else "",
        steps=steps,
        totals=totals,
        num_workers=facts.workers.num_slots,
        started=started,
        ended=ended,
        elapsed_s=_seconds(started, now if is_live else ended),
        eta=totals.eta,
        damage=tuple(str(d) for d in ledger.damage if not d.torn),
        ledger_bytes=ledger.size_bytes,
        data_sets=tuple(_data_sets(workspace, ledger.counts())),
    )


class _Facts(Struct, frozen=True, kw_only=True):
    """What is known of the study when its steps are looked at."""

    workspace: Workspace
    ledger: LedgerFacts
    on_failed_input: Mapping[str, int]  # step instance -> tasks
    run_started: float | None  # when the last run began
    now: float | None  # None: nobody works on it
    workers: LiveWorkers
    step_jobs: Mapping[str, int]  # by step instance


_NO_WORKERS = LiveWorkers(num_slots=0, running={})


def _local_workers(ledger: LedgerFacts, starts: list[EventRecord]) -> LiveWorkers:
    """The workers of a run on one machine: how many there are, and at what they were last seen."""
    num = int(starts[-1].data.get("workers", 0)) if starts else 0
    return LiveWorkers(num_slots=num, num_workers=num, running=ledger.last_seen())


def _counted(facts: _Facts) -> tuple[tuple[StepStatus, ...], StepStatus]:
    """The steps in the order of the plan, and their sum."""
    by_step = facts.workspace.plan.by_step()
    tasks = {step: _tasks(instances, facts) for step, instances in by_step.items()}
    estimate = _estimate(tasks, facts)
    steps = tuple(
        _step_status(step, instances, tasks[step], estimate.steps.get(step), facts)
        for step, instances in by_step.items()
    )
    return steps, _totals(steps, facts, estimate.study)


def _tasks(instances: list[StepInstance], facts: _Facts) -> dict[str, int]:
    """Tasks of a step by outcome, and how many run."""
    planned = sum(i.num_tasks for i in instances)
    ok, failed, skipped = (
        sum(facts.ledger.counts()[i.id].get(o, 0) for i in instances)
        for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)
    )
    missing = planned - ok - failed - skipped
    running = min(missing, sum(facts.workers.running.get(i.id, 0) for i in instances))
    return {
        "planned": planned, "ok": ok, "failed": failed, "skipped": skipped, "missing": missing, "running": running,
    }  # fmt: skip


def _estimate(tasks: Mapping[str, Mapping[str, int]], facts: _Facts) -> Estimate:
    if facts.now is None:
        steps = {step: None if found["missing"] else NOW for step, found in tasks.items()}
        return Estimate(steps=steps, study=None)
    return estimate_of(
        Remaining(
            plan=facts.workspace.plan,
            sums=facts.ledger.sums,
            recent=facts.ledger.recent,
            missing={step: found["missing"] for step, found in tasks.items()},
            running={step: found["running"] for step, found in tasks.items()},
            num_slots=facts.workers.num_slots,
            step_jobs=facts.step_jobs,
            run_started=facts.run_started,
            now=facts.now,
        )
    )


def _step_status(
    step: str, instances: list[StepInstance], tasks: Mapping[str, int], eta: Eta | None, facts: _Facts
) -> StepStatus:
    sums = [facts.ledger.sums[i.id] for i in instances]
    ended = max((s.ended for s in sums if s.ended is not None), default=None)
    recent = [facts.ledger.recent[i.id] for i in instances]
    until = ended if facts.now is None else facts.now
    return StepStatus(
        step=step,
        queue=instances[0].queue,
        instances=len(instances),
        **tasks,
        on_failed_input=sum(facts.on_failed_input.get(i.id, 0) for i in instances),
        rate=None if until is None else rate_of(recent, until, facts.run_started),
        busy_s=sum(s.busy_s for s in sums),
        started=min((s.started for s in sums if s.started is not None), default=None),
        ended=ended,
        eta=eta,
    )


def _totals(steps: tuple[StepStatus, ...], facts: _Facts, eta: Eta | None) -> StepStatus:
    sums = summed(steps)
    ended = max((step.ended for step in steps if step.ended is not None), default=None)
    until = ended if facts.now is None else facts.now
    recent = facts.ledger.recent.values()
    return StepStatus(
        step="",
        queue="",
        instances=len(facts.workspace.plan.instances),
        **sums,
        on_failed_input=sum(step.on_failed_input for step in steps),
        running=min(sums["missing"], facts.workers.num_slots),
        rate=None if until is None else rate_of(recent, until, facts.run_started),
        busy_s=sum(step.busy_s for step in steps),
        started=min((step.started for step in steps if step.started is not None), default=None),
        ended=ended,
        eta=eta if sums["missing"] else NOW,
    )


def _data_sets(workspace: Workspace, counts: Mapping[str, Mapping[int, int]]) -> Iterator[DataSetStatus]:
    """The finished data sets of a study, in the order of the plan; `counts`: tasks by outcome of every step instance.

    While samples run again, the old manifest is still there, but no longer agrees with the ledger.
    """
    for instance in workspace.plan.instances:
        if instance.kind is StepKind.MANIFEST and counts[instance.id].get(Outcome.OK) == instance.num_tasks:
            assert instance.finishes is not None
            directory = workspace.data_set_dir(workspace.instance(instance.finishes))
            if samples := samples_of(directory):
                yield DataSetStatus(aggregate=instance.finishes, path=str(directory), samples=samples)


def _state(totals: StepStatus, activity: Activity, runs: list[EventRecord]) -> State:
    if activity.state == "running" or (activity.state != "none" and totals.missing):
        return activity.state
    if not totals.missing:
        return "finished" if totals.ok == totals.planned else "failed"
    if not runs and not totals.done:
        return "new"
    return "failed" if runs and runs[-1].kind == "run_failed" else "stopped"


def _last_activity(runs: list[EventRecord], totals: StepStatus) -> float | None:
    return max([event.time or 0.0 for event in runs] + [totals.ended or 0.0]) or None


def _seconds(started: float | None, last: float | None) -> float:
    return 0.0 if started is None or last is None else max(0.0, last - started)


def _stop_reason(runs: list[EventRecord]) -> str:
    """What the last run said when it ended."""
    if not runs:
        return ""
    return KILLED if runs[-1].kind == "run_started" else str(runs[-1].data.get("reason", ""))
