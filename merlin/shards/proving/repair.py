"""Bring a damaged data set back: what to do about a report, and all repairs that run no task.

Rows whose fields are lost have to run again, which is the executor's work. All else is rebuilt here from what still
proves itself: sidecars from shards, shards from their proven rows and the study's samples, the rest from these.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import replacing, write_text
from merlin.base.ranges import Ranges, numbers, to_ranges
from merlin.errors import ShardError
from merlin.ledger.replay import replay
from merlin.plan.plan import StepInstance
from merlin.shards.evidence.previous import previous_rows
from merlin.shards.format.digest import combine
from merlin.shards.format.manifest_file import (
    NAME,
    VIRTUAL_NAME,
    DataSet,
    ShardEntry,
    manifest_text,
    read_manifest,
)
from merlin.shards.format.row_check import FIELDS, decode
from merlin.shards.format.rows import NO_ROWS, row_map
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import ShardInfo, info_name, next_info_name, sized_info
from merlin.shards.proving.damage import DataSetProblem, lost_rows
from merlin.shards.proving.expected import expected_rows
from merlin.shards.proving.reread import filtered_in, reread_info
from merlin.shards.writing.gather import write_shard
from merlin.shards.writing.growing import write_manifest_file
from merlin.shards.writing.manifest import present_rows
from merlin.workspace.directory import Workspace

_MISDESCRIBED = ("out of range", "wrong schema")  # what is packed again may be described in another way


class RepairPlan(Struct, frozen=True):
    """What to do; shards by their numbers, ascending."""

    manifest: bool  # write it anew from the ledger and the sidecars
    virtual: bool
    sidecars: tuple[int, ...]  # write them anew from their shards
    repack: tuple[int, ...]  # pack again from proven rows
    doubtful: tuple[int, ...]  # their rows are not proven by the manifest until they are packed again
    rows: Array  # to run again

    @property
    def needs_workspace(self) -> bool:
        return self.manifest or bool(self.repack) or len(self.rows) > 0


def plan_repair(data: DataSet, problems: Sequence[DataSetProblem]) -> RepairPlan:
    """Decide what to do about the findings of a full check."""
    files = {p.file for p in problems}
    rows = lost_rows(problems)
    sidecars, repack, doubtful = [], [], []
    is_misdescribed = any(p.kind in _MISDESCRIBED for p in problems)
    for entry in data.shards:
        has_lost = bool(((rows >= entry.lo) & (rows < entry.hi)).any())
        is_sidecar_bad = info_name(entry.shard) in files
        if entry.file in files and not has_lost:
            repack.append(entry.shard)
        if is_sidecar_bad and has_lost:
            doubtful.append(entry.shard)
        elif is_sidecar_bad:
            sidecars.append(entry.shard)
    others = files - {e.file for e in data.shards} - {info_name(e.shard) for e in data.shards}
    return RepairPlan(
        manifest=(NAME in others or is_misdescribed) and not len(rows),  # else the run writes it
        virtual=bool(others - {NAME}),
        sidecars=tuple(sidecars),
        repack=tuple(repack),
        doubtful=tuple(doubtful),
        rows=rows,
    )


def make_room(directory: Path, names: Iterable[str]) -> None:
    """Remove empty directories that stand where files belong. Raises ShardError for one that is not empty."""
    for path in (directory / name for name in names):
        if path.is_dir() and not path.is_symlink():
            try:
                path.rmdir()
            except OSError as e:
                raise ShardError(
                    f"{path}: a directory stands where a file belongs, and it cannot be removed ({e.strerror}): "
                    "move it elsewhere, then repair again"
                ) from e


# ------------------------------------------------------------------------- without a workspace


def rebuild_sidecars(data: DataSet, shards: Iterable[int]) -> None:
    """Write the sidecars of intact shards anew, or keep those that fit; the manifest then names these.

    Raises ShardError for a shard whose content is not the manifest's.
    """
    entries = {entry.shard: entry for entry in data.shards}
    changes = {}
    for shard in shards:
        info = _fitting_sidecar(data, entries[shard])
        if info is None:
            info = reread_info(data, entries[shard], filtered_in(data, entries[shard].lo, entries[shard].hi))
            if info.content_digest != entries[shard].content_digest:
                raise ShardError(f"{data.directory / info.file}: its content is not what the manifest says")
        write_text(data.directory / info_name(shard), info.to_json())
        changes[shard] = info
    note_shards(data.directory, changes)


def _fitting_sidecar(data: DataSet, entry: ShardEntry) -> ShardInfo | None:
    """The sidecar on disk, if it fits the shard but is not the one that the manifest was made from."""
    info = sized_info(data.directory, entry.shard)
    return info if info is not None and info.content_digest == entry.content_digest else None


def note_shards(directory: Path, infos: Mapping[int, ShardInfo], *, virtual: bool = False) -> None:
    """Let the manifest name these shards as they are now; their content is the same as before.

    The virtual data set stays as it is, since other shards may be lost; `virtual` writes it anew.
    """
    data = read_manifest(directory)
    shards = tuple(ShardEntry.of(infos[e.shard]) if e.shard in infos else e for e in data.shards)
    noted = replace(data, shards=shards, content_digest=combine([entry.content_digest for entry in shards]))
    if virtual:
        write_manifest_file(directory, noted)
    elif shards != data.shards:
        write_text(directory / NAME, manifest_text(noted))


# ------------------------------------------------------------------------- with one


def repack(data: DataSet, shards: Iterable[int], workspaces: Mapping[str, Workspace]) -> None:
    """Pack shards again whose rows are all proven. Raises ShardError for rows that are not, after all.

    `workspaces`: the study and its extensions, by their place below the study's.
    """
    entries = {entry.shard: entry for entry in data.shards}
    infos = {}
    for shard in shards:
        entry = entries[shard]
        workspace = workspaces[workspace_of_row(data, entry.lo)]
        absent = absent_rows(data, entry)
        infos[shard] = write_shard(workspace, workspace.instance(data.aggregate), shard, absent)
    note_shards(data.directory, infos)


def workspace_of_row(data: DataSet, row: int) -> str:
    """Where the task of a row ran, below the study's workspace. Raises ShardError for a row of no source."""
    for source in data.sources:
        if source.first_row <= row < source.first_row + source.num_tasks:
            return source.workspace
    raise ShardError(f"{data.directory}: row {row} belongs to no source in the manifest")


