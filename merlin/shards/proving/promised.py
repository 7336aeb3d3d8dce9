"""What a data set has to hold whose manifest is lost or damaged, as far as its study can tell: the plan says which
rows there are, the ledger which of them ended ok, and each sidecar what its shard was written with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.errors import MerlinError, ShardError
from merlin.shards.format.manifest_file import VIRTUAL_NAME, DataSet, parse_manifest
from merlin.shards.format.rows import RowMap, to_ranges
from merlin.shards.format.shard_info import ShardInfo, info_name, read_info, shard_name
from merlin.shards.proving.whereabouts import find_aggregate, has_manifest_outcome, manifest_instance
from merlin.shards.writing.growing import merge, rows_of
from merlin.shards.writing.manifest import make_part

if TYPE_CHECKING:
    from merlin.plan.plan import StepInstance
    from merlin.workspace.directory import Workspace


def promised(directory: Path) -> DataSet | None:
    """The manifest that a repair would write if every shard were intact; None if that cannot be told.

    A shard whose sidecar does not vouch for it has a content digest that no shard has.
    """
    from merlin.workspace.directory import members

    try:
        found = find_aggregate(directory)
        if found is None:
            return None
        parts = []
        for study in members(found[0]):
            aggregate = study.instance(found[1].id)
            if has_manifest_outcome(study, aggregate):
                parts.append(make_part(study, manifest_instance(study, aggregate), _as_described))
        if not parts:
            return None
        whole = merge(json.loads(json.dumps(sorted(parts, key=rows_of))))
    except (MerlinError, KeyError):  # no sidecar tells the columns
        return None
    virtual = {"file": VIRTUAL_NAME, "size_bytes": 0, "digest": ""}
    return parse_manifest(directory, {**whole, "virtual": virtual})


def _as_described(
    workspace: Workspace, aggregate: StepInstance, rows: RowMap, shard: int, present: np.ndarray[Any, Any]
) -> ShardInfo:
    """What the sidecar says, or nothing but the rows that ended ok."""
    directory = workspace.data_set_dir(aggregate)
    try:
        return read_info(directory / info_name(shard))
    except ShardError:
        lo, hi = rows.shard_range(shard)
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
            rows=tuple(to_ranges(present)),
        )
