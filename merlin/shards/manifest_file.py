"""The manifest: what a data set holds, and what became of every planned task (docs/shard-format.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merlin.errors import NotADataSetError, ShardError
from merlin.shards.digest import combine
from merlin.shards.statistics import Statistics

FORMAT = "merlin-dataset"
VERSION = 1
NAME = "manifest.json"
VIRTUAL_NAME = "ensemble.h5"

OUTCOMES = ("ok", "failed", "skipped", "missing")

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """planned = ok + failed + skipped + missing."""

    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int

    @property
    def reconciled(self) -> bool:
        return self.planned == self.ok + self.failed + self.skipped + self.missing

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {getattr(self, name):,}" for name in OUTCOMES)
        return f"planned {self.planned:,} {'=' if self.reconciled else '≠'} {parts}"


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source step instance; task t is row first_row + t."""

    id: str
    first_row: int
    num_tasks: int
    params: dict[str, Any]
    counts: Counts
    failed: Ranges  # of tasks
    skipped: Ranges
    missing: Ranges


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed tasks of one source with the same cause."""

    source: str
    cause: str
    num: int
    tasks: Ranges


@dataclass(frozen=True, slots=True)
class ShardEntry:
    file: str
    shard: int
    lo: int
    hi: int
    num_rows: int
    size_bytes: int
    file_digest: str
    content_digest: str
    info_digest: str


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of every shard."""

    path: str  # "fields/image"
    dtype: str  # NumPy's, or "text"
    shape: tuple[int, ...]  # of one row
    statistics: Statistics | None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]  # of one sample
    units: str
    description: str
    axes: tuple[str, ...]
    compression: str
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class SplitInfo:
    fractions: dict[str, float]
    seed: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class FileEntry:
    file: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """A manifest that was read."""

    directory: Path
    study: dict[str, Any]
    aggregate: str
    counts: Counts
    per_sample: bool
    samples_per_shard: int
    sources: tuple[SourceInfo, ...]
    failures: tuple[FailureGroup, ...]
    shards: tuple[ShardEntry, ...]
    fields: tuple[FieldInfo, ...]
    columns: tuple[ColumnInfo, ...]  # of every kind
    splits: SplitInfo
    virtual: FileEntry
    content_digest: str

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def inputs(self) -> tuple[ColumnInfo, ...]:
        return self._group("inputs/")

    @property
    def parameters(self) -> tuple[ColumnInfo, ...]:
        return self._group("parameters/")

    def _group(self, prefix: str) -> tuple[ColumnInfo, ...]:
        return tuple(column for column in self.columns if column.path.startswith(prefix))


def manifest_text(data: dict[str, Any]) -> str:
    """The manifest as it is stored: with the digest of the rest of it."""
    body = {"format": FORMAT, "version": VERSION, **data}
    return json.dumps({**body, "digest": combine(body)}, indent=1)


def manifest_path(path: Path) -> Path:
    return path if path.name == NAME else path / NAME


def read_manifest(path: Path) -> DataSet:
    """Read the manifest in directory `path` (or at `path`).

    Raises:
        NotADataSetError: there is no manifest.
        ShardError: it is damaged, or of a version this code does not know.
    """
    path = manifest_path(path)
    if not path.is_file():
        raise NotADataSetError(
            f"{path.parent} is not a finished data set: it has no {NAME}; "
            "give the directory of an aggregate step, inside the workspace"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ShardError(
                f"{path}: expected {FORMAT} version {VERSION}, found {data['format']} {data['version']}"
            )
        digest = data.pop("digest")
        if combine(data) != digest:
            raise ShardError(
                f"{path}: its digest does not fit its content; the file is damaged or was edited"
            )
        return _parse(path.parent, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ShardError(f"{path}: not a readable manifest: {e}") from e


def _parse(directory: Path, data: dict[str, Any]) -> DataSet:
    return DataSet(
        directory=directory,
        study=data["study"],
        aggregate=data["aggregate"],
        counts=Counts(**data["counts"]),
        per_sample=data["per_sample"],
        samples_per_shard=data["samples_per_shard"],
        sources=tuple(_source(entry) for entry in data["sources"]),
        failures=tuple(
            FailureGroup(f["source"], f["cause"], f["num"], _ranges(f["tasks"])) for f in data["failures"]
        ),
        shards=tuple(ShardEntry(**entry) for entry in data["shards"]),
        fields=tuple(_field(entry) for entry in data["fields"]),
        columns=tuple(
            ColumnInfo(c["path"], c["dtype"], tuple(c["shape"]), _statistics(c)) for c in data["columns"]
        ),
        splits=SplitInfo(data["splits"]["fractions"], data["splits"]["seed"], data["splits"]["counts"]),
        virtual=FileEntry(**data["virtual"]),
        content_digest=data["content_digest"],
    )


def _source(entry: dict[str, Any]) -> SourceInfo:
    return SourceInfo(
        id=entry["id"],
        first_row=entry["first_row"],
        num_tasks=entry["num_tasks"],
        params=entry["params"],
        counts=Counts(**entry["counts"]),
        failed=_ranges(entry["failed"]),
        skipped=_ranges(entry["skipped"]),
        missing=_ranges(entry["missing"]),
    )


def _field(entry: dict[str, Any]) -> FieldInfo:
    return FieldInfo(
        name=entry["name"],
        kind=entry["kind"],
        dtype=entry["dtype"],
        shape=tuple(entry["shape"]),
        units=entry["units"],
        description=entry["description"],
        axes=tuple(entry["axes"]),
        compression=entry["compression"],
        statistics=_statistics(entry),
    )


def _statistics(entry: dict[str, Any]) -> Statistics | None:
    return Statistics.from_json(entry["statistics"]) if entry["statistics"] else None


def _ranges(pairs: list[list[int]]) -> Ranges:
    return tuple((a, b) for a, b in pairs)
