"""Data sets that grow: each study adds its part, the one they began with and then its extensions in order.

A part is what a study's rows put into the manifest, as if they were all of the data set; the manifest is the parts
merged. A manifest of several parts lists under `parts` what merging would lose, so that each can be taken out
again and replaced when its study runs again. Parts are merged in the order of their rows, and only as far as their
rows follow each other: while a study is not finished, the parts behind it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from merlin.base.files import remove_leftovers, replace_link, replacing, write_text
from merlin.base.locks import locked
from merlin.base.records import to_plain
from merlin.errors import NotADataSetError, ShardError
from merlin.ledger.replay import Replay, replay
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.digest import combine, digest_bytes
from merlin.shards.format.manifest_file import (
    NAME,
    VIRTUAL_NAME,
    ColumnInfo,
    DataSet,
    FieldInfo,
    FileEntry,
    FilterInfo,
    PartInfo,
    PartStatistics,
    manifest_text,
    read_manifest,
)
from merlin.shards.format.rows import aggregate_of
from merlin.shards.format.statistics import merge as merge_statistics
from merlin.shards.format.virtual import write_virtual
from merlin.workspace.directory import INFO_DIR, Workspace, members

MakePart = Callable[[Workspace, StepInstance], DataSet]
E = TypeVar("E", FieldInfo, ColumnInfo)

LOCK_NAME = "data_sets.lock"
# below merlin_info, for each aggregate whose part is complete: how many records it had
_WAITING = "waiting_parts"

_SAME = ("digest_algorithm", "aggregate", "per_sample", "samples_per_shard")  # in all parts
# of a field, what may change from part to part; manifests of earlier versions do not say whether it is finite
_MAY_CHANGE = ("statistics", "lengths", "description", "finite")


def require_members(directory: Path, studies: Sequence[Workspace]) -> None:
    """Raise ShardError if the data set in `directory` has rows of an extension that is gone.

    Otherwise the numbers of its rows and shards would be used again. Without a manifest there is nothing to
    lose.
    """
    if not (directory / NAME).is_file():
        return
    there = {study.member for study in studies}
    gone = {source.workspace for source in read_manifest(directory).sources} - there
    if gone:
        raise ShardError(
            f"{directory} has rows of {', '.join(sorted(gone))}, which is gone; put it back, or the study cannot grow"
        )


# ------------------------------------------------------------------------------- merging, pure


def merge(parts: Sequence[DataSet]) -> DataSet:
    """The manifest of several parts, whose rows follow each other; ShardError if they do not fit together."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        _require_same(first, part)
    shards = tuple(entry for part in parts for entry in part.shards)
    failures = (group for part in parts for group in part.failures)
    in_splits = {name: sum(part.splits.counts[name] for part in parts) for name in first.splits.counts}
    return replace(
        first,
        study={**first.study, "finished": max(part.study["finished"] for part in parts)},
        counts=reduce(add, (part.counts for part in parts)),
        splits=replace(first.splits, counts=in_splits),
        fields=_with_statistics([part.fields for part in parts]),
        columns=_with_statistics([part.columns for part in parts]),
        sources=tuple(source for part in parts for source in part.sources),
        failures=tuple(sorted(failures, key=lambda group: -group.num)),
        filters=_joined_filters([part.filters for part in parts]),
        shards=shards,
        content_digest=combine([entry.content_digest for entry in shards]),
        parts=tuple(_remembered(part, first) for part in parts),
    )


def split(data: DataSet) -> list[DataSet]:
    """The parts that a manifest was merged from."""
    if not data.parts:
        return [replace(data, virtual=FileEntry())]
    return [_part(data, known) for known in data.parts]


def rows_of(part: DataSet) -> tuple[int, int]:
    """The planned rows [lo, hi) of a part."""
    lo = part.sources[0].first_row
    return lo, lo + part.counts.planned


