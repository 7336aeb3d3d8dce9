"""The last step of a data set: check every shard, write ``ensemble.h5`` and ``manifest.json``."""

from __future__ import annotations

import datetime
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.errors import ShardError
from merlin.shards import bundle, splits
from merlin.shards.atomic import TEMPORARY_SUFFIX, replacing, write_text
from merlin.shards.digest import ALGORITHM, block_rows, combine, digest_array, digest_bytes
from merlin.shards.gather import write_shard
from merlin.shards.manifest_file import NAME, VIRTUAL_NAME, Counts, manifest_text
from merlin.shards.rows import RowMap, row_map, to_ranges
from merlin.shards.shard_info import DatasetInfo, ShardInfo, info_name, read_info, shard_name
from merlin.shards.statistics import Statistics, merge
from merlin.study.plan import StepInstance, StepKind
from merlin.study.runs import RunMap
from merlin.study.tasks import NO_OUTCOME, Outcome

if TYPE_CHECKING:
    from merlin.ledger.replay import Replay
    from merlin.study.workspace import Workspace

MAX_CAUSES = 1000  # groups of failed tasks that are listed with their cause; the rest share one entry

_MISSING = (Outcome.INTERRUPTED, NO_OUTCOME)


def write_manifest(workspace: Workspace, manifest_instance: StepInstance) -> None:
    """Finish the data set of a manifest instance, then remove its bundles.

    A shard that does not hold exactly the rows whose tasks ended ok (after a restart made more of them so) is
    written again first. Raises ShardError if rows are lost.
    """
    from merlin.ledger.replay import Replay

    aggregate = _aggregate_of(workspace, manifest_instance)
    rows = row_map(workspace, aggregate)
    directory = workspace.path / aggregate.id
    replay = Replay(workspace.ledger_dir, workspace.plan)
    outcomes = [replay.outcomes[source] for source in rows.aggregate.sources]
    summary = _Summary(rows)
    for shard in range(rows.num_shards):
        present = _present_rows(rows, outcomes, shard)
        summary.add(_current(workspace, aggregate, rows, shard, present), present)
    virtual = directory / VIRTUAL_NAME
    _write_virtual(virtual, summary)
    data = {
        **_about(workspace, aggregate, rows),
        **_fates(workspace, rows, outcomes, replay),
        **summary.to_json(),
        "virtual": {
            "file": VIRTUAL_NAME,
            "size_bytes": virtual.stat().st_size,
            "digest": digest_bytes(virtual.read_bytes()),
        },
    }
    write_text(directory / NAME, manifest_text(data))
    shutil.rmtree(directory / bundle.DIRECTORY, ignore_errors=True)
    for leftover in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _aggregate_of(workspace: Workspace, instance: StepInstance) -> StepInstance:
    for edge in instance.edges:
        source = workspace.instance(edge.source)
        if source.kind is StepKind.AGGREGATE:
            return source
    raise ShardError(f"the manifest instance '{instance.id}' waits for no aggregate")


