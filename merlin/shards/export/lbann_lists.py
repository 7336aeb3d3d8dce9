"""LBANN's sample lists: which samples of which bundle are used, or are not.

Lines: ``CONDUIT_HDF5_INCLUSION`` or ``…_EXCLUSION``; included, excluded, files; the directory of the bundles; then
for each bundle its name, included, excluded, and the names of the samples that are (or are not) used. All samples
and each split have both lists; trainers have inclusion lists, under the names that LBANN looks for
(``t<k>_<list>``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from merlin.base.files import replacing
from merlin.shards.export.base import ExportedFile
from merlin.shards.export.view import View
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import split_indices
from merlin.shards.proving.expected import sample_ids

SUFFIX = ".sample_list"
_TRAINING = "train"
_AT_ONCE = 100  # lists of trainers that are open together

Choose = Callable[
    [ExportedFile], Array
]  # (samples of the part,) the number of the list that each is in, -1 for none


class FailedRows:
    """Rows that failed or were filtered; with a chosen split, those of that split."""

    def __init__(self, view: View) -> None:
        data = view.ens.manifest
        ranges = [
            np.arange(source.first_row + a, source.first_row + b)
            for source in data.sources
            for a, b in (*source.failed, *source.filtered)
        ]
        rows = np.sort(np.concatenate([np.zeros(0, np.int64), *ranges]))
        if view.split is not None:
            names = np.array([*data.splits.fractions, ""])
            split = split_indices(sample_ids(data, rows), data.splits.fractions, data.splits.seed)
            rows = rows[names[split] == view.split]
        self._rows = rows
        self._view = view

    def __len__(self) -> int:
        return len(self._rows)

    def among(self, lo: int, hi: int) -> Array:
        """Those between the rows of positions [lo, hi) and the next ones, and before all for the first bundle."""
        row, view = self._view.row, self._view
        first = 0 if lo == 0 else int(np.asarray(view.read(row, lo, lo + 1))[0])
        begin, end = int(np.searchsorted(self._rows, first)), len(self._rows)
        if hi < view.num:
            end = int(np.searchsorted(self._rows, int(np.asarray(view.read(row, hi, hi + 1))[0])))
        return self._rows[begin:end]


def write_lists(
    directory: Path, view: View, failed: FailedRows, parts: list[ExportedFile], trainers: int
) -> list[str]:
    """Write all lists; returns their names."""
    lists = _Lists(directory, view, failed, parts)
    names = [lists.write(f"{kind}{SUFFIX}", kind, _everything, 0) for kind in ("inclusion", "exclusion")]
    if view.split is None:
        splits = view.ens.manifest.splits
        for number, split in enumerate(splits.fractions):
            for kind in ("inclusion", "exclusion"):
                names.append(lists.write(f"{split}_{kind}{SUFFIX}", kind, _by_split(view), number))
    if trainers:
        base = f"{_TRAINING}_inclusion" if view.split is None and _has_training(view) else "inclusion"
        names += lists.write_trainers(base, _trainers(view, trainers), trainers)
    return names


def training_positions(view: View) -> Array:
    """What trainers share: the samples of the split `train`, or all if it was chosen, or there is none."""
    if view.split is not None or not _has_training(view):
        return np.arange(view.num)
    return np.asarray(view.ens.splits[_TRAINING])


def _has_training(view: View) -> bool:
    return _TRAINING in view.ens.manifest.splits.fractions


def _trainers(view: View, trainers: int) -> Array:
    """The trainer of each position, -1 for none: equal shares of a permutation that the seed decides."""
    positions = training_positions(view)
    order = np.random.Generator(np.random.PCG64(view.ens.manifest.splits.seed)).permutation(positions)
    share = len(order) // trainers
    owner = np.full(view.num, -1, dtype=np.int32)
    for k in range(trainers):
        owner[order[k * share : (k + 1) * share]] = k
    return owner


def _everything(part: ExportedFile) -> Array:
    return np.zeros(part.num_samples, dtype=np.int32)


def _by_split(view: View) -> Choose:
    splits = view.ens.manifest.splits

    def choose(part: ExportedFile) -> Array:
        ids = np.asarray(view.read(view.sample_id, part.lo, part.hi))
        return split_indices(ids, splits.fractions, splits.seed)

    return choose


class _Lists:
    """Writes lists over the same bundles."""

    def __init__(self, directory: Path, view: View, failed: FailedRows, parts: list[ExportedFile]) -> None:
        self._directory = directory
        self._view, self._failed, self._parts = view, failed, parts
        self._total = sum(_size(part) for part in parts)

    def write(self, name: str, kind: str, choose: Choose, number: int) -> str:
        """A list of the samples whose number is `number`."""
        included = sum(int((choose(part) == number).sum()) for part in self._parts)
        with replacing(self._directory / name) as temporary, temporary.open("w", encoding="utf-8") as file:
            self._head(file, kind, included)
            for part in self._parts:
                mask = choose(part) == number
                rows = self._rows(part)
                listed = rows[mask]
                if kind == "exclusion":
                    listed = np.sort(np.concatenate([rows[~mask], self._failed.among(part.lo, part.hi)]))
                _write_line(file, part, int(mask.sum()), listed)
        return name

    def write_trainers(self, base: str, owner: Array, trainers: int) -> Iterator[str]:
        """An inclusion list for each trainer, many of them in one pass over the bundles."""
        share = int((owner == 0).sum())
        for first in range(0, trainers, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, trainers))
            names = [f"t{k}_{base}{SUFFIX}" for k in some]
            with ExitStack() as stack:
                places = [stack.enter_context(replacing(self._directory / name)) for name in names]
                files = [stack.enter_context(place.open("w", encoding="utf-8")) for place in places]
                for file in files:
                    self._head(file, "inclusion", share)
                for part in self._parts:
                    rows, mine = self._rows(part), owner[part.lo : part.hi]
                    for k, file in zip(some, files, strict=True):
                        listed = rows[mine == k]
                        _write_line(file, part, len(listed), listed)
            yield from names

    def _rows(self, part: ExportedFile) -> Array:
        return np.asarray(self._view.read(self._view.row, part.lo, part.hi))

    def _head(self, file: IO[str], kind: str, included: int) -> None:
        file.write(f"CONDUIT_HDF5_{kind.upper()}\n{included} {self._total - included} {len(self._parts)}\n")
        file.write(f"{self._directory.resolve() / 'bundles'}/\n")


def _size(part: ExportedFile) -> int:
    """Samples in a bundle, failed ones among them."""
    return part.num_samples + int(part.facts["num_failed"])


def _write_line(file: IO[str], part: ExportedFile, included: int, listed: Array) -> None:
    names = "".join(f" {row:09d}" for row in listed.tolist())
    file.write(f"{part.file.removeprefix('bundles/')} {included} {_size(part) - included}{names}\n")