def _part(data: DataSet, known: PartInfo) -> DataSet:
    shards = tuple(entry for entry in data.shards if known.lo <= entry.lo < known.hi)
    return replace(
        data,
        study=known.study,
        counts=known.counts,
        filters=known.filters,
        splits=replace(data.splits, counts=known.splits),
        sources=tuple(source for source in data.sources if source.workspace == known.workspace),
        failures=tuple(group for group in data.failures if group.workspace == known.workspace),
        shards=shards,
        content_digest=combine([entry.content_digest for entry in shards]),
        fields=tuple(
            replace(field, statistics=kept.statistics, lengths=kept.lengths)
            for field, kept in zip(data.fields, known.fields, strict=True)
        ),
        columns=tuple(
            replace(column, statistics=kept.statistics)
            for column, kept in zip(data.columns, known.columns, strict=True)
        ),
        parts=(),
        virtual=FileEntry(),
    )


def _remembered(part: DataSet, first: DataSet) -> PartInfo:
    """Return what the merged manifest does not say about a part; its fields are in the order of the first part's."""
    fields = {field.path: field for field in part.fields}
    columns = {column.path: column for column in part.columns}
    return PartInfo(
        workspace=_place(part),
        rows=rows_of(part),
        study=part.study,
        counts=part.counts,
        splits=part.splits.counts,
        filters=part.filters,
        fields=tuple(PartStatistics(fields[f.path].statistics, fields[f.path].lengths) for f in first.fields),
        columns=tuple(PartStatistics(columns[c.path].statistics) for c in first.columns),
    )


def _require_same(first: DataSet, other: DataSet) -> None:
    """Raise ShardError unless everything that is not a sum over the parts is the same in both."""
    lo, hi = rows_of(other)
    refused = f"rows {lo}-{hi - 1} do not fit the data set"
    for key in _SAME:
        ours, theirs = getattr(first, key), getattr(other, key)
        if ours != theirs:
            raise ShardError(f"{refused}: their {key} is {theirs!r}, that of the rows before is {ours!r}")
    for before, after in ((first.fields, other.fields), (first.columns, other.columns)):
        known, found = _schema(before), _schema(after)
        for name in known.keys() | found.keys():
            if known.get(name) != found.get(name):
                raise ShardError(
                    f"{refused}: '{name}' is {found.get(name, 'not there')}, "
                    f"in the rows before it is {known.get(name, 'not there')}"
                )


def _schema(entries: Sequence[FieldInfo] | Sequence[ColumnInfo]) -> dict[str, Mapping[str, Any]]:
    """What must not change from part to part, by path."""
    return {e.path: {k: v for k, v in to_plain(e).items() if k not in _MAY_CHANGE} for e in entries}


def _with_statistics(groups: Sequence[Sequence[E]]) -> tuple[E, ...]:
    """The entries of the first part, with the statistics of all."""
    by_path = [{entry.path: entry for entry in entries} for entries in groups]
    merged = []
    for first in groups[0]:
        same = [entries[first.path] for entries in by_path]
        entry = replace(first, statistics=merge_statistics([each.statistics for each in same]))
        if isinstance(entry, FieldInfo):
            lengths = [each.lengths for each in same if isinstance(each, FieldInfo)]
            entry = replace(entry, lengths=merge_statistics(lengths))
        merged.append(entry)
    return tuple(merged)


def _joined_filters(groups: Sequence[Sequence[FilterInfo]]) -> tuple[FilterInfo, ...]:
    found: dict[str, FilterInfo] = {}
    for one in (one for filters in groups for one in filters):
        known = found.get(one.expression, FilterInfo(one.expression, 0, ()))
        found[one.expression] = FilterInfo(one.expression, known.num + one.num, (*known.rows, *one.rows))
    return tuple(found.values())


# ------------------------------------------------------------------------------- on disk


def publish(workspace: Workspace, aggregate: StepInstance, make_part: MakePart) -> bool:
    """Put a study's part into the manifest of its data set, in place of what it had there before.

    A reader finds the data set as it was or as it is now. False if a study before this one is not finished: then its
    manifest step will take this part in, also if the ledger does not say yet by then that this one has ended.
    """
    part = make_part(workspace, aggregate)
    # one study at a time changes the data sets of a workspace; the kernel releases the lock of a killed one
    with locked(workspace.root / INFO_DIR / LOCK_NAME, wait=True):
        parts = [part, *_others(workspace, aggregate, part, make_part).values()]
        fitting: list[DataSet] = []
        for each in sorted(parts, key=rows_of):
            if rows_of(each)[0] == (rows_of(fitting[-1])[1] if fitting else 0):
                fitting.append(each)
        is_in = any(each is part for each in fitting)
        if not is_in:
            _let_wait(workspace, aggregate)
        if fitting:
            write_manifest_file(workspace.data_set_dir(aggregate), merge(fitting))
    return is_in


