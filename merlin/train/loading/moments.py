"""Statistics that a manifest does not have: over one split, or of logarithms; kept in a file beside the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.files import write_text
from merlin.base.records import FileFormat
from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column
from merlin.shards.format.digest import combine
from merlin.shards.format.regular_file import read_json
from merlin.shards.format.segments import Ragged
from merlin.shards.format.statistics import Accumulator, Statistics
from merlin.train.loading.columns import identity, rows_of
from merlin.train.loading.scaling import Scaling

FORMAT = FileFormat("merlin-moments", 1)
_READ_BYTES = 32 << 20


class Moments:
    """Computes statistics of columns of one data set, once for each cache file."""

    def __init__(self, ens: Ensemble, cache: Path | None) -> None:
        if cache is not None and cache.resolve().is_relative_to(ens.path.resolve()):
            raise UsageError(
                f"{cache} lies inside the data set, which stays as it is; keep it beside the run"
            )
        self._ens = ens
        self._cache = cache

    @property
    def usual_split(self) -> str | None:
        """The train split, if there is one; else all samples."""
        return "train" if "train" in self._ens.splits else None

    def of(self, column: Column, split: str | None, scaling: Scaling | None = None) -> Statistics:
        """Statistics per channel of a column, after `scaling`, over a split or everything (None).

        Raises UsageError if there is no such split, or nothing in it.
        """
        splits = self._ens.manifest.splits
        how = None if scaling is None else [list(scaling.offset), list(scaling.floor)]
        members = [split, list(splits.fractions.items()), splits.seed]
        key = combine(identity(self._ens), column.path, members, how)
        known_before = self._load()
        if key in known_before:
            return Statistics.from_json(known_before[key])
        rows = rows_of(self._ens, split)
        if not len(rows):
            raise UsageError(
                f"no samples in split '{split}' of {self._ens.path}: nothing to take statistics of"
            )
        computed = self._compute(column, rows, scaling)
        self._store(key, computed)
        return computed

    def _compute(self, column: Column, rows: Any, scaling: Scaling | None) -> Statistics:
        statistics = Accumulator(column.shape, column.field.channel_axis)
        step = self._rows_at_once(column)
        for lo in range(0, len(rows), step):
            read = self._ens.column_at(column.path)[rows[lo : lo + step]]
            values = read.items if isinstance(read, Ragged) else read
            if scaling is not None:
                made = np.empty(values.shape, np.result_type(values.dtype, np.float32))
                scaling.apply(values, made)
                values = made
            statistics.add(values)
        return statistics.result()

    def _rows_at_once(self, column: Column) -> int:
        row_bytes = column.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64))
        if column.ragged:
            row_bytes *= int(self._ens.column_at(column.path).lengths.max(initial=1))
        return max(1, _READ_BYTES // max(1, row_bytes))

    def _load(self) -> dict[str, Any]:
        """The content of the cache file; a damaged one is as good as none."""
        try:
            data = read_json(self._cache) if self._cache is not None else {}
            return dict(data["statistics"]) if FORMAT.is_of(data) else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _store(self, key: str, statistics: Statistics) -> None:
        if self._cache is not None:
            entries = {**self._load(), key: statistics.to_json()}
            write_text(
                self._cache,
                json.dumps({**FORMAT.head(), "statistics": entries}, indent=1) + "\n",
            )
