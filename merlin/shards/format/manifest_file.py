"""The manifest: what a data set holds, and what became of every planned task (docs/shard-format.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.field import Field
from merlin.base.ranges import Ranges
from merlin.base.records import FileFormat, as_kind, indented, to_plain
from merlin.errors import NotADataSetError, ShardError
from merlin.shards.format import splits
from merlin.shards.format.counts import MANIFEST_NAME, OUTCOMES, Counts
from merlin.shards.format.digest import ALGORITHM, combine
from merlin.shards.format.shard_info import ShardInfo
from merlin.shards.format.statistics import Statistics

FORMAT = FileFormat("merlin-dataset", 2)
NAME = MANIFEST_NAME
VIRTUAL_NAME = "ensemble.h5"


class SourceInfo(Struct, frozen=True, kw_only=True):
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
    workspace: str = ""  # below the study's: "" = its own, "extensions/001" (source_workspace)
    first_sample: int = 0


class FilterInfo(Struct, frozen=True):
    """What one `valid` expression rejected; a row counts for the first expression that is not true for it."""

    expression: str
    num: int
    rows: Ranges


class FailedTasks(Struct, frozen=True):
    """Failed tasks of one source with the same cause."""

    source: str
    cause: str
    num: int
    tasks: Ranges
    workspace: str = ""  # the source's


class ShardEntry(Struct, frozen=True):
    file: str
    shard: int
    lo: int
    hi: int
    num_rows: int
    size_bytes: int
    file_digest: str
    content_digest: str
    info_digest: str
    revision: int = 0  # of the study, that wrote it

    @staticmethod
    def of(info: ShardInfo) -> ShardEntry:
        return ShardEntry(*(getattr(info, name) for name in ShardEntry.__struct_fields__))


class ColumnInfo(Struct, frozen=True):
    """A column of every shard: (rows, *shape), except the two of a ragged field.

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


class FieldInfo(Field, frozen=True, kw_only=True):
    """A field as it is stored, and the statistics of its values; the manifest has it flat."""

    statistics: Statistics | None = None  # of a ragged field: over the items
    lengths: Statistics | None = None  # of a ragged field: of the number of items per sample


class SplitInfo(Struct, frozen=True):
    fractions: dict[str, float]
    seed: int
    counts: dict[str, int]
    algorithm: str = splits.ALGORITHM


class FileEntry(Struct, frozen=True):
    """The virtual data set; the name `ensemble.h5` is that of `file`, or leads to it."""

    file: str = ""
    size_bytes: int = 0
    digest: str = ""
    # digest of ensemble.h5 before the manifest was replaced, which is what a kill right then leaves
    before: str = ""


class PartStatistics(Struct, frozen=True):
    """The statistics of a field or a column over the rows of one part."""

    statistics: Statistics | None
    lengths: Statistics | None = None


class PartInfo(Struct, frozen=True, kw_only=True):
    """What one study gave to a data set that grew, as far as the merged manifest does not say it."""

    workspace: str  # below the study's: "" for its own rows, "extensions/001"
    rows: tuple[int, int]  # the planned ones [lo, hi)
    study: dict[str, Any]  # as DataSet.study
    counts: Counts
    splits: dict[str, int]  # rows in each of them
    fields: tuple[PartStatistics, ...]
    columns: tuple[PartStatistics, ...]
    filters: tuple[FilterInfo, ...] = ()

    @property
    def lo(self) -> int:
        return self.rows[0]

    @property
    def hi(self) -> int:
        return self.rows[1]


class DataSet(Struct, frozen=True, kw_only=True):
    """A manifest, or the part of one that a study makes, described as if its rows were the whole data set."""

    directory: Path  # where it is; not written
    digest_algorithm: str = ALGORITHM
    study: dict[str, Any]
    aggregate: str
    per_sample: bool
    samples_per_shard: int
    counts: Counts
    sources: tuple[SourceInfo, ...]
    failures: tuple[FailedTasks, ...]
    content_digest: str
    filters: tuple[FilterInfo, ...] = ()
    fields: tuple[FieldInfo, ...]
    columns: tuple[ColumnInfo, ...]  # of every kind
    splits: SplitInfo
    shards: tuple[ShardEntry, ...]
    parts: tuple[PartInfo, ...] = ()  # of a data set that grew: in the order of their rows
    virtual: FileEntry = FileEntry()

    def study_id_of(self, row: int) -> str:
        """Return the id of the study that makes a row: the one that the data set began with, or an extension."""
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


def manifest_text(data: DataSet) -> str:
    """The manifest as it is stored."""
    plain = to_plain(data)
    del plain["directory"]
    for shard in plain["shards"]:
        if not shard["revision"]:
            del shard["revision"]
    of_parts = (entry for part in plain["parts"] for entry in (*part["fields"], *part["columns"]))
    for entry in (*plain["fields"], *of_parts):
        if entry["lengths"] is None:
            del entry["lengths"]
    if not data.parts:
        del plain["parts"]
    if not data.virtual.before:
        del plain["virtual"]["before"]
    return sealed(plain)


def sealed(plain: dict[str, Any]) -> str:
    """The text of a manifest: its content, and the digest of that content."""
    body = {**FORMAT.head(), **plain}
    return indented({**body, "digest": combine(body)})


def manifest_path(path: Path) -> Path:
    return path if path.name == NAME else path / NAME


def unfinished(directory: Path) -> str:
    """Why a data set that is made outside of a study has no manifest yet, and what to do; "" if none is made here."""
    what = next((what for what in ("import", "collect") if (directory / f".{what}").is_dir()), "")
    return what and (
        f"{directory} is no data set yet: its {what} has not finished; give the same command again "
        f"(merlin shards {what} … --out {directory}), and it goes on"
    )


def source_workspace(data: DataSet, source: SourceInfo) -> Path:
    """Return the workspace in which a source's tasks ran, and in which they are run again."""
    # the data set lies below the study's workspace, at the path that is the aggregate's id
    study = data.directory.parents[len(Path(data.aggregate).parts) - 1]
    return study / source.workspace


def row_outcome(data: DataSet, source: SourceInfo, task: int) -> tuple[str, str]:
    """What became of the planned row of a source's task, and the cause or the filter, if that is known."""

    def holds(ranges: Ranges, number: int) -> bool:
        return any(lo <= number < hi for lo, hi in ranges)

    outcome = next((name for name in OUTCOMES[1:] if holds(getattr(source, name), task)), "ok")
    if outcome == "filtered":
        row = source.first_row + task
        return outcome, next((f.expression for f in data.filters if holds(f.rows, row)), "")
    groups = (f for f in data.failures if (f.source, f.workspace) == (source.id, source.workspace))
    return outcome, next((f.cause for f in groups if holds(f.tasks, task)), "")


def read_manifest(path: Path) -> DataSet:
    """Read the manifest in directory `path` (or at `path`).

    Raises:
        NotADataSetError: there is no manifest.
        ShardError: it is damaged, or of a version this code does not know.
    """
    path = manifest_path(path)
    if not path.is_file():
        raise NotADataSetError(
            unfinished(path.parent)
            or f"{path.parent} is not a finished data set: it has no {NAME}; "
            "give the directory of an aggregate step, inside the workspace"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if wrong := FORMAT.mismatch(data):
            raise ShardError(f"{path}: {wrong}")
        digest = data.pop("digest")
        if combine(data) != digest:
            raise ShardError(
                f"{path}: its digest does not fit its content; the file is damaged or was edited"
            )
        return as_kind({**data, "directory": str(path.parent)}, DataSet)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError) as e:
        raise ShardError(f"{path}: not a readable manifest: {e}") from e