def _place(part: DataSet) -> str:
    """The workspace that a part was made in, below the study's."""
    return part.sources[0].workspace


def _others(
    workspace: Workspace, aggregate: StepInstance, part: DataSet, make_part: MakePart
) -> dict[str, DataSet]:
    """The parts of other studies: those in the manifest, and those of finished studies that are not in it."""
    try:
        known = split(read_manifest(workspace.data_set_dir(aggregate)))
    except ShardError:  # there is none, or it is damaged
        known = []
    others = {_place(each): each for each in known if _place(each) != _place(part)}
    for member in members(workspace):
        if member.member in others or member.path == workspace.path:
            continue
        if _has_part(member, aggregate.id):
            others[member.member] = make_part(member, member.instance(aggregate.id))
    return others


def _has_part(member: Workspace, aggregate_id: str) -> bool:
    """True if the task that writes the manifest of this aggregate has ended ok, or if the study's part waits."""
    for instance in member.plan.instances:
        if instance.kind is StepKind.MANIFEST and instance.finishes == aggregate_id:
            ledger = replay(member.ledger_dir, member.plan)
            is_finished = ledger.outcomes_of(instance.id)[0] == Outcome.OK
            return is_finished or _waits(member, member.instance(aggregate_id), ledger)
    return False


def _let_wait(workspace: Workspace, aggregate: StepInstance) -> None:
    """Note that the part is complete. That is true until the ledger has more records of its tasks."""
    ledger = replay(workspace.ledger_dir, workspace.plan)
    write_text(workspace.info / _WAITING / aggregate.id, str(_num_records(ledger, aggregate)))


def _waits(member: Workspace, aggregate: StepInstance, ledger: Replay) -> bool:
    try:
        noted = (member.info / _WAITING / aggregate.id).read_text(encoding="utf-8")
    except OSError:
        return False
    return noted == str(_num_records(ledger, aggregate))


def _num_records(ledger: Replay, aggregate: StepInstance) -> int:
    return sum(len(ledger.entries(id)) for id in (*aggregate_of(aggregate).sources, aggregate.id))


def write_manifest_file(directory: Path, data: DataSet) -> None:
    """Replace the manifest, and what it vouches for, in one rename.

    A manifest that is replaced keeps its own file of the virtual data set until then, so the new one gets another
    name; ``ensemble.h5`` leads to the one that counts.
    """
    for mine in (NAME, VIRTUAL_NAME):  # a writer that was killed
        remove_leftovers(directory, mine)
    name = _free_name(directory)
    path = directory / name
    write_virtual(path, data)
    content = path.read_bytes()
    before = _digest_of(directory / VIRTUAL_NAME) if name != VIRTUAL_NAME else ""
    virtual = FileEntry(name, len(content), digest_bytes(content), before)
    write_text(directory / NAME, manifest_text(replace(data, virtual=virtual)))
    if name != VIRTUAL_NAME:
        _lead(directory / VIRTUAL_NAME, path)
    for old in directory.glob(_generation("*")):
        if old.name != name:
            old.unlink(missing_ok=True)


def _digest_of(path: Path) -> str:
    try:
        return digest_bytes(path.read_bytes())
    except OSError:
        return ""


def _generation(number: int | str) -> str:
    stem, _, suffix = VIRTUAL_NAME.rpartition(".")
    return f"{stem}_{number}.{suffix}"


def _free_name(directory: Path) -> str:
    """`ensemble.h5` for the first manifest; then a name that the present manifest does not use."""
    try:
        used = read_manifest(directory).virtual.file
    except NotADataSetError:
        return VIRTUAL_NAME
    except ShardError:
        used = ""  # damaged: it is replaced
    number = 1
    while _generation(number) == used:
        number += 1
    return _generation(number)


def _lead(link: Path, target: Path) -> None:
    """Make `link` stand for `target` in one rename: a symbolic link, or a copy where there are none."""
    try:
        replace_link(link, target.name)
    except OSError:
        with replacing(link) as copy:
            copy.write_bytes(target.read_bytes())
