"""The study that made a data set, and what it promises about it if the manifest is lost or damaged.

The plan says which rows there are, the ledger which of them ended ok, and each sidecar what its shard was written with.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from merlin.base.files import absolute_path
from merlin.base.ranges import to_ranges
from merlin.errors import MerlinError, ShardError, WorkspaceError
from merlin.ledger.replay import replay
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.manifest_file import VIRTUAL_NAME, DataSet, FileEntry
from merlin.shards.format.rows import row_map
from merlin.shards.format.segments import Array
from merlin.shards.format.shard_info import ShardInfo, info_name, read_info, shard_name
from merlin.shards.writing.growing import merge, rows_of
from merlin.shards.writing.manifest import make_part
from merlin.workspace.directory import Workspace, is_workspace, members, open_workspace


def find_aggregate(directory: Path) -> tuple[Workspace, StepInstance] | None:
    """The workspace above a data set's directory, and the aggregate that it belongs to; None if there is none."""
    directory = absolute_path(directory)
    for parent in directory.parents:
        if is_workspace(parent):
            try:
                workspace = open_workspace(parent)
            except WorkspaceError:
                return None
            for instance in workspace.plan.instances:
                if instance.kind is StepKind.AGGREGATE and workspace.data_set_dir(instance) == directory:
                    return workspace, instance
            return None
    return None


def manifest_instance(workspace: Workspace, aggregate: StepInstance) -> StepInstance:
    """The step instance that writes the manifest of an aggregate. Raises WorkspaceError if the plan has none."""
    for instance in workspace.plan.instances:
        if instance.kind is StepKind.MANIFEST and instance.finishes == aggregate.id:
            return instance
    raise WorkspaceError(f"the plan of {workspace.path} writes no manifest for '{aggregate.id}'")


def has_manifest_outcome(workspace: Workspace, aggregate: StepInstance) -> bool:
    """Ask the ledger whether the data set of an aggregate was finished."""
    manifest = manifest_instance(workspace, aggregate)
    return replay(workspace.ledger_dir, workspace.plan).outcomes[manifest.id][0] == Outcome.OK


def promised(directory: Path) -> DataSet | None:
    """The manifest that a repair would write if every shard were intact; None if it is not known.

    A shard without a valid sidecar gets a content digest that no shard has.
    """
    try:
        found = find_aggregate(directory)
        if found is None:
            return None
        parts = []
        for study in members(found[0]):
            aggregate = study.instance(found[1].id)
            if has_manifest_outcome(study, aggregate):
                parts.append(make_part(study, aggregate, partial(_as_described, study, aggregate)))
        if not parts:
            return None
        return replace(merge(sorted(parts, key=rows_of)), virtual=FileEntry(VIRTUAL_NAME))
    except (MerlinError, KeyError):  # no sidecar is left that names the columns
        return None


def _as_described(workspace: Workspace, aggregate: StepInstance, shard: int, present: Array) -> ShardInfo:
    """The content of the sidecar; if that is unreadable, only the rows that ended ok."""
    directory = workspace.data_set_dir(aggregate)
    try:
        return read_info(directory / info_name(shard))
    except ShardError:
        lo, hi = row_map(workspace, aggregate).shard_range(shard)
        path = directory / shard_name(shard)
        return ShardInfo(
            file=path.name,
            shard=shard,
            lo=lo,
            hi=hi,
            num_rows=len(present),
            size_bytes=path.stat().st_size if path.is_file() else 0,
            skeleton="",
            datasets=(),
            rows=to_ranges(present),
        )
