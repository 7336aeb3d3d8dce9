"""The plan of an import: its columns, the rows of its samples, and the data set that they become."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from merlin.errors import UsageError
from merlin.plan.plan import Aggregate
from merlin.shards.format.digest import combine
from merlin.shards.format.segments import Array
from merlin.shards.importing.numbering import SampleSpan, number_samples
from merlin.shards.importing.resolve import make_streams
from merlin.shards.importing.source_file import SourceFile
from merlin.shards.importing.streams import Stream
from merlin.spec.import_schema import ImportSchema

SOURCE = "import"  # the id of the aggregate in the manifest, and of the source if there is one


class ImportPlan(Struct, frozen=True):
    """The columns of an import, and the row of every position."""

    schema: ImportSchema
    streams: tuple[Stream, ...]
    rows: Array  # (num,) int64, ascending
    spans: tuple[SampleSpan, ...]  # divide all rows up to the last
    aggregate: Aggregate
    identity: str  # of the schema and the files
    schema_digest: str

    def sample_ids(self, rows: Array) -> Array:
        """(rows,) int64."""
        firsts = np.array([span.first_row for span in self.spans], np.int64)
        shifts = np.array([span.first_sample for span in self.spans], np.int64) - firsts
        return np.asarray(rows + shifts[np.searchsorted(firsts, rows, side="right") - 1], "<i8")

    @property
    def num(self) -> int:
        return len(self.rows)

    @property
    def planned(self) -> int:
        """The number of rows up to the last sample."""
        return int(self.rows[-1]) + 1 if self.num else 0

    @property
    def num_shards(self) -> int:
        return max(1, -(-self.planned // self.aggregate.samples_per_shard))

    def positions_of(self, shard: int) -> tuple[int, int]:
        """The positions [lo, hi) of the samples in a shard."""
        size = self.aggregate.samples_per_shard
        lo, hi = np.searchsorted(self.rows, [shard * size, (shard + 1) * size]).tolist()
        return lo, hi


def plan_import(schema: ImportSchema, sources: Sequence[SourceFile]) -> ImportPlan:
    """Find the columns in the files and number the samples."""
    if not sources:
        raise UsageError("there is nothing to import; name files")
    streams = tuple(make_streams(schema, sources))
    rows, spans = number_samples(schema, sources, streams[0].num)
    fields = tuple(s.field for s in streams if s.path.startswith("fields/"))
    digest = combine(schema.model_dump())
    stats = [source.path.stat() for source in sources]
    files = [
        [str(source.path.resolve()), stat.st_size, stat.st_mtime_ns]
        for source, stat in zip(sources, stats, strict=True)
    ]
    return ImportPlan(
        schema=schema,
        streams=streams,
        rows=rows,
        spans=spans,
        aggregate=Aggregate(
            sources=_source_ids(len(spans)),
            fields=fields,
            samples_per_shard=schema.samples_per_shard,
            compression=schema.compression,
            splits=tuple(schema.splits.items()),
            seed=schema.seed,
        ),
        identity=combine(digest, files),
        schema_digest=digest,
    )


def _source_ids(num: int) -> tuple[str, ...]:
    """What the manifest calls the sources that stand for the spans."""
    return (SOURCE,) if num == 1 else tuple(f"{SOURCE}/{number}" for number in range(num))