def absent_rows(data: DataSet, entry: ShardEntry) -> Ranges:
    """Rows of a shard whose tasks did not end ok; rows that filters rejected are not among them."""
    there = expected_rows(data, entry.lo, entry.hi)
    filtered = numbers(r for ranges in filtered_in(data, entry.lo, entry.hi).values() for r in ranges)
    return to_ranges(np.setdiff1d(np.arange(entry.lo, entry.hi), np.union1d(there, filtered)))


def remember_filtered(data: DataSet, shards: Iterable[int]) -> None:
    """Leave what the manifest knows of filtered rows where the packer finds it, for shards without a sidecar."""
    for entry in data.shards:
        filtered = filtered_in(data, entry.lo, entry.hi)
        if entry.shard in shards and filtered:
            known = {name: getattr(entry, name) for name in ("file", "shard", "lo", "hi")}
            info = ShardInfo(**known, num_rows=0, size_bytes=0, skeleton="", datasets=(), filtered=filtered)
            write_text(data.directory / next_info_name(entry.shard), info.to_json())


def changed_rows(before: ShardInfo, after: ShardInfo) -> Array:
    """Rows that both versions of a shard hold with different values."""
    old, new = numbers(before.rows), numbers(after.rows)
    both, at_old, at_new = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    differs = decode(before.checks)[at_old, FIELDS] != decode(after.checks)[at_new, FIELDS]
    return np.asarray(both[differs])


# ------------------------------------------------------------------------- without a manifest


def lost_without_manifest(workspace: Workspace, aggregate: StepInstance) -> Array:
    """Rows (n,) of a study that ended ok and that no sidecar vouches for.

    A shard that has the size in its sidecar is taken for intact here: a full check follows once there is a
    manifest.
    """
    rows = row_map(workspace, aggregate)
    ended = replay(workspace.ledger_dir, workspace.plan).outcomes
    outcomes = [ended[source] for source in rows.aggregate.sources]
    directory = workspace.data_set_dir(aggregate)
    lost = [NO_ROWS]
    for shard in rows.shards:
        if sized_info(directory, shard) is None:
            found, _ = previous_rows(directory, shard)
            known = [each.rows for each in found] + [r for each in found for r in each.filtered.values()]
            for each in found:
                each.close()
            present = present_rows(rows, outcomes, shard)
            lost.append(np.setdiff1d(present, np.concatenate([*known, NO_ROWS])))
    return np.concatenate(lost)


# ------------------------------------------------------------------------- of a copy


def lend(copy: Path, place: Path) -> None:
    """Complete the data set's place in its workspace, where its manifest is gone, with files of the copy."""
    for path in [*sorted(copy.glob("shard_*")), copy / VIRTUAL_NAME, copy / NAME]:
        if path.is_file() and not (place / path.name).exists():
            _copy(path, place / path.name)


def take_over(place: Path, copy: Path) -> list[str]:
    """Replace the files that differ in the copy, the manifest last; returns their names."""
    data = read_manifest(place)
    names = [name for entry in data.shards for name in (entry.file, info_name(entry.shard))]
    taken = []
    for name in dict.fromkeys([*names, data.virtual.file, VIRTUAL_NAME, NAME]):
        if not (copy / name).is_file() or not filecmp.cmp(place / name, copy / name, shallow=False):
            make_room(copy, [name])
            _copy(place / name, copy / name)
            taken.append(name)
    return taken


def _copy(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
