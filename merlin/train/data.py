"""The data of a run: which columns, which samples of which trainer, and loaders over them.

A batch, wherever it comes from, has "inputs" (n, d), "scalars" (n, m) and one entry (n, C, H, W) per image
field, float32 and normalised; and one (n,) per field of classes, as it is stored. A key is left out if there
is nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct

from merlin.base.field import Field
from merlin.base.text import some_of
from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column
from merlin.train.config import TrainConfig
from merlin.train.loading.columns import channels_first
from merlin.train.loading.dataset import ShardDataset
from merlin.train.loading.loader import ShardLoader
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.order import Partition, derive_seed
from merlin.train.models.base import Shapes, number
from merlin.train.parallel.mesh import Mesh

OnProgress = Callable[[int, int], None]  # samples done, in all

DEFAULT_METHOD = "standard"
DEFAULT_PREFETCH = 2
MAX_CLASSES = 1000
EVALUATED_AT_ONCE = 1024  # samples at least, where they are few numbers each
_LARGEST = 1 << 24  # whole numbers up to here are float32, too
_BLOCK_ROWS = 1 << 20
_SHOWN = 10  # bad samples in a message
_SOME_BYTES = 256 << 20  # of samples in memory at once
_ORDER, _SHARES = 0x4F524445, 0x53484152  # what a seed is used for enters it


class Classes(Struct, frozen=True):
    """A field that is the class of a sample, and the values that it has, ascending."""

    column: Column
    values: tuple[int, ...]


class ColumnSelection(Struct, frozen=True):
    """The columns that are used; inputs may be parameters of the study, and fields."""

    inputs: tuple[Column, ...]
    scalars: tuple[Column, ...]
    images: tuple[Column, ...]
    classes: tuple[Classes, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.inputs, *self.scalars, *self.images, *(found.column for found in self.classes))

    @property
    def matrix(self) -> tuple[Column, ...]:
        """The inputs that are numbers or series, side by side in "inputs"."""
        return tuple(c for c in self.inputs if not c.sample_kind.is_picture)

    @property
    def single(self) -> tuple[Column, ...]:
        """The columns that have an entry of their own in a batch."""
        images = (c for c in self.inputs if c.sample_kind.is_picture)
        return (*images, *self.images, *(found.column for found in self.classes))

    @property
    def shapes(self) -> Shapes:
        """The shapes of what the loaders of this selection deliver."""
        return Shapes(
            (
                *(number(name) for c in self.matrix for name in c.column_names),
                *(_delivered(c) for c in self.inputs if c.sample_kind.is_picture),
            ),
            (
                *(number(c.name) for c in self.scalars),
                *map(_delivered, self.images),
                *(_delivered(found.column) for found in self.classes),
            ),
            {found.column.name: found.values for found in self.classes},
        )

    def methods(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A normalisation for every column, by its path: the one given for it, else for its group, else the default."""
        chosen = {}
        for group, columns in (("inputs", self.inputs), ("scalars", self.scalars), ("images", self.images)):
            for column in columns:
                chosen[column.path] = given.get(column.name, given.get(group, DEFAULT_METHOD))
        return chosen


def _delivered(column: Column) -> Field:
    """A column that has a key of its own, with its channels in front."""
    shape, spatial = column.shape, column.sample_kind.spatial
    if spatial:
        shape = channels_first(shape, column.field.channel_axis)
    layout = "c" * (len(shape) - len(spatial)) + spatial if spatial else ""
    return Field(
        name=column.name, kind=column.field.kind, dtype=column.dtype.name, shape=shape, layout=layout
    )


