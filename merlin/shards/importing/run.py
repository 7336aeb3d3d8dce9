"""Importing: the samples of any files become the shards and the manifest of a data set, one shard at a time.

Memory: a few blocks of a shard's columns, eight bytes per sample for its id, what a source keeps open (the rows
of a shard of CSV, a row group of Parquet), and the record of samples that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from merlin.errors import ShardError, UsageError
from merlin.plan.plan import Aggregate
from merlin.shards.export.view import Array
from merlin.shards.format.digest import combine
from merlin.shards.format.manifest_file import NAME, DataSet, read_manifest
from merlin.shards.format.segments import Values
from merlin.shards.importing import write
from merlin.shards.importing.numbering import Numbering, number_samples
from merlin.shards.importing.resolve import make_streams
from merlin.shards.importing.source_file import SourceFile
from merlin.shards.importing.sources import open_source
from merlin.shards.importing.state import Done, State
from merlin.shards.importing.streams import Stream
from merlin.shards.writing.graph_check import refuse_bad_graphs
from merlin.shards.writing.piece import Piece
from merlin.spec.import_schema import ImportSchema

Progress = Callable[[int, int], None]  # samples done, samples in all


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported: columns, and the row of every position."""

    schema: ImportSchema
    streams: tuple[Stream, ...]
    numbering: Numbering
    aggregate: Aggregate
    identity: str  # of the schema and the files
    schema_digest: str

    @property
    def rows(self) -> Array:
        """(num,) int64, ascending."""
        return self.numbering.rows

    def sample_ids(self, rows: Array) -> Array:
        return self.numbering.sample_ids(rows)

    @property
    def num(self) -> int:
        return len(self.rows)

    @property
    def planned(self) -> int:
        """Rows up to the last sample."""
        return int(self.rows[-1]) + 1 if self.num else 0

    @property
    def num_shards(self) -> int:
        return max(1, -(-self.planned // self.aggregate.samples_per_shard))


def import_data(
    paths: Sequence[Path],
    schema: ImportSchema,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    """Make a data set in the directory `out`. Shards that a killed import of the same files wrote are kept.

    An import that fails for what is in the files leaves nothing.

    Raises:
        UsageError: the schema does not fit the files, or `out` holds something else.
        ShardError: a file cannot be read, or a value does not fit (with its file, row and column).
    """
    sources = [open_source(path, schema.samples, schema.success) for path in paths]
    try:
        what = plan_import(schema, sources)
        state = State(out, what.identity)
        try:
            done = state.begin(overwrite=overwrite)
            if not (out / NAME).is_file():
                try:
                    _write_missing(what, out, state, done, progress)
                except ShardError:  # the files or the schema have to change: these shards are of no use
                    state.discard()
                    raise
                write.write_manifest(out, what, done)
                state.end()
            return read_manifest(out)
        finally:
            state.close()
    finally:
        for source in sources:
            source.close()


def plan_import(schema: ImportSchema, sources: Sequence[SourceFile]) -> Import:
    """Find the columns in the files and number the samples."""
    if not sources:
        raise UsageError("there is nothing to import; name files")
    streams = tuple(make_streams(schema, sources))
    numbering = number_samples(schema, sources, streams[0].num)
    fields = tuple(s.field for s in streams if s.path.startswith("fields/"))
    digest = combine(schema.model_dump())
    stats = [source.path.stat() for source in sources]
    files = [
        [str(source.path.resolve()), stat.st_size, stat.st_mtime_ns]
        for source, stat in zip(sources, stats, strict=True)
    ]
    return Import(
        schema=schema,
        streams=streams,
        numbering=numbering,
        aggregate=Aggregate(
            sources=write.source_ids(numbering.spans),
            fields=fields,
            samples_per_shard=schema.samples_per_shard,
            compression=schema.compression,
            splits=tuple(schema.splits.items()),
            seed=schema.seed,
        ),
        identity=combine(digest, files),
        schema_digest=digest,
    )


def _write_missing(
    what: Import, out: Path, state: State, done: dict[int, Done], progress: Progress | None
) -> None:
    per_shard = what.aggregate.samples_per_shard
    for shard in range(what.num_shards):
        lo, hi = np.searchsorted(what.rows, [shard * per_shard, (shard + 1) * per_shard]).tolist()
        if shard not in done:
            for stream in what.streams:
                stream.expect(lo, hi)
            dropped = find_dropped(what, lo, hi)
            done[shard] = write.write_shard(out, what, shard, lo, hi, dropped)
            state.add(done[shard])
        if progress:
            progress(hi, what.num)


def find_dropped(what: Import, lo: int, hi: int) -> dict[int, str]:
    """Positions in [lo, hi) that are left out, and why: it failed, or the first column whose value does not fit.

    Where the schema wants bad values refused, none is left out for its value; then ShardError for a graph whose
    members do not fit together, as each value is looked at when it is copied.
    """
    dropped: dict[int, str] = {}
    for stream in what.streams if what.schema.success else ():
        dropped |= stream.failures(lo, hi)
    if what.schema.bad_values == "drop":
        for stream in what.streams:
            for start, end in stream.blocks(lo, hi):
                found = stream.problems(start, end, stream.read(start, end))
                for position, why in found.items():
                    dropped.setdefault(position, f"{stream.path.replace('/', ' ', 1)}: {why}")
    graphs = [stream for stream in what.streams if stream.field.graph and stream.field.ragged]
    bad = _bad_graphs(graphs, lo, hi) if graphs else {}
    bad = {position: why for position, why in bad.items() if position not in dropped}
    if bad and what.schema.bad_values == "refuse":
        position, why = min(bad.items())
        raise ShardError(
            f"{graphs[0].place(position)}: {why}; mend it, or leave it out with bad_values: drop"
        )
    return bad | dropped


def _bad_graphs(streams: Sequence[Stream], lo: int, hi: int) -> dict[int, str]:
    """Positions of graphs whose members disagree on the number of nodes or edges, or with an edge to no node."""
    found: dict[int, str] = {}
    for start, end in streams[0].blocks(lo, hi):
        columns: dict[str, Values] = {stream.field.name: stream.read(start, end) for stream in streams}
        piece = Piece(start, end, np.ones(end - start, dtype=bool), {}, columns)
        refuse_bad_graphs(piece, [stream.field for stream in streams])
        found |= piece.causes
    return found
