"""What a study has cost: core-hours by step, which of them were of no use and why, and what was held but idle."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from merlin.base.ranges import mark
from merlin.execution.conductor import UPDATER
from merlin.execution.job_folder import WORKER_PREFIX
from merlin.ledger.encode import array_block, outcomes_of, read_blocks
from merlin.ledger.format import BlockId, Kind, Writer
from merlin.ledger.records import RESET
from merlin.ledger.replay import LedgerEntry, Ranges, Replay, replay
from merlin.ledger.segments import lineage
from merlin.plan.durations import walltime_s
from merlin.plan.fit import need_of
from merlin.plan.job_policy import job_policy, job_request
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.live import is_live
from merlin.status.snapshot import EXECUTOR
from merlin.views.allocation_cost import HOUR_S, AllocationCost, Spell, allocation_costs
from merlin.workspace.directory import (
    EXTENSIONS_DIR,
    REVISIONS_DIR,
    Workspace,
    is_workspace,
    ledger_of,
    open_workspace,
    shown_together,
)
from merlin.workspace.revisions import AFTER, BEFORE, plans_of


class StepCost(Struct, frozen=True, kw_only=True):
    """Core-hours of one step, or of the study if `step` is "": cores of a task times the time that it ran.

    used_h = ok_h + failed_h + retried_h + interrupted_h + rerun_h
    """

    step: str
    cores: int  # of one task; the most that an instance of the step has; 0 for the study
    runs: int  # of tasks, each try counted
    used_h: float
    ok_h: float  # of tasks that are ok
    failed_h: float  # of tasks that have failed and did not run again
    retried_h: float  # of tries after which the task ran again; see `StudyCost`
    interrupted_h: float  # cut off by the walltime or a stop
    rerun_h: float  # ended ok, and were run again, or put aside by an update or its undoing
    gpu_h: float  # GPU-hours, of all of it
    requested_h: float | None  # what the step's walltime asked for; None if it has none

    @property
    def wasted_h(self) -> float:
        return self.used_h - self.ok_h


class StudyCost(Struct, frozen=True, kw_only=True):
    """The cost of a study and its extensions.

    held_h = total.used_h + overhead_h + idle_h, where the ledger knows how long workers were there. A try that ended
    with the wish to run again (exit codes 100 and 104) has no record; it counts as long as the last one.
    """

    workspace: str
    steps: tuple[StepCost, ...]  # in the order of the plan; then "NAME (gone)": of other revisions alone
    total: StepCost
    overhead_h: float  # of workers that had a chunk, to start its tasks and to collect their outputs
    idle_h: float  # of workers that waited for work, or whose tasks were lost with them; a core each
    allocations: tuple[AllocationCost, ...]  # batch jobs of workers, the oldest first

    @property
    def held_h(self) -> float:
        return self.total.used_h + self.overhead_h + self.idle_h


def study_cost(workspace: Workspace) -> StudyCost:
    """Read the ledgers of a study and its extensions, and the records of its batch jobs."""
    now = time.time()
    tallies: dict[str, _Tally] = {}
    spells: list[Spell] = []
    idle_s = 0.0
    for study in (members := shown_together(workspace)):
        present = replay(study.ledger_dir, study.plan)
        busy = _Busy()
        for instance in study.plan.instances:
            tally = tallies.setdefault(instance.step, _Tally())
            _count_instance(present, instance, present.standing(instance.id), tally, busy)
        states = [present, *_count_gone(study, present, tallies, busy)]
        idle_s += max(0.0, _there_s(study, states, busy, now) - busy.slot_s)
        spells += busy.spells
    for study in _put_aside(members[0]):
        busy = _Busy()
        idle_s += max(0.0, _there_s(study, _count_gone(study, None, tallies, busy), busy, now) - busy.slot_s)
        spells += busy.spells
    steps = tuple(tally.cost(step) for step, tally in tallies.items())
    return StudyCost(
        workspace=str(workspace.path),
        steps=steps,
        total=_total(steps),
        overhead_h=sum(tally.overhead_s for tally in tallies.values()) / HOUR_S,
        idle_h=idle_s / HOUR_S,
        allocations=tuple(allocation_costs(workspace, spells, now)),
    )


class _Tally(Struct):
    """Core-seconds of one step."""

    cores: int = 0
    runs: int = 0
    ok_s: float = 0.0
    failed_s: float = 0.0
    retried_s: float = 0.0
    interrupted_s: float = 0.0
    rerun_s: float = 0.0
    gpu_s: float = 0.0
    overhead_s: float = 0.0
    requested_s: float | None = None

    def cost(self, step: str) -> StepCost:
        parts = (self.ok_s, self.failed_s, self.retried_s, self.interrupted_s, self.rerun_s)
        ok_h, failed_h, retried_h, interrupted_h, rerun_h = (part / HOUR_S for part in parts)
        return StepCost(
            step=step,
            cores=self.cores,
            runs=self.runs,
            used_h=sum(parts) / HOUR_S,
            ok_h=ok_h,
            failed_h=failed_h,
            retried_h=retried_h,
            interrupted_h=interrupted_h,
            rerun_h=rerun_h,
            gpu_h=self.gpu_s / HOUR_S,
            requested_h=None if self.requested_s is None else self.requested_s / HOUR_S,
        )


class _Busy(Struct):
    """Who worked, and for how long."""

    slot_s: float = 0.0  # core-seconds of the slots of workers
    last: dict[Writer, float] = field(default_factory=dict)  # when each worker was last heard of
    spells: list[Spell] = field(default_factory=list)


def cores_of(instance: StepInstance) -> int:
    """How many cores one task of a step instance has, also if it is a batch job of its own."""
    if job_policy(instance) is None:
        return need_of(instance).cores
    request = job_request(instance, name="cost", output="")
    return (request.procs or request.nodes) * (request.cores_per_task or 1)


def _gpus_of(instance: StepInstance) -> float:
    if job_policy(instance) is None:
        return need_of(instance).gpus
    request = job_request(instance, name="cost", output="")
    return float((request.gpus or 0) * request.nodes)


def core_seconds_per_task(state: Replay, plan: Plan) -> dict[str, float]:
    """What a task of each step instance has taken by the ledger: its time on all of its cores; 0 if none has ended."""
    found = {}
    for instance in plan.instances:
        headers = [entry.header for entry in state.entries(instance.id) if entry.header.elapsed_s > 0]
        num = sum(header.counts[Outcome.OK] + header.counts[Outcome.FAILED] for header in headers)
        elapsed_s = sum(header.elapsed_s for header in headers) / num if num else 0.0
        found[instance.id] = elapsed_s * cores_of(instance)
    return found


Standing = tuple[LedgerEntry, Ranges | None]  # a record, and the tasks for which it counts; None: all


def _put_aside(study: Workspace) -> Iterator[Workspace]:
    """The extensions that the study has no more, because of an update or because one was undone."""
    if not study.plan.extension:
        for folder in (BEFORE, AFTER):
            for path in sorted((study.info / REVISIONS_DIR).glob(f"*/{folder}/{EXTENSIONS_DIR}/*")):
                if is_workspace(path):
                    yield open_workspace(path)


def _count_gone(
    study: Workspace, present: Replay | None, tallies: dict[str, _Tally], busy: _Busy
) -> list[Replay]:
    """Count the records that the `present` ledger, if there is one, cannot use; returns the ledgers that have them."""
    plans = {plan.revision: plan for plan in plans_of(study)}
    kept: dict[str, Ranges] = {}
    own: Sequence[Path] = ()
    seen: set[tuple[str, int]] = set()
    if present is not None:
        del plans[study.plan.revision]
        if not plans:
            return []
        kept = {instance.id: _kept(present, instance.id) for instance in study.plan.instances}
        own = lineage(present.directory)
        seen.update(map(_place, present.entries()))
    states: list[Replay] = []
    for _, plan in sorted(plans.items(), reverse=True):
        states.append(state := replay(ledger_of(study.info, plan.revision), plan))
        for instance in plan.instances:
            gone = [entry for entry in state.entries(instance.id) if _place(entry) not in seen]
            if gone:
                seen.update(map(_place, gone))
                tasks = kept.get(instance.id, [])
                standing = [(entry, tasks if entry.segment.path.parent in own else []) for entry in gone]
                name = instance.step if instance.step in tallies else f"{instance.step} (gone)"
                _count_instance(state, instance, standing, tallies.setdefault(name, _Tally()), busy)
    return states


def _place(entry: LedgerEntry) -> tuple[str, int]:
    return entry.segment.name, entry.header.offset


def _kept(state: Replay, instance: str) -> Ranges:
    """Tasks that have kept their outcome in an update, although their record reaches beyond the last task."""
    of_updates = [
        (entry.header, ranges)
        for entry, ranges in state.standing(instance)
        if entry.writer.worker == UPDATER and entry.header.outcome != RESET
    ]
    return [each for h, ranges in of_updates for each in ([(h.lo, h.hi)] if ranges is None else ranges)]


def _count_instance(
    state: Replay, instance: StepInstance, standing: Iterable[Standing], tally: _Tally, busy: _Busy
) -> None:
    cores, gpus, limit_s = cores_of(instance), _gpus_of(instance), walltime_s(instance.resources)
    tally.cores = max(tally.cores, cores)
    # an update writes records of failures that were counted when they happened
    found = [(e, r) for e, r in standing if e.header.kind == Kind.CHUNK and e.writer.worker != UPDATER]
    payloads = state.payloads([entry for entry, _ in found])
    num_runs, there_s, slot_s = 0, 0.0, 0.0
    overhead_s: dict[str, float] = defaultdict(float)  # by session
    again_s: dict[str, float] = defaultdict(float)
    for (entry, ranges), (_, payload) in zip(found, payloads, strict=True):
        runs, ran_s, tries_s = _count_record(entry, ranges, payload, cores, tally)
        elapsed_s = max(entry.header.elapsed_s, ran_s)
        num_runs += runs
        there_s += elapsed_s
        overhead_s[entry.writer.session] += elapsed_s - ran_s
        again_s[entry.writer.session] += tries_s
        if _note_worker(entry, cores, busy):
            slot_s += elapsed_s + tries_s
    # the time of such tries lies within the records of other tasks, if the same worker ran these
    known_s = sum(min(again_s[session], overhead_s[session]) for session in again_s)
    tally.runs += num_runs
    tally.overhead_s += cores * (sum(overhead_s.values()) - known_s)
    tally.gpu_s += gpus * (there_s + sum(again_s.values()) - known_s)
    busy.slot_s += cores * max(0.0, slot_s - known_s)
    if limit_s is not None and found:
        tally.requested_s = (tally.requested_s or 0.0) + cores * limit_s * num_runs


def _count_record(
    entry: LedgerEntry, ranges: Ranges | None, payload: bytes, cores: int, tally: _Tally
) -> tuple[int, float, float]:
    """Count one record; returns its runs of tasks, their seconds, and those of earlier tries that have no record."""
    header, blocks = entry.header, read_blocks(payload)
    num = header.hi - header.lo
    outcomes = outcomes_of(header, blocks)
    seconds = array_block(blocks, BlockId.SECONDS, num)
    assert seconds is not None
    stands = np.full(num, ranges is None)
    mark(stands, ranges or (), header.lo)
    seconds = seconds.astype(np.float64)
    ran, ok, failed = outcomes != NO_OUTCOME, outcomes == Outcome.OK, outcomes == Outcome.FAILED
    tries = array_block(blocks, BlockId.TRIES, num)
    num_again, again_s = 0, 0.0
    if tries is not None:
        again = np.where(ok | failed, tries, 0)
        num_again, again_s = int(again.sum()), float((seconds * again).sum())
    tally.ok_s += cores * float(seconds[ok & stands].sum())
    tally.rerun_s += cores * float(seconds[ok & ~stands].sum())
    tally.failed_s += cores * float(seconds[failed & stands].sum())
    tally.retried_s += cores * (float(seconds[failed & ~stands].sum()) + again_s)
    tally.interrupted_s += cores * float(seconds[outcomes == Outcome.INTERRUPTED].sum())
    return int(np.count_nonzero(ran)) + num_again, float(seconds[ran].sum()), again_s


def _note_worker(entry: LedgerEntry, cores: int, busy: _Busy) -> bool:
    """Note who wrote a record; returns whether that was a worker, which may also be idle."""
    header, writer = entry.header, entry.writer
    busy.spells.append(
        Spell(host=writer.host, started=header.started, ended=header.ended, core_s=cores * header.elapsed_s)
    )
    if writer.worker.startswith(WORKER_PREFIX):  # a step's own batch job is never idle
        return False
    busy.last[writer] = max(busy.last.get(writer, 0.0), header.ended)
    return True


def _there_s(study: Workspace, states: Sequence[Replay], busy: _Busy, now: float) -> float:
    """For how many seconds workers were there, a core each; workers of a local run from its start to its end."""
    sessions: dict[str, list[Writer]] = {}
    for writer in busy.last:
        sessions.setdefault(writer.session, []).append(writer)
    total_s = 0.0
    latest = max((w.started for w in busy.last), default=0.0)
    for session, writers in sessions.items():
        events = next((found for state in states if (found := state.events(session))), [])
        start = next((e for e in events if e.kind == "run_started"), None)
        if start is None or start.data.get("executor") == EXECUTOR:
            total_s += sum(busy.last[writer] - writer.started for writer in writers)
            continue
        end = next((e.time for e in events if e.kind in ("run_finished", "run_stopped", "run_failed")), None)
        if end is None:
            is_last = any(writer.started == latest for writer in writers)
            end = now if is_last and is_live(study) else max(busy.last[writer] for writer in writers)
        total_s += int(start.data.get("workers", 0)) * max(0.0, end - (start.time or end))
    return total_s


_SUMMED = ("runs", "used_h", "ok_h", "failed_h", "retried_h", "interrupted_h", "rerun_h", "gpu_h")


def _total(steps: Iterable[StepCost]) -> StepCost:
    listed = list(steps)
    requested = [step.requested_h for step in listed if step.requested_h is not None]
    sums: dict[str, Any] = {name: sum(getattr(step, name) for step in listed) for name in _SUMMED}
    return StepCost(step="", cores=0, requested_h=sum(requested) if requested else None, **sums)


def wasted_by_cause(cost: StudyCost) -> Iterator[tuple[str, float]]:
    """The core-hours that were of no use, by cause, the largest first."""
    total = cost.total
    causes = {
        "failed": total.failed_h,
        "retried": total.retried_h,
        "interrupted": total.interrupted_h,
        "run again": total.rerun_h,
        "between tasks": cost.overhead_h,
        "idle": cost.idle_h,
    }
    yield from sorted(causes.items(), key=lambda item: -item[1])
