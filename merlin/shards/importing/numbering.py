"""Which rows of the data set the samples of an import become, and which ids they keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from merlin.errors import ShardError, UsageError
from merlin.plan.plan import PlannedField
from merlin.shards.format.segments import Array
from merlin.shards.importing.resolve import find_parts
from merlin.shards.importing.source_file import SourceFile
from merlin.shards.importing.streams import Stream
from merlin.spec.import_schema import ImportColumn, ImportSchema

_SPARSE = 8  # so many shards without any sample, for each one with some, are taken for a mistake


class SampleSpan(Struct, frozen=True):
    """Consecutive rows with consecutive samples: row `first_row` + i is sample `first_sample` + i."""

    first_row: int
    first_sample: int
    num: int


def number_samples(
    schema: ImportSchema, sources: Sequence[SourceFile], num: int
) -> tuple[Array, tuple[SampleSpan, ...]]:
    """The row of every sample (num,) int64, ascending, and the spans that divide all rows up to the last.

    The schema's `row`, or the ids, or the order of the samples decide the rows.

    Raises UsageError for a column that cannot number samples, ShardError for an impossible number.
    """
    columns = {"row": schema.row, "sample_id": schema.sample_id}
    found = {
        what: _read(what, column, sources, num) for what, column in columns.items() if column is not None
    }
    leading = "row" if "row" in found else "sample_id"
    if leading in found:
        _refuse_disorder(*found[leading], leading.replace("_", " "))
    ids = found["sample_id"][1] if "sample_id" in found else np.arange(num, dtype=np.int64)
    places = found["row"][1] if "row" in found else ids
    first = 0 if not len(places) or int(places[0]) < schema.samples_per_shard else int(places[0])
    rows = places - first
    _refuse_sparse(places, rows, schema.samples_per_shard, leading)
    if len(found) == 2:
        _refuse_jumps(found["sample_id"][0], rows, ids)
        return rows, tuple(_spans(rows, ids))
    return rows, (SampleSpan(0, first, int(rows[-1]) + 1 if len(rows) else 0),)


def _read(what: str, column: ImportColumn, sources: Sequence[SourceFile], num: int) -> tuple[Stream, Array]:
    """The numbers in a column, and where they are from."""
    keys = [column.key] if column.key else [what]
    parts = find_parts(what, keys, ImportColumn(file=column.file), sources)
    stream = Stream(what, PlannedField(name=what, dtype="int64"), parts)
    if stream.num != num or any(p.facts.shape or p.facts.dtype.kind not in "iu" for p in parts):
        raise UsageError(f"{what}: expected a whole number for each of the {num:,} samples")
    numbers = np.empty(num, dtype=np.int64)
    for lo, hi in stream.blocks(0, num):
        values = stream.read(lo, hi)
        bad = stream.problems(lo, hi, values)
        if bad:
            row, why = min(bad.items())
            raise ShardError(f"{stream.place(row)}: {why}")
        numbers[lo:hi] = values  # type: ignore[assignment]
    return stream, numbers


def _refuse_disorder(stream: Stream, numbers: Array, what: str) -> None:
    wrong = np.flatnonzero(np.diff(numbers, prepend=-1) <= 0)
    if len(wrong):
        at = int(wrong[0])
        before = f" after {int(numbers[at - 1])}" if at else ""
        more = "" if what == "row" else "; where they begin again, say with row: which row each sample is"
        raise ShardError(
            f"{stream.place(at)}: {what} {int(numbers[at])}{before}; {what}s ascend from 0 on, and none is there "
            f"twice{more}"
        )


def _refuse_sparse(places: Array, rows: Array, per_shard: int, what: str) -> None:
    if len(rows) and (int(rows[-1]) + 1) // per_shard > _SPARSE * (len(rows) // per_shard + 1):
        raise UsageError(
            f"{what}: {len(rows):,} samples have numbers from {int(places[0])} to {int(places[-1])}; most shards "
            f"would be empty. Keep these numbers as a field, and leave out {what}"
        )


def _refuse_jumps(stream: Stream, rows: Array, ids: Array) -> None:
    """Raise ShardError unless ids ascend with the rows, or begin again."""
    wrong = np.flatnonzero((np.diff(rows - ids, prepend=rows[:1] - ids[:1]) < 0) | (ids < 0))
    if len(wrong):
        at = int(wrong[0])
        before = f" after {int(ids[at - 1])}" if at else ""
        raise ShardError(
            f"{stream.place(at)}: sample id {int(ids[at])}{before}; from row to row ids count on, or begin again lower"
        )


def _spans(rows: Array, ids: Array) -> Iterator[SampleSpan]:
    """A span for each run of samples whose ids keep their distance from the rows."""
    shifts = rows - ids
    starts = np.flatnonzero(np.diff(shifts, prepend=shifts[:1] - 1))
    # a span begins with sample 0, or with the sample after the span before it
    firsts = np.maximum(shifts[starts], np.where(starts > 0, rows[starts - 1] + 1, 0))
    samples = firsts - shifts[starts]
    if len(firsts) == 0 or firsts[0] > 0:
        firsts, samples = np.concatenate(([0], firsts)), np.concatenate(([0], samples))
    ends = [*firsts[1:].tolist(), int(rows[-1]) + 1 if len(rows) else 0]
    for first, sample, end in zip(firsts.tolist(), samples.tolist(), ends, strict=True):
        yield SampleSpan(first, sample, end - first)
