"""The sidecar of a shard, computed from the shard itself: to prove it without its sidecar, or to get that back."""

from __future__ import annotations

import numpy as np

from merlin.base.ranges import Ranges, to_ranges, touching
from merlin.errors import ShardError
from merlin.shards.evidence.stored import StoredColumn, StoredShard
from merlin.shards.format.digest import TEXT_BLOCK_ROWS, block_rows, combine, digest_array, digest_bytes
from merlin.shards.format.manifest_file import DataSet, FieldInfo, ShardEntry
from merlin.shards.format.row_check import encode
from merlin.shards.format.shard_info import PROVENANCE, DatasetInfo, Extent, ShardInfo, skeleton_digest
from merlin.shards.format.statistics import Accumulator, Statistics


def content_digest(stored: StoredShard) -> str:
    """The digest of all values, as sidecars and the manifest have it (see ShardInfo). Raises ShardError."""
    found = []
    for name in sorted(stored.columns):
        column = stored.columns[name]
        if not name.startswith(PROVENANCE):
            found.append((name, combine(column.dtype, column.shape, _blocks(stored, column))))
    return combine(found)


def reread_info(data: DataSet, entry: ShardEntry, filtered: dict[str, Ranges]) -> ShardInfo:
    """The sidecar of an intact shard that has lost its own; `filtered` is what the manifest lists.

    Raises ShardError if the shard cannot be read.
    """
    path = data.directory / entry.file
    fields = {field.path: field for field in data.fields}
    described = {column.path: column for column in data.columns}
    with StoredShard.by_itself(path) as stored:
        datasets = []
        for name, column in described.items():
            if name not in stored.columns:
                raise ShardError(f"{path}: has no '{name}'")
            field = fields.get(name.removesuffix("/values").removesuffix("/offsets"))
            statistics = _statistics(stored, stored.columns[name], field, column.statistics is not None)
            datasets.append(_describe(stored, stored.columns[name], field, column.ragged, statistics))
        rows = stored.read("row", 0, stored.num_rows)
        values, readable = stored.checks(rows, [d.name for d in datasets])
    if not readable.all():
        raise ShardError(f"{path}: not all of its rows can be read")
    return ShardInfo(
        file=entry.file,
        shard=entry.shard,
        lo=entry.lo,
        hi=entry.hi,
        num_rows=len(rows),
        size_bytes=path.stat().st_size,
        skeleton=skeleton_digest(path, datasets),
        datasets=tuple(datasets),
        filtered=filtered,
        rows=to_ranges(rows),
        checks=encode(values),
        revision=entry.revision,
    )


def filtered_in(data: DataSet, lo: int, hi: int) -> dict[str, Ranges]:
    """What filters rejected of rows [lo, hi), by expression."""
    found = {}
    for each in data.filters:
        ranges = tuple((max(a, lo), min(b, hi)) for a, b in touching(each.rows, lo, hi))
        if ranges:
            found[each.expression] = ranges
    return found


def _step(column: StoredColumn) -> int:
    return TEXT_BLOCK_ROWS if column.is_text else block_rows(column.row_bytes)


def _spans(column: StoredColumn) -> list[tuple[int, int]]:
    """Rows [lo, hi) of each block."""
    step, num = _step(column), column.shape[0] if column.shape else 0
    return [(lo, min(lo + step, num)) for lo in range(0, num, step)]


def _blocks(stored: StoredShard, column: StoredColumn) -> list[str]:
    """Digests of a column's blocks."""
    try:
        return [digest_array(stored.read(column.name, lo, hi)) for lo, hi in _spans(column)]
    except UnicodeEncodeError as e:
        raise ShardError(f"{stored.path}: '{column.name}' holds bytes that are no text") from e


def _describe(
    stored: StoredShard,
    column: StoredColumn,
    field: FieldInfo | None,
    ragged: bool,
    statistics: Statistics | None,
) -> DatasetInfo:
    blocks = tuple(_blocks(stored, column))
    stored_as = field if column.chunks is not None else None
    return DatasetInfo(
        name=column.name,
        dtype=column.dtype,
        shape=column.shape,
        compression=stored_as.compression if stored_as is not None else "none",
        block_rows=_step(column),
        blocks=blocks,
        extents=tuple(_extents(stored, column, blocks)),
        statistics=statistics,
        ragged=ragged,
        shuffle=stored_as.shuffle if stored_as is not None else "",
        references=column.offset if column.is_text and column.shape[0] else None,
    )


def _extents(stored: StoredShard, column: StoredColumn, blocks: tuple[str, ...]) -> list[Extent]:
    if column.chunks is not None:
        return [
            chunk._replace(digest=digest_bytes(stored.peek(chunk.offset, chunk.nbytes)))
            for chunk in column.chunks.table
        ]
    if column.is_text or not column.row_bytes:
        return []
    found, begin, size = [], column.offset or 0, column.row_bytes
    for (lo, hi), digest in zip(_spans(column), blocks, strict=True):
        found.append(Extent(begin + lo * size, (hi - lo) * size, lo, hi, digest))
    return found


def _statistics(
    stored: StoredShard, column: StoredColumn, field: FieldInfo | None, is_described: bool
) -> Statistics | None:
    """The statistics of a column, block by block as the packer takes them.

    The last digits of sums depend on the blocks.
    """
    name = column.name
    if name.endswith("/offsets") and field is not None and field.ragged:
        lengths = Accumulator((), None)
        lengths.add(np.diff(stored.offsets(name.removesuffix("/offsets"))))
        return lengths.result()
    is_numeric = not column.is_text and column.numpy.kind in "iufb"
    if not is_numeric or not (field is not None or is_described):
        return None
    taken = Accumulator(column.shape[1:], field.channel_axis if field is not None else None)
    for lo, hi in _spans(column):
        taken.add(stored.read(name, lo, hi))
    return taken.result()
