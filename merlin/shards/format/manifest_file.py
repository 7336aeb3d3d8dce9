"""The manifest: what a data set holds, and what became of every planned task (docs/shard-format.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merlin.base.field import Field
from merlin.errors import NotADataSetError, ShardError
from merlin.shards.format.counts import MANIFEST_NAME, Counts
from merlin.shards.format.digest import combine
from merlin.shards.format.statistics import Statistics

FORMAT = "merlin-dataset"
VERSION = 2
NAME = MANIFEST_NAME
VIRTUAL_NAME = "ensemble.h5"

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source step instance; task t is row first_row + t, and sample first_sample + t if it runs per sample."""

    id: str
    first_row: int
    num_tasks: int
    params: dict[str, Any]
    counts: Counts
    failed: Ranges  # of tasks
    skipped: Ranges
    missing: Ranges
    filtered: Ranges = ()  # ended ok, and rejected by a filter
    workspace: str = ""  # below the study's: "" = its own, "extensions/001" (growing.source_workspace)
    first_sample: int = 0


@dataclass(frozen=True, slots=True)
class FilterInfo:
    """What one `valid` expression rejected; a row counts for the first expression that is not true for it."""

    expression: str
    num: int
    rows: Ranges


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed tasks of one source with the same cause."""

    source: str
    cause: str
    num: int
    tasks: Ranges
    workspace: str = ""  # the source's


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
    """A column of every shard: (rows, *shape), but for the two of a ragged field.

    These are `…/values` (items, *shape), with statistics over the items, and `…/offsets` (rows + 1,), with
    statistics of the numbers of items per row: row i has the items [offsets[i], offsets[i + 1]).
    """

    path: str  # "fields/image"
    dtype: str  # NumPy's, or "text"
    shape: tuple[int, ...]  # of one row, or of one item
    statistics: Statistics | None
    ragged: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo(Field):
    """A field as it is stored, and the statistics of its values; the manifest has it flat."""

    statistics: Statistics | None = None  # of a ragged field: over the items
    lengths: Statistics | None = None  # of a ragged field: of the number of items per sample


@dataclass(frozen=True, slots=True)
class SplitInfo:
    fractions: dict[str, float]
    seed: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The virtual data set. People find it as `ensemble.h5`, which may be `file` or lead to it."""

    file: str
    size_bytes: int
    digest: str
    # digest of what ensemble.h5 was when the manifest was replaced, and still is after a kill right then
    before: str = ""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What one study gave to a data set that grew: the planned rows [lo, hi)."""

    workspace: str  # below the study's: "" for its own rows, "extensions/001"
    lo: int
    hi: int
    study: dict[str, Any]  # as DataSet.study
    counts: Counts


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
    filters: tuple[FilterInfo, ...] = ()
    parts: tuple[PartInfo, ...] = ()  # of a data set that grew: in the order of their rows

    def study_id_of(self, row: int) -> str:
        """Of the study that makes a row: the one that the data set began with, or an extension."""
        for part in self.parts:
            if part.lo <= row < part.hi:
                return str(part.study.get("study_id", ""))
        return str(self.study.get("study_id", ""))

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
    data = read_manifest_json(path)
    try:
        return parse_manifest(path.parent, data)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ShardError(f"{path}: not a readable manifest: {e}") from e


def read_manifest_json(path: Path) -> dict[str, Any]:
    """The manifest at `path` as it was given to `manifest_text`; raises as `read_manifest`."""
    if not path.is_file():
        raise NotADataSetError(
            f"{path.parent} is not a finished data set: it has no {NAME}; "
            "give the directory of an aggregate step, inside the workspace"
        )
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ShardError(
                f"{path}: expected {FORMAT} version {VERSION}, found {data['format']} {data['version']}"
            )
        digest = data.pop("digest")
        if combine(data) != digest:
            raise ShardError(
                f"{path}: its digest does not fit its content; the file is damaged or was edited"
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ShardError(f"{path}: not a readable manifest: {e}") from e
    return {key: value for key, value in data.items() if key not in ("format", "version")}


def parse_manifest(directory: Path, data: dict[str, Any]) -> DataSet:
    """From what `read_manifest_json` gives; raises KeyError and the like for anything else."""
    return DataSet(
        directory=directory,
        study=data["study"],
        aggregate=data["aggregate"],
        counts=Counts(**data["counts"]),
        per_sample=data["per_sample"],
        samples_per_shard=data["samples_per_shard"],
        sources=tuple(_source(entry) for entry in data["sources"]),
        failures=tuple(
            FailureGroup(f["source"], f["cause"], f["num"], _ranges(f["tasks"]), f.get("workspace", ""))
            for f in data["failures"]
        ),
        shards=tuple(ShardEntry(**entry) for entry in data["shards"]),
        fields=tuple(_field(entry) for entry in data["fields"]),
        columns=tuple(
            ColumnInfo(c["path"], c["dtype"], tuple(c["shape"]), _statistics(c), c.get("ragged", False))
            for c in data["columns"]
        ),
        splits=SplitInfo(data["splits"]["fractions"], data["splits"]["seed"], data["splits"]["counts"]),
        virtual=FileEntry(**data["virtual"]),
        content_digest=data["content_digest"],
        parts=tuple(_part(entry) for entry in data.get("parts", ())),
        filters=tuple(
            FilterInfo(f["expression"], f["num"], _ranges(f["rows"])) for f in data.get("filters", ())
        ),
    )


def _part(entry: dict[str, Any]) -> PartInfo:
    lo, hi = entry["rows"]
    return PartInfo(entry["workspace"], lo, hi, entry["study"], Counts(**entry["counts"]))


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
        filtered=_ranges(entry.get("filtered", [])),
        workspace=entry.get("workspace", ""),
        first_sample=entry.get("first_sample", 0),
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
        layout=entry.get("layout", ""),
        channels=tuple(entry.get("channels", ())),
        ragged=entry.get("ragged", False),
        graph=entry.get("graph", ""),
        role=entry.get("role", ""),
        keep_bits=entry.get("keep_bits"),
        shuffle=entry.get("shuffle", ""),
        expression=entry.get("expression", ""),
        lengths=_statistics(entry, "lengths"),
        finite=entry.get("finite", True),
    )


def _statistics(entry: dict[str, Any], key: str = "statistics") -> Statistics | None:
    return Statistics.from_json(entry[key]) if entry.get(key) else None


def _ranges(pairs: list[list[int]]) -> Ranges:
    return tuple((a, b) for a, b in pairs)
