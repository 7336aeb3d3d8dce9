"""Predictions for a file of samples, written into a file: block by block, and whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from merlin.errors import UsageError
from merlin.shards.export.columns_file import OutColumn, holds_arrays, writing_columns
from merlin.shards.format.segments import Array
from merlin.train.data import OnProgress
from merlin.train.quantities import Quantity
from merlin.train.results.samples import SamplesReader, open_samples
from merlin.train.results.surrogate import BATCH_SIZE, TOO_FAR, Surrogate, describe_outside, dtype_of

_BLOCK = 4096  # samples of a block, and of a Parquet row group; fewer where there are images
_BLOCK_BYTES = 64 << 20


class Predictions(Struct, frozen=True):
    """The predictions that were written, and notes about them."""

    out: Path
    num: int
    inputs: tuple[str, ...]
    fields: tuple[str, ...]
    outside: dict[str, int]  # input -> samples outside of the range of the data set
    notes: tuple[str, ...]


def predict_file(
    surrogate: Surrogate,
    samples_path: Path,
    out: Path,
    *,
    fields: Sequence[str] | None = None,
    batch_size: int = BATCH_SIZE,
    progress: OnProgress = lambda done, total: None,
) -> Predictions:
    """Predict every sample of a file or a data set, in its order; beside the predictions stand the inputs that are
    columns.

    Memory: a block of samples, of 64 MB or one batch. Raises UsageError for columns that are missing, values that are
    no finite numbers, unknown fields, a format that cannot hold what was asked for, and an `out` that is the samples.
    """
    wanted, notes = _fitting(surrogate.chosen(fields), out, is_asked=fields is not None)
    columns = _columns(surrogate, wanted)
    samples = _open(surrogate, samples_path, out)
    notes += [samples.note] if samples.note else []
    names = [column.name for column in columns]
    outside: Counter[str] = Counter()
    row_bytes = sum(c.dtype.itemsize * int(np.prod(c.shape, dtype=np.int64)) for c in columns)
    row_bytes += sum(4 * int(np.prod(shape)) for shape in surrogate.input_images.values())
    step = max(batch_size, min(_BLOCK, _BLOCK_BYTES // row_bytes) // batch_size * batch_size)
    facts = {"model": surrogate.best.name, "run": str(surrogate.best.directory.resolve().parent)}
    try:
        with writing_columns(out, columns, samples.num, facts) as write:
            for lo, given in samples.blocks(step):
                _require_near(surrogate, samples, lo, given)
                made = surrogate.predict_arrays(given, wanted, batch_size)
                inputs = given[0].T if surrogate.inputs else ()
                write(lo, dict(zip(names, [*inputs, *(made[q.name] for q in wanted)], strict=True)))
                outside.update(surrogate.outside(given))
                progress(lo + len(given[0]), samples.num)
    finally:
        samples.close()
    if outside:
        notes.append(describe_outside(outside, surrogate.ranges))
    return Predictions(
        out,
        samples.num,
        (*surrogate.inputs, *surrogate.input_images),
        tuple(q.name for q in wanted),
        dict(outside),
        tuple(notes),
    )


def _open(surrogate: Surrogate, samples_path: Path, out: Path) -> SamplesReader:
    """The samples. Raises UsageError if predictions would replace them."""
    if out.resolve() == samples_path.resolve():
        raise UsageError(f"{out} holds the samples, and predictions would replace them; write another file")
    fields = [q.name for q in surrogate.best.quantities.inputs if q.path.startswith("fields/")]
    return open_samples(samples_path, surrogate.inputs, surrogate.input_images, fields)


def _require_near(surrogate: Surrogate, samples: SamplesReader, lo: int, given: Sequence[Array]) -> None:
    """Raise UsageError for the first value, of samples from `lo` on, that the model cannot compute with."""
    for row, number in surrogate.too_far(given):
        raise UsageError(f"{samples.place(lo + row, number)}: {given[0][row, number]:g} {TOO_FAR}")


def _fitting(
    wanted: Sequence[Quantity], out: Path, *, is_asked: bool
) -> tuple[tuple[Quantity, ...], list[str]]:
    """The quantities that the format can hold, and notes about those that are left out.

    Images and probabilities are left out only if they were not asked for by name.
    """
    images = [q.name for q in wanted if q.shape]
    if holds_arrays(out) or not images:
        return tuple(wanted), []
    what = "images" if all(q.is_image for q in wanted if q.shape) else "arrays"
    rest = tuple(q for q in wanted if not q.shape)
    where = "write .npz, .parquet or .h5 to have them"
    if is_asked or not rest:
        raise UsageError(f"{out}: a CSV file has no place for {what} ({', '.join(images)}); {where}")
    return rest, [f"{out} has no place for {', '.join(images)}; {where}"]


def _columns(surrogate: Surrogate, wanted: Sequence[Quantity]) -> list[OutColumn]:
    """Inputs, then predictions; an input with the name of a prediction becomes inputs.<name>."""
    taken = {q.name for q in wanted}
    inputs = [
        OutColumn(f"inputs.{name}" if name in taken else name, np.dtype("<f8"), (), q.units, q.description)
        for q in surrogate.best.quantities.columns
        for name in q.column_names
    ]
    return inputs + [OutColumn(q.name, dtype_of(q), q.shape, q.units, q.description) for q in wanted]
