"""LBANN's sample lists: which samples of which bundle are used, or are not.

Lines: ``CONDUIT_HDF5_INCLUSION`` or ``…_EXCLUSION``; included, excluded, files; the directory of the bundles; then
for each bundle its name, included, excluded, and the names of the samples that are (or are not) used. All samples
and each split have both lists; trainers have inclusion lists, under the names that LBANN looks for
(``t<k>_<list>``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from msgspec import Struct

from merlin.base.files import replacing
from merlin.base.ranges import numbers
from merlin.shards.export.base import ExportedFile
from merlin.shards.export.view import View
from merlin.shards.format.segments import Array
from merlin.shards.format.splits import split_indices
from merlin.shards.proving.expected import sample_ids

SUFFIX = ".sample_list"
_TRAINING = "train"
_AT_ONCE = 100  # lists of trainers that are open together

# gives the number of the list that each sample of a file is in, -1 for none: (samples,)
Choose = Callable[[ExportedFile], Array]


class _List(Struct, frozen=True):
    """A list of the samples for which `choose` gives `number`; with `excludes`, of all others."""

    name: str
    choose: Choose
    number: int = 0
    excludes: bool = False

    def mask(self, file: ExportedFile) -> Array:
        return np.asarray(self.choose(file) == self.number)


class FailedRows:
    """Rows that failed or were filtered; with a chosen split, those of that split."""

    def __init__(self, view: View) -> None:
        data = view.ens.manifest
        rows = numbers(
            (source.first_row + a, source.first_row + b)
            for source in data.sources
            for a, b in (*source.failed, *source.filtered)
        )
        if view.split is not None:
            names = np.array([*data.splits.fractions, ""])
            split = split_indices(sample_ids(data, rows), data.splits.fractions, data.splits.seed)
            rows = rows[names[split] == view.split]
        self._rows = rows
        self._view = view

    def __len__(self) -> int:
        return len(self._rows)

    def among(self, lo: int, hi: int) -> Array:
        """The failed rows from the row of position `lo` up to the row of position `hi`.

        The first bundle also gets those before its first row, the last bundle those after its last row.
        """
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
    lists = _both("", lambda part: np.zeros(part.num_samples, np.int32), 0)
    splits = view.ens.manifest.splits
    if view.split is None:
        for number, split in enumerate(splits.fractions):
            lists += _both(f"{split}_", _by_split(view), number)
    if trainers:
        base = f"{_TRAINING}_inclusion" if view.split is None and _has_training(view) else "inclusion"
        owner = _trainers(view, trainers)
        lists += [_List(f"t{k}_{base}", lambda part: owner[part.lo : part.hi], k) for k in range(trainers)]
    for first in range(0, len(lists), _AT_ONCE):
        _write_together(directory, view, failed, parts, lists[first : first + _AT_ONCE])
    return [one.name + SUFFIX for one in lists]


def _both(prefix: str, choose: Choose, number: int) -> list[_List]:
    return [
        _List(f"{prefix}inclusion", choose, number),
        _List(f"{prefix}exclusion", choose, number, excludes=True),
    ]


def training_positions(view: View) -> Array:
    """Positions of the samples that trainers share: those of the split `train`.

    If a split was chosen for the export, or there is no split `train`, these are all exported samples.
    """
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


def _by_split(view: View) -> Choose:
    splits = view.ens.manifest.splits

    def choose(part: ExportedFile) -> Array:
        ids = np.asarray(view.read(view.sample_id, part.lo, part.hi))
        return split_indices(ids, splits.fractions, splits.seed)

    return choose


def _write_together(
    directory: Path, view: View, failed: FailedRows, parts: list[ExportedFile], lists: Sequence[_List]
) -> None:
    """Write some lists, all of them in one pass over the bundles."""
    total = sum(_size(part) for part in parts)
    with ExitStack() as stack:
        files = []
        for one in lists:
            path = stack.enter_context(replacing(directory / f"{one.name}{SUFFIX}"))
            file = stack.enter_context(path.open("w", encoding="utf-8", errors="surrogateescape"))
            included = sum(int(one.mask(part).sum()) for part in parts)
            kind = "EXCLUSION" if one.excludes else "INCLUSION"
            file.write(f"CONDUIT_HDF5_{kind}\n{included} {total - included} {len(parts)}\n")
            file.write(f"{directory.resolve() / 'bundles'}/\n")
            files.append(file)
        for part in parts:
            rows = np.asarray(view.read(view.row, part.lo, part.hi))
            for one, file in zip(lists, files, strict=True):
                mask = one.mask(part)
                listed = rows[mask]
                if one.excludes:
                    listed = np.sort(np.concatenate([rows[~mask], failed.among(part.lo, part.hi)]))
                num, names = int(mask.sum()), "".join(f" {row:09d}" for row in listed.tolist())
                file.write(f"{part.file.removeprefix('bundles/')} {num} {_size(part) - num}{names}\n")


def _size(part: ExportedFile) -> int:
    """Samples in a bundle, failed ones among them."""
    return part.num_samples + int(part.facts["num_failed"])
