"""A study on disk without a spec or a run: a source step, an aggregate and its manifest, driven by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from merlin.base.ranges import to_ranges
from merlin.ledger.records import ChunkRecord, Failure, RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import Aggregate, Edge, Plan, PlannedField, SamplesInfo, StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.rows import row_map
from merlin.shards.writing.bundle import Origin
from merlin.shards.writing.collect import CollectRequest, collect_chunk
from merlin.shards.writing.gather import write_shard
from merlin.shards.writing.manifest import write_manifest
from merlin.workspace.directory import Workspace

FIELDS = (
    PlannedField(name="energy", units="J", description="total energy"),
    PlannedField(name="count", dtype="int32"),
    PlannedField(name="history", kind="series", dtype="float32", shape=(8,)),
    PlannedField(name="image", kind="image", dtype="float32", shape=(6, 5, 2), axes=("y", "x", "channel")),
    PlannedField(name="note", kind="text"),
)


def values_of(tasks: np.ndarray, source: int = 0) -> dict[str, np.ndarray]:
    """What a correct function returns for these tasks; every value shows which task it belongs to."""
    t = np.asarray(tasks, dtype=np.float64) + 1000 * source
    return {
        "energy": t * 0.5 + 1e6,
        "count": t.astype(np.int32),
        "history": (t[:, None] + np.arange(8)).astype(np.float32),
        "image": (t[:, None, None, None] + np.arange(60).reshape(6, 5, 2)).astype(np.float32),
        "note": np.array([f"täsk {int(i)}" for i in t], dtype=object),
    }


@dataclass
class ShardStudy:
    workspace: Workspace
    sources: list[StepInstance]
    aggregate: StepInstance
    manifest: StepInstance
    failures: dict[tuple[int, int], str] = field(default_factory=dict)  # (source, task) -> cause
    skipped: set[tuple[int, int]] = field(default_factory=set)
    not_run: set[tuple[int, int]] = field(default_factory=set)

    @property
    def directory(self) -> Path:
        return self.workspace.path / self.aggregate.id

    def collect(
        self, lo: int, hi: int, *, source: int = 0, ok=None, outputs=None, attempt=1, worker="w0", session=""
    ):
        step = self.sources[source]
        if outputs is None and step.kind is StepKind.FUNCTION:
            outputs = values_of(np.arange(lo, hi), source)
        keep = np.ones(hi - lo, bool) if ok is None else np.asarray(ok)
        for task in range(lo, hi):
            if {(source, task)} & (self.skipped | self.not_run):
                keep[task - lo] = False
        request = CollectRequest(
            workspace=self.workspace, aggregate=self.aggregate, source=step, lo=lo, hi=hi, ok=keep,
            outputs=outputs, origin=Origin(attempt, worker, session),
        )  # fmt: skip
        causes = collect_chunk(request)
        self.failures |= {(source, task): cause for task, cause in causes.items()}
        return causes

    def collect_all(self, chunk: int = 7) -> None:
        for source, step in enumerate(self.sources):
            for lo in range(0, step.num_tasks, chunk):
                self.collect(lo, min(lo + chunk, step.num_tasks), source=source)

    def absent(self) -> list[tuple[int, int]]:
        rows = row_map(self.workspace, self.aggregate)
        gone = [s * rows.num_tasks + t for s, t in [*self.failures, *self.skipped, *self.not_run]]
        return to_ranges(np.unique(np.array(gone, dtype=np.int64)))

    def write_shards(self) -> list:
        return [self.write_shard(k) for k in range(self.aggregate.num_tasks)]

    def write_shard(self, shard: int):
        return write_shard(self.workspace, self.aggregate, shard, self.absent())

    def record(self) -> None:
        """Record in the ledger how the sources' tasks ended."""
        ledger = LedgerWriter(self.workspace.ledger_dir, "w0", sync=False)
        for source, step in enumerate(self.sources):
            outcomes = np.zeros(step.num_tasks, np.uint8)
            for s, t in self.skipped:
                outcomes[t] = Outcome.SKIPPED if s == source else outcomes[t]
            for s, t in self.not_run:
                outcomes[t] = Outcome.INTERRUPTED if s == source else outcomes[t]
            failures = []
            for (s, t), cause in sorted(self.failures.items()):
                if s == source:
                    outcomes[t] = Outcome.FAILED
                    failures.append(Failure(task=t, cause=cause, exit_code=1))
            if not outcomes.any():
                ledger.append(RangeRecord(instance=step.id, lo=0, hi=step.num_tasks, outcome=Outcome.OK))
                continue
            ledger.append(
                ChunkRecord(
                    instance=step.id, lo=0, hi=step.num_tasks, started=100.0, elapsed_s=1.0,
                    outcomes=outcomes, seconds=np.zeros(step.num_tasks, np.float32), failures=tuple(failures),
                )
            )  # fmt: skip
        ledger.close()

    def finish(self) -> Path:
        """Shards, ledger, manifest; returns the data set's directory."""
        self.write_shards()
        self.record()
        write_manifest(self.workspace, self.manifest)
        return self.directory


def make_study(
    path: Path,
    *,
    num: int = 50,
    per_shard: int = 20,
    fields: tuple[PlannedField, ...] = FIELDS,
    kind: StepKind = StepKind.FUNCTION,
    params: tuple[dict, ...] = ({},),
    compression: str = "none",
    per_sample: bool = True,
    **more,
) -> ShardStudy:
    (path / "merlin_info").mkdir(parents=True)
    np.save(path / "merlin_info" / "samples.npy", np.arange(2.0 * num).reshape(num, 2))
    tasks = num if per_sample else 1
    sources = [
        StepInstance(
            id=f"sim/P{i}" if len(params) > 1 else "sim", step="sim", kind=kind, num_tasks=tasks,
            per_sample=per_sample, params=values, feeds=("collect",),
        )
        for i, values in enumerate(params)
    ]  # fmt: skip
    aggregate = Aggregate(
        sources=tuple(s.id for s in sources), fields=fields, samples_per_shard=per_shard,
        compression=compression, **more,
    )  # fmt: skip
    collect = StepInstance(
        id="collect", step="collect", kind=StepKind.AGGREGATE, per_sample=False, aggregate=aggregate,
        num_tasks=-(-len(sources) * tasks // per_shard),
    )  # fmt: skip
    manifest = StepInstance(
        id="collect.manifest", step="collect", kind=StepKind.MANIFEST, num_tasks=1, per_sample=False,
        aggregate=aggregate, edges=(Edge(source="collect", kind="all", group="collect"),),
    )  # fmt: skip
    plan = Plan(
        name="study", study_id="s1", workspace=str(path), spec_path="", spec_root="", spec_digest="d1",
        created="2026-01-01T00:00:00+00:00", seed=5, variables={}, code_version="1",
        samples=SamplesInfo(file="merlin_info/samples.npy", num=num, labels=("x", "y")),
        instances=(*sources, collect, manifest),
    )  # fmt: skip
    return ShardStudy(Workspace(path, plan), sources, collect, manifest)


def make_cmd_study(path: Path, files: dict[int, dict[str, object]], fields, **more) -> ShardStudy:
    """A study of a shell step whose task t left `files[t]`: name -> bytes, or anything JSON can hold."""
    study = make_study(path, num=len(files), fields=tuple(fields), kind=StepKind.CMD, **more)
    for task, contents in files.items():
        directory = study.workspace.task_dir(study.sources[0], task)
        directory.mkdir(parents=True)
        for name, content in contents.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (directory / name).write_bytes(data)
    return study
