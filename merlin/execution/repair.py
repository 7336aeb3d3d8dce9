"""Repair a data set: run only the samples again whose values are lost, and rebuild the rest from intact files.

To run samples again is an ordinary run of a part of the study. The lost tasks, the shards that hold their rows, and the
manifest are reset in the ledger. A repair may be killed at any moment; the next one, or `merlin restart`, finishes it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.ranges import Range, to_ranges
from merlin.errors import ShardError, WorkspaceError
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import INTERRUPTED, run_embedded
from merlin.execution.events import Observer
from merlin.execution.task_files import is_finished
from merlin.ledger.replay import replay
from merlin.ledger.session import next_session
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.reopen import Again
from merlin.plan.restrict import with_upstream
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.shards.format.manifest_file import DataSet, read_manifest
from merlin.shards.format.rows import NO_ROWS, row_map
from merlin.shards.format.shard_info import ShardInfo, info_name, read_info
from merlin.shards.proving import repair as rebuild
from merlin.shards.proving.expected import expected_rows, sample_ids, tasks_of
from merlin.shards.proving.origin import has_manifest_outcome, manifest_instance, promised
from merlin.shards.proving.repair import RepairPlan, plan_repair
from merlin.shards.proving.verify import VerifyReport
from merlin.shards.writing import bundle
from merlin.shards.writing.collect import CollectRequest, collect_chunk
from merlin.shards.writing.manifest import write_manifest
from merlin.workspace.directory import Workspace, members
from merlin.workspace.holding import lock

Array = np.ndarray[Any, Any]
Watch = Callable[[], AbstractContextManager[Observer]]

MAX_ROUNDS = 4
_OPEN = (Outcome.INTERRUPTED, NO_OUTCOME)


class RepairResult(Struct):
    """The result of a repair. Samples are given by their ids."""

    ran_again: Array = field(default_factory=lambda: NO_ROWS)
    collected_again: Array = field(default_factory=lambda: NO_ROWS)  # from the files of their tasks
    failed: Array = field(default_factory=lambda: NO_ROWS)  # ran again, but did not end ok
    changed: Array = field(default_factory=lambda: NO_ROWS)  # ran again, with other values
    repacked: set[str] = field(default_factory=set)  # shards
    rebuilt: set[str] = field(default_factory=set)  # other files
    was_interrupted: bool = False
    digest_before: str = ""  # of the content; "" without a manifest
    digest_after: str = ""

    @property
    def has_changes(self) -> bool:
        """Return whether there was anything to do."""
        samples = (self.ran_again, self.collected_again, self.failed)
        return self.was_interrupted or bool(self.repacked or self.rebuilt) or any(len(s) for s in samples)

    def to_json(self) -> dict[str, Any]:
        """For programs; samples as ranges [lo, hi)."""
        # not `to_plain`: arrays become ranges, sets become sorted, and whether the content is the same is computed
        samples = ("ran_again", "collected_again", "failed", "changed")
        return {
            **{name: to_ranges(np.unique(getattr(self, name))) for name in samples},
            "repacked": sorted(self.repacked),
            "rebuilt": sorted(self.rebuilt),
            "digest_before": self.digest_before,
            "digest_after": self.digest_after,
            "same_content": bool(self.digest_before) and self.digest_before == self.digest_after,
        }


class Repair:
    """The repair of one data set in place. `verify` checks it fully; `watch` gives an observer of a run."""

    def __init__(
        self,
        directory: Path,
        study: Workspace | None,
        aggregate: str,
        *,
        verify: Callable[[], VerifyReport],
        watch: Watch,
        workers: int | None,
    ) -> None:
        """`study` is the workspace that contains the data set, or None; `aggregate` is the id of its step."""
        self._directory, self._aggregate = directory, aggregate
        self._studies = {} if study is None else {member.member: member for member in members(study)}
        self._verify, self._watch, self._workers = verify, watch, workers
        self._forced = NO_ROWS  # rows whose files on disk cannot be trusted
        self._executed = NO_ROWS
        self._original: dict[int, tuple[str, ShardInfo | None]] = {}  # content digest and sidecar, by shard
        self.done = RepairResult()

    def run(self, report: VerifyReport) -> VerifyReport:
        """Repair the problems that a full check has found; returns the last check.

        Raises:
            WorkspaceError: a run is under way, or there is no workspace to run samples in.
            ShardError, ExecutionError, LedgerError: the repair is not complete; a second repair continues it.
        """
        with self._locked():
            pass  # no run is under way
        self.done.digest_before = report.content_digest
        if self._finish_earlier_repair() and not self.done.was_interrupted:
            report = self._verify()
        for _ in range(MAX_ROUNDS):
            if self.done.was_interrupted or (report.ok and not len(self._forced)):
                break
            self._round(report)
            if not self.done.was_interrupted:
                report = self._verify()
        self.done.digest_after = report.content_digest
        return report

    # ------------------------------------------------------------------ rounds

    def _round(self, report: VerifyReport) -> None:
        with self._locked():
            rebuild.make_room(self._directory, dict.fromkeys(p.file for p in report.problems))
        if not report.has_manifest:
            self._rebuild_manifest()
            return
        data = read_manifest(self._directory)
        plan = plan_repair(data, report.problems)
        if plan.needs_workspace:
            self._require_workspace(data)
        with self._locked():
            self._rebuild(data, plan)
        rows = np.union1d(plan.rows, self._forced)
        if len(rows):
            self._run_again(data, rows, plan)

    def _rebuild(self, data: DataSet, plan: RepairPlan) -> None:
        """Do every repair that runs no task."""
        names = {entry.shard: entry.file for entry in data.shards}
        if plan.sidecars:
            rebuild.rebuild_sidecars(data, plan.sidecars)
            self.done.rebuilt |= {info_name(shard) for shard in plan.sidecars}
        if plan.repack:
            rebuild.repack(read_manifest(self._directory), plan.repack, self._studies)
            self.done.repacked |= {names[shard] for shard in plan.repack}
        if plan.manifest:
            self._write_manifests()
            self.done.rebuilt.add("manifest.json")
        elif plan.virtual:
            if not len(plan.rows):  # else the run writes it, once every shard is there
                rebuild.note_shards(self._directory, {}, virtual=True)
            self.done.rebuilt.add("ensemble.h5")
        without_sidecar = [entry.shard for entry in data.shards if _read(data, entry.shard) is None]
        rebuild.remember_filtered(data, without_sidecar)

    def _rebuild_manifest(self) -> None:
        """Rebuild the manifest from the ledger and the sidecars. Rows that neither of them proves run again first."""
        self._require_workspace(None)
        self.done.rebuilt.add("manifest.json")
        again: dict[str, dict[str, Sequence[Range]]] = {}
        rows = NO_ROWS
        for name, study in self._studies.items():
            lost = rebuild.lost_without_manifest(study, study.instance(self._aggregate))
            if len(lost):
                again[name] = _tasks(study, self._aggregate, lost)
                rows = np.union1d(rows, lost)
        if again:
            known = promised(self._directory)
            executed = NO_ROWS
            for name, tasks in again.items():
                executed = np.union1d(executed, self._run_part(self._studies[name], tasks))
            if known is not None and not self.done.was_interrupted:
                self._note_outcomes(read_manifest(self._directory), rows, executed)
            return
        with self._locked():
            self._write_manifests()

    def _write_manifests(self) -> None:
        """Write the manifest again for each study that had written one."""
        for study in self._studies.values():
            aggregate = study.instance(self._aggregate)
            if has_manifest_outcome(study, aggregate):
                write_manifest(study, manifest_instance(study, aggregate))

    # ------------------------------------------------------------------ running

    def _run_again(self, data: DataSet, rows: Array, plan: RepairPlan) -> None:
        """Reset and run the tasks of these rows, and check the new shards."""
        for entry in data.shards:
            if _touches(entry, rows):
                info = None if entry.shard in plan.doubtful else _read(data, entry.shard)
                self._original.setdefault(entry.shard, (entry.content_digest, info))
        parts: dict[str, dict[str, Sequence[Range]]] = {}
        for (member, source), tasks in tasks_of(data, rows).items():
            parts.setdefault(member, {})[source] = tasks
        for member, tasks_by_source in parts.items():
            executed = self._run_part(self._studies[member], tasks_by_source)
            if self.done.was_interrupted:
                return
            self._executed = np.union1d(self._executed, executed)
        self._compare_shards(data, rows)

    def _compare_shards(self, data: DataSet, rows: Array) -> None:
        """Compare the new shards with the entries of the old ones in the manifest."""
        now = read_manifest(self._directory)
        changed, doubted = NO_ROWS, NO_ROWS
        for entry in now.shards:
            if not _touches(entry, rows):
                continue
            self.done.repacked.add(entry.file)
            digest, old = self._original[entry.shard]
            new = _read(now, entry.shard)
            if entry.content_digest == digest or new is None:
                continue
            held = [np.arange(lo, hi) for lo, hi in new.rows]
            other = rebuild.changed_rows(old, new) if old is not None else np.concatenate([NO_ROWS, *held])
            ours = np.isin(other, self._executed)
            changed = np.union1d(changed, other[ours] if old is not None or ours.all() else NO_ROWS)
            doubted = np.union1d(doubted, other[~ours])
        self._forced = doubted
        self._note_outcomes(now, rows, self._executed)
        self._note("changed", data, changed)

    def _note_outcomes(self, now: DataSet, rows: Array, executed: Array) -> None:
        """Note for the lost rows whether they ran again or were collected from their files, and which failed."""
        there = [expected_rows(now, entry.lo, entry.hi) for entry in now.shards]
        filtered = [np.arange(a, b) for f in now.filters for a, b in f.rows]
        self._note("ran_again", now, np.intersect1d(rows, executed))
        self._note("collected_again", now, np.setdiff1d(rows, executed))
        self._note("failed", now, np.setdiff1d(rows, np.concatenate([NO_ROWS, *there, *filtered])))
        self.done.collected_again = np.setdiff1d(self.done.collected_again, self.done.ran_again)

    def _note(self, name: str, data: DataSet, rows: Array) -> None:
        setattr(self.done, name, np.union1d(getattr(self.done, name), sample_ids(data, rows)))

    def _run_part(self, study: Workspace, tasks: Mapping[str, Sequence[Range]]) -> Array:
        """Restore the values of tasks of the aggregate's sources, and write their shards again.

        The values come from the tasks' files, if these exist. Otherwise the tasks run again, after the tasks that they
        depend on. Returns the rows that ran again.
        """
        outcomes = replay(study.ledger_dir, study.plan).outcomes

        def has_files(instance: StepInstance, task: int) -> bool:
            ended_ok = outcomes[instance.id][task] == Outcome.OK
            return ended_ok and is_finished(str(study.task_dir(instance, task)))

        rows = row_map(study, study.instance(self._aggregate))
        lost: dict[str, Sequence[Range]] = {}
        shards, executed = set[int](), [NO_ROWS]
        for id, ranges in tasks.items():
            first = rows.first_row(id)
            gone = self._collect(study, study.instance(id), ranges, has_files)
            lost[id] = to_ranges(gone)
            executed.append(first + gone)
            shards |= {shard for lo, hi in ranges for shard, _, _ in rows.pieces(first + lo, first + hi)}
        again = with_upstream(study.plan, lost, has_files)
        again[self._aggregate] = list(to_ranges(np.array(sorted(shards)) - rows.shards.start))
        self._embedded(study, again, {*again, *self._aggregate_instances(study)})
        for id in again:  # bundles that finished data sets got for a second time
            for target in study.instance(id).feeds:
                if target != self._aggregate and has_manifest_outcome(study, study.instance(target)):
                    shutil.rmtree(study.path / target / bundle.DIRECTORY, ignore_errors=True)
        return np.unique(np.concatenate(executed))

    def _collect(
        self,
        study: Workspace,
        source: StepInstance,
        ranges: Sequence[Range],
        has_files: Callable[[StepInstance, int], bool],
    ) -> Array:
        """Collect the files of these tasks into bundles. Returns the tasks for which that is not possible."""
        if source.kind is not StepKind.CMD:
            return np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
        aggregate = study.instance(self._aggregate)
        first = row_map(study, aggregate).first_row(source.id)
        origin = replace(bundle.GATHERED, session=next_session(study.ledger_dir, time.time()))
        gone = []
        for lo, hi in ranges:
            forced = np.isin(np.arange(first + lo, first + hi), self._forced)
            ok = ~forced & np.array([has_files(source, task) for task in range(lo, hi)])
            request = CollectRequest(
                workspace=study, aggregate=aggregate, source=source, lo=lo, hi=hi, ok=ok, origin=origin
            )
            for task in collect_chunk(request) if ok.any() else ():
                ok[task - lo] = False
            gone.append(lo + np.flatnonzero(~ok))
        return np.concatenate(gone)

    def _embedded(self, study: Workspace, again: Mapping[str, list[Range]], only: set[str]) -> None:
        options = RunOptions(workers=self._workers, again=Again(tasks=again), only=tuple(sorted(only)))
        with self._watch() as observer:
            summary = run_embedded(study, options, observer)
        self.done.was_interrupted = summary.stop_reason == INTERRUPTED

    def _aggregate_instances(self, study: Workspace) -> set[str]:
        instance = study.instance(self._aggregate)
        assert instance.aggregate is not None
        return {instance.id, manifest_instance(study, instance).id, *instance.aggregate.sources}

    def _finish_earlier_repair(self) -> bool:
        """Run the tasks that an earlier repair or restart has only reset. Returns whether there were any."""
        ran = False
        for study in self._studies.values():
            ids = self._aggregate_instances(study)
            outcomes = replay(study.ledger_dir, study.plan).outcomes
            open_ones = {id for id in outcomes if outcomes[id].ranges(_OPEN)}
            if not open_ones & ids:
                continue
            # add the instances that these wait for, task by task
            for instance in reversed(study.plan.instances):
                if instance.id in ids:
                    ids |= {e.source for e in instance.edges if e.kind == "same" and e.source in open_ones}
            self._embedded(study, {}, ids)
            ran = True
        return ran

    # ------------------------------------------------------------------ conditions

    def _require_workspace(self, data: DataSet | None) -> None:
        if not self._studies:
            raise WorkspaceError(
                f"{self._directory} is not inside the workspace of its study, which is needed to run samples again: "
                "say where that is with --workspace WORKSPACE"
            )
        known = {study.plan.study_id for study in self._studies.values()}
        made_by = None if data is None else data.study.get("study_id")
        if made_by is not None and made_by not in known:
            raise WorkspaceError(
                f"{self._directory} was made by study {made_by}; the workspace {self._studies[''].path} "
                f"belongs to {', '.join(sorted(known))}"
            )

    def _locked(self) -> ExitStack:
        """Lock all workspaces. Raises WorkspaceError if one is in use."""
        with ExitStack() as stack:
            for study in self._studies.values():
                stack.enter_context(lock(study))
            return stack.pop_all()


def _touches(entry: Any, rows: Array) -> bool:
    return bool(((rows >= entry.lo) & (rows < entry.hi)).any())


def _read(data: DataSet, shard: int) -> ShardInfo | None:
    """The sidecar on disk; None if it cannot be read or has no check values."""
    try:
        info = read_info(data.directory / info_name(shard))
    except ShardError:
        return None
    return info if info.checks else None


def _tasks(study: Workspace, aggregate: str, rows: Array) -> dict[str, Sequence[Range]]:
    """Rows of a study as ranges of its sources' tasks."""
    places = row_map(study, study.instance(aggregate))
    which, tasks = places.locate(rows)
    return {
        places.aggregate.sources[index]: to_ranges(tasks[which == index])
        for index in np.unique(which).tolist()
    }