class TrainingData(Struct, frozen=True, dict=True):
    """The samples of a run, as loaders of batches."""

    ens: Ensemble
    selection: ColumnSelection
    normaliser: Normaliser
    config: TrainConfig

    @cached_property
    def shapes(self) -> Shapes:
        return self.selection.shapes

    def dataset(self, split: str | None, partition: Partition | None = None) -> ShardDataset:
        """Samples of a split (None: all), or of a share of it. Raises UsageError if there is no such split."""
        single = [c.name for c in self.selection.single]
        return self._dataset(single, [c.name for c in self.selection.scalars], split, partition)

    def some(self, num: int) -> dict[str, torch.Tensor]:
        """At most so many samples to train on, evenly spread over the split and not too large together."""
        dataset = self.dataset(self.config.splits.train)
        sample_bytes = 4 * sum(prod(c.shape) for c in self.selection.columns)
        num = max(1, min(num, len(dataset), _SOME_BYTES // max(1, sample_bytes)))
        rows = np.unique(np.linspace(0, len(dataset) - 1, num).round().astype(np.int64))
        return self.shapes.with_channels(dataset[rows])

    def inputs_of(self, split: str) -> ShardDataset:
        """The inputs alone, so that images and scalars that are predicted are not read."""
        return self._dataset([c.name for c in self.selection.inputs if c.sample_kind.is_picture], [], split)

    def _dataset(
        self,
        single: Sequence[str],
        scalars: Sequence[str],
        split: str | None,
        partition: Partition | None = None,
    ) -> ShardDataset:
        """The inputs that are numbers or series, and these other columns."""
        return ShardDataset(
            self.ens,
            [*scalars, *single],
            [c.name for c in self.selection.matrix],
            split=split,
            partition=partition,
            normalise=self.normaliser,
            stack_scalars=scalars,
            layout="chw",
            dtype="float32",
        )

    def share(self, trainer: int, part: Literal["train", "tournament"]) -> Partition:
        """The samples that trainer `trainer` trains on, or decides rounds with."""
        config = self.config
        return Partition(
            trainer,
            config.tournament.trainers,
            derive_seed(_SHARES, config.seed),
            config.loader.partition,
            part,
            config.tournament_fraction,
        )

    def share_sizes(self, part: Literal["train", "tournament"]) -> list[int]:
        """The numbers of samples in a part of each trainer's share."""
        ids = self.ens.sample_id[self.ens.splits[self.config.splits.train]]
        num = self.config.tournament.trainers
        return [len(self.share(trainer, part).select(ids)) for trainer in range(num)]

    def least_steps(self) -> int:
        """The number of steps in an epoch of the smallest share."""
        return min(self.share_sizes("train")) // self.config.training.batch_size

    def training_loader(self, mesh: Mesh, device: torch.device) -> ShardLoader:
        """Endless shuffled epochs of a trainer's share; a step takes batch_size samples of all ranks."""
        config = self.config
        dataset = self.dataset(config.splits.train, self.share(mesh.trainer, "train"))
        if len(dataset) < config.training.batch_size:
            raise UsageError(
                f"trainer {mesh.trainer} has {len(dataset):,} samples to train on, less than one batch of "
                f"{config.training.batch_size}: lower training.batch_size or tournament.trainers"
            )
        return ShardLoader(
            dataset,
            config.training.batch_size // mesh.data.size,
            seed=derive_seed(_ORDER, config.seed, mesh.trainer) >> 1,
            rank=mesh.data.rank,
            world_size=mesh.data.size,
            drop_last=True,
            prefetch=self._prefetch(device),
            num_workers=config.loader.num_workers,
            device=device,
            with_index=True,
        )

    def _prefetch(self, device: torch.device) -> int:
        """The number of batches read ahead: by default none on a CPU for inputs and scalars alone.

        These lie in memory: taking a batch of them is less work than asking a thread for it.
        """
        given = self.config.loader.prefetch
        if given is not None:
            return given
        return 0 if device.type == "cpu" and not self.selection.single else DEFAULT_PREFETCH

    def validation_loader(self, mesh: Mesh, device: torch.device) -> ShardLoader:
        """The validation split, the same for every trainer."""
        return self._evaluation_loader(self.dataset(self.config.splits.validation), mesh, device)

    def tournament_loader(self, mesh: Mesh, device: torch.device) -> ShardLoader:
        """The samples by which a trainer judges models in a round: part of its share, never trained on."""
        dataset = self.dataset(self.config.splits.train, self.share(mesh.trainer, "tournament"))
        return self._evaluation_loader(dataset, mesh, device)

    def _evaluation_loader(self, dataset: ShardDataset, mesh: Mesh, device: torch.device) -> ShardLoader:
        """Every sample once, in order, dealt to ranks, in batches of their own size, of which some may be empty."""
        training = self.config.training
        size = -(-training.batch_size // training.accumulate)
        if not self.selection.single:
            size = max(size, EVALUATED_AT_ONCE)
        return ShardLoader(
            dataset,
            -(-size // mesh.data.size),
            rank=mesh.data.rank,
            world_size=mesh.data.size,
            shuffle=False,
            prefetch=self._prefetch(device),
            device=device,
        )


def class_values(ens: Ensemble, column: Column) -> tuple[int, ...]:
    """The values of a field of classes, ascending; those that are not finite are left out.

    Raises UsageError if they are no whole numbers, or too many for classes.
    """
    known = np.zeros(0)
    for lo in range(0, len(ens), _BLOCK_ROWS):
        rows = np.arange(lo, min(lo + _BLOCK_ROWS, len(ens)))
        values = np.asarray(ens.column_at(column.path)[rows], np.float64)
        known = np.union1d(known, values[np.isfinite(values)])
        if len(known) > MAX_CLASSES:
            raise UsageError(
                f"'{column.name}' has more than {MAX_CLASSES:,} values, which is too many for classes"
            )
    other = known[(known != np.round(known)) | (np.abs(known) > _LARGEST)]
    if len(other):
        raise UsageError(
            f"'{column.name}' has the value {other[0]:.10g}: classes are told by whole numbers up to {_LARGEST:,}"
        )
    return tuple(int(value) for value in known)


def find_bad_values(
    ens: Ensemble, selection: ColumnSelection, splits: tuple[str, ...]
) -> Iterator[tuple[Column, str]]:
    """Columns with values that are NaN or infinite, and in which samples; only those are read that may have some."""
    known = [ens.splits[name] for name in splits if name in ens.splits]
    rows = np.unique(np.concatenate([np.zeros(0, np.int64), *known]))
    for column in selection.columns:
        if _may_have_bad_values(ens, column):
            bad = _bad_rows(ens, column, rows)
            if len(bad):
                ids = some_of(ens.sample_id[bad], _SHOWN)
                yield column, f"'{column.name}' is NaN or infinite in {len(bad):,} samples: {ids}"


def _may_have_bad_values(ens: Ensemble, column: Column) -> bool:
    """True if it may have some, by the statistics of the data set, which count finite values."""
    if column.statistics is None:
        return column.dtype.kind == "f"
    return sum(column.statistics.count) < len(ens) * prod(column.shape)


def _bad_rows(ens: Ensemble, column: Column, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    step = max(1, (32 << 20) // max(1, column.dtype.itemsize * prod(column.shape)))
    bad = [np.zeros(0, np.int64)]
    for lo in range(0, len(rows), step):
        part = rows[lo : lo + step]
        values = ens.column_at(column.path)[part].reshape(len(part), -1)
        bad.append(part[~np.isfinite(values).all(axis=1)])
    return np.concatenate(bad)
