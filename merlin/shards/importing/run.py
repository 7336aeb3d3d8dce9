"""Importing: the samples of any files become the shards and the manifest of a data set, one shard at a time.

Memory: a few blocks of a shard's columns, eight bytes per sample for its id, what a source keeps open (the rows
of a shard of CSV and 24 bytes for each other one, a row group of Parquet), and the record of samples that were left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from merlin.errors import ShardError
from merlin.shards.format.manifest_file import NAME, DataSet, read_manifest
from merlin.shards.format.segments import Values
from merlin.shards.importing import write
from merlin.shards.importing.directory import ImportDirectory, ImportedShard
from merlin.shards.importing.plan import ImportPlan, plan_import
from merlin.shards.importing.sources import open_source
from merlin.shards.importing.streams import Stream
from merlin.shards.writing.graph_check import refuse_bad_graphs
from merlin.shards.writing.piece import Piece
from merlin.spec.import_schema import ImportSchema

Progress = Callable[[int, int], None]  # samples done, samples in all


def import_data(
    paths: Sequence[Path],
    schema: ImportSchema,
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    """Make a data set in the directory `out`. Shards that a killed import of the same files wrote are kept.

    An import that fails because of what is in the files leaves nothing behind. With `overwrite`, a data set in `out`
    is replaced when the new one is complete.

    Raises:
        UsageError: the schema does not fit the files, or `out` holds something else.
        ShardError: a file cannot be read, or a value does not fit (with its file, row and column).
    """
    with ExitStack() as stack:
        sources = []
        for path in paths:
            sources.append(open_source(path, schema.samples, schema.success))
            stack.callback(sources[-1].close)
        plan = plan_import(schema, sources)
        directory = stack.enter_context(ImportDirectory(out, plan.identity))
        if overwrite and directory.holds_data_set():
            with directory.replacement() as replacement:
                _complete(plan, replacement, progress)
        else:
            _complete(plan, directory, progress)
        return read_manifest(out)


def _complete(plan: ImportPlan, directory: ImportDirectory, progress: Progress | None) -> None:
    done = directory.begin()
    if (directory.directory / NAME).is_file():
        return
    try:
        _write_missing(plan, directory, done, progress)
    except ShardError:  # the files or the schema have to change: these shards are of no use
        directory.remove_data_set()
        raise
    write.write_manifest(directory.directory, plan, done)
    directory.remove_record()


def _write_missing(
    plan: ImportPlan, directory: ImportDirectory, done: dict[int, ImportedShard], progress: Progress | None
) -> None:
    for shard in range(plan.num_shards):
        lo, hi = plan.positions_of(shard)
        if shard not in done:
            for stream in plan.streams:
                stream.expect(lo, hi)
            done[shard] = write.write_shard(directory.directory, plan, shard, find_dropped(plan, lo, hi))
            directory.add(done[shard])
        if progress:
            progress(hi, plan.num)


def find_dropped(plan: ImportPlan, lo: int, hi: int) -> dict[int, str]:
    """Positions in [lo, hi) that are left out, and why: it failed, or the first column whose value does not fit.

    If the schema refuses bad values, no sample is left out for its value; each value is checked when it is
    copied. In this case, ShardError is raised for a graph whose members do not fit together.
    """
    dropped: dict[int, str] = {}
    for stream in plan.streams if plan.schema.success else ():
        dropped |= stream.failures(lo, hi)
    if plan.schema.bad_values == "drop":
        for stream in plan.streams:
            for start, end in stream.blocks(lo, hi):
                found = stream.problems(start, end, stream.read(start, end))
                for position, why in found.items():
                    dropped.setdefault(position, f"{stream.path.replace('/', ' ', 1)}: {why}")
    graphs = [stream for stream in plan.streams if stream.field.graph and stream.field.ragged]
    bad = _bad_graphs(graphs, lo, hi) if graphs else {}
    bad = {position: why for position, why in bad.items() if position not in dropped}
    if bad and plan.schema.bad_values == "refuse":
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