def _present_rows(rows: RowMap, outcomes: list[RunMap], shard: int) -> np.ndarray[Any, Any]:
    """The rows of a shard whose tasks ended ok."""
    lo, hi = rows.shard_range(shard)
    mask = np.zeros(hi - lo, dtype=bool)
    for index in range(lo // rows.num_tasks, (hi - 1) // rows.num_tasks + 1):
        first = index * rows.num_tasks
        a, b = max(lo, first) - first, min(hi, first + rows.num_tasks) - first
        for x, y in outcomes[index].ranges([Outcome.OK], a, b):
            mask[first + x - lo : first + y - lo] = True
    return lo + np.flatnonzero(mask)


def _current(
    workspace: Workspace, aggregate: StepInstance, rows: RowMap, shard: int, present: np.ndarray[Any, Any]
) -> ShardInfo:
    """The shard's description; the shard is written again unless it holds exactly the rows `present`."""
    directory = workspace.path / aggregate.id
    path = directory / shard_name(shard)
    try:
        info = read_info(directory / info_name(shard))
        if path.stat().st_size == info.size_bytes and _holds(info, present):
            return info
    except (ShardError, FileNotFoundError):
        pass
    lo, hi = rows.shard_range(shard)
    absent = np.setdiff1d(np.arange(lo, hi), present, assume_unique=True)
    return write_shard(workspace, aggregate, shard, to_ranges(absent))


def _holds(info: ShardInfo, present: np.ndarray[Any, Any]) -> bool:
    """Whether the shard's row numbers are exactly these, told by their digest."""
    step = block_rows(8)
    numbers = present.astype("<i8")
    blocks = tuple(digest_array(numbers[lo : lo + step]) for lo in range(0, len(numbers), step))
    return any(d.name == "row" and d.blocks == blocks for d in info.datasets)


class _Summary:
    """What the shards hold together."""

    def __init__(self, rows: RowMap) -> None:
        self.rows = rows
        self.infos: list[dict[str, Any]] = []
        self.columns: dict[str, DatasetInfo] = {}
        self._statistics: dict[str, Statistics] = {}
        self._in_split = np.zeros(len(rows.aggregate.splits) + 1, dtype=np.int64)

    def add(self, info: ShardInfo, present: np.ndarray[Any, Any]) -> None:
        names = ("file", "shard", "lo", "hi", "num_rows", "size_bytes")
        digests = ("file_digest", "content_digest", "info_digest")
        self.infos.append({name: getattr(info, name) for name in (*names, *digests)})
        for dataset in info.datasets:
            known = self.columns.setdefault(dataset.name, dataset)
            if (known.dtype, known.shape[1:]) != (dataset.dtype, dataset.shape[1:]):
                raise ShardError(
                    f"{info.file}: '{dataset.name}' is {dataset.dtype} {dataset.shape[1:]}, "
                    f"other shards have {known.dtype} {known.shape[1:]}"
                )
            if dataset.statistics is not None:
                before = self._statistics.get(dataset.name)
                merged = merge([dataset.statistics] if before is None else [before, dataset.statistics])
                assert merged is not None
                self._statistics[dataset.name] = merged
        aggregate = self.rows.aggregate
        member = splits.split_indices(self.rows.sample_ids(present), dict(aggregate.splits), aggregate.seed)
        self._in_split += np.bincount(member, minlength=len(self._in_split))

    def _statistics_json(self, name: str) -> dict[str, Any] | None:
        statistics = self._statistics.get(name)
        return statistics.to_json() if statistics is not None else None

    def to_json(self) -> dict[str, Any]:
        aggregate = self.rows.aggregate
        fields = []
        for field in aggregate.fields:
            column = self.columns[f"fields/{field.name}"]
            described = {name: getattr(field, name) for name in ("name", "kind", "units", "description")}
            stored = {
                "dtype": column.dtype,
                "shape": column.shape[1:],
                "axes": field.axes,
                "compression": field.compression or aggregate.compression,
                "statistics": self._statistics_json(column.name),
            }
            fields.append(described | stored)
        columns = [
            {
                "path": name,
                "dtype": column.dtype,
                "shape": column.shape[1:],
                "statistics": None if name.startswith("fields/") else self._statistics_json(name),
            }
            for name, column in self.columns.items()
        ]
        names = [name for name, _ in aggregate.splits]
        counted = dict(zip(names, self._in_split.tolist(), strict=False))
        return {
            "content_digest": combine([info["content_digest"] for info in self.infos]),
            "fields": fields,
            "columns": columns,
            "splits": {
                "algorithm": splits.ALGORITHM,
                "seed": aggregate.seed,
                "fractions": dict(aggregate.splits),
                "counts": counted,
            },
            "shards": self.infos,
        }


def _about(workspace: Workspace, aggregate: StepInstance, rows: RowMap) -> dict[str, Any]:
    plan = workspace.plan
    return {
        "digest_algorithm": ALGORITHM,
        "study": {
            "name": plan.name,
            "study_id": plan.study_id,
            "spec_digest": plan.spec_digest,
            "code_version": plan.code_version,
            "seed": plan.seed,
            "created": plan.created,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
        "aggregate": aggregate.id,
        "per_sample": rows.per_sample,
        "samples_per_shard": rows.aggregate.samples_per_shard,
    }


def _fates(workspace: Workspace, rows: RowMap, outcomes: list[RunMap], replay: Replay) -> dict[str, Any]:
    """What became of every planned task: counts, and the ranges of those that are not in the data set."""
    sources: list[dict[str, Any]] = []
    for name, runs in zip(rows.aggregate.sources, outcomes, strict=True):
        failed, skipped = runs.ranges([Outcome.FAILED]), runs.ranges([Outcome.SKIPPED])
        missing = runs.ranges(_MISSING)
        counts = Counts(
            planned=rows.num_tasks,
            ok=_total(runs.ranges([Outcome.OK])),
            failed=_total(failed),
            skipped=_total(skipped),
            missing=_total(missing),
        )
        source = {"id": name, "first_row": rows.first_row(name), "num_tasks": rows.num_tasks}
        fates = {"failed": failed, "skipped": skipped, "missing": missing}
        sources.append(
            {**source, "params": workspace.instance(name).params, "counts": asdict(counts), **fates}
        )
    keys = ("planned", "ok", "failed", "skipped", "missing")
    total = {key: sum(source["counts"][key] for source in sources) for key in keys}
    return {"counts": total, "sources": sources, "failures": _failures(rows, replay)}


def _total(ranges: list[tuple[int, int]]) -> int:
    return sum(b - a for a, b in ranges)


def _failures(rows: RowMap, replay: Replay) -> list[dict[str, Any]]:
    """Failed tasks by source and cause, most frequent first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for failed in replay.failures(rows.aggregate.sources):
        key = (failed.instance, failed.failure.cause)
        if key not in groups and len(groups) >= MAX_CAUSES:
            key = (failed.instance, "other causes (see merlin failures)")
        groups.setdefault(key, []).append(failed.failure.task)
    found = []
    for (source, cause), tasks in sorted(groups.items(), key=lambda item: -len(item[1])):
        ranges = to_ranges(np.unique(np.array(tasks, dtype=np.int64)))
        found.append({"source": source, "cause": cause, "num": _total(ranges), "tasks": ranges})
    return found


def _write_virtual(path: Path, summary: _Summary) -> None:
    """One file that shows all shards as one; it holds their names relative to itself."""
    import h5py

    num_rows = sum(info["num_rows"] for info in summary.infos)
    with replacing(path) as temporary, h5py.File(temporary, "w", libver=("earliest", "v110")) as file:
        file.attrs.update({"format": "merlin-ensemble", "version": 1, "num_rows": num_rows})
        for name, column in summary.columns.items():
            dtype = h5py.string_dtype() if column.dtype == "text" else np.dtype(column.dtype)
            shape = (num_rows, *column.shape[1:])
            if not num_rows:
                file.create_dataset(name, shape=shape, dtype=dtype)
                continue
            layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
            at = 0
            for info in summary.infos:
                size = info["num_rows"]
                if size:
                    source = h5py.VirtualSource(info["file"], name, shape=(size, *shape[1:]), dtype=dtype)
                    layout[at : at + size] = source
                    at += size
            file.create_virtual_dataset(name, layout)
