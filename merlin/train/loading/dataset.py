"""A data set as torch sees it: samples of one split and partition, read by whole batches.

    dataset = ShardDataset("study/collect", split="train", stack_scalars=True, normalise="standard")
    dataset[5]["image"], dataset[[3, 1, 2]]["inputs"], len(dataset)

It may be given to `torch.utils.data.DataLoader` as it is, with any sampler and number of workers, or to
`merlin.train.ShardLoader`, which is faster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble, open_shards
from merlin.shards.format.column import Column
from merlin.shards.format.digest import combine
from merlin.train.loading.batches import FLOAT, Array, BatchReader, Dense, Item, Matrix, Part, Source
from merlin.train.loading.columns import Columns, identity, refuse_text
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.order import Partition
from merlin.train.loading.scaling import Scaling
from merlin.train.loading.varied import Graphs, Varied

INPUTS = "inputs"
SCALARS = "scalars"
CACHE_BYTES = 512 << 20


class WholeBatch(dict[str, Tensor]):
    """A batch that is collated already; torch's default collating leaves it alone."""


def _keep_whole(batch: list[WholeBatch], *, collate_fn_map: Any = None) -> dict[str, Tensor]:
    """A batch as an ordinary dict."""
    (whole,) = batch
    return dict(whole)


default_collate_fn_map[WholeBatch] = _keep_whole  # the way torch documents for own types


class ShardDataset(Dataset[dict[str, Tensor]]):
    """Samples as dicts of tensors.

    Keys and shapes of a batch of n samples (a single sample lacks the first axis):

    - "inputs": (n, d) float32, the columns of the samples file and the study's parameters, `input_names`;
    - "scalars": (n, m) float32, the fields of kind scalar, `scalar_names`, if `stack_scalars`, which may also name
      some of them; not complex ones;
    - every other field under its name, (n, *shape), as it is stored, or as float32 if it is normalised;
    - of a ragged field, the items of all samples (items, *shape), and "<name>.offsets" (n + 1,) int64: where those of
      each sample begin. A single sample has its items alone;
    - of a graph, "<graph>.<role>" for each member, nodes and edges of all graphs one after the other, edges
      (edges, 2) counting nodes through the batch, and "<graph>.ptr", "<graph>.edge_ptr" (n + 1,) where each graph's
      begin. The names are those of PyTorch Geometric, and `edge_index` is the transpose of the edges.

    Args:
        source: the data set's directory, or an open one, or some of its samples: ens.query("yield > 1e14").
        fields: names, that of a graph for all its members; all but text by default.
        inputs: labels of inputs and parameters; all that are real numbers by default. Fields that are numbers or
            series may be named, too: a series becomes columns "name[0]", "name[1]", ….
        split: a split of the data set; all samples by default.
        partition: a trainer's share of them: (k, K), or a `Partition`.
        normalise: a `Normaliser`, or what `Normaliser.fit` takes as methods, where groups mean what is chosen here.
        layout: where images and volumes have their channels, "chw" for the front and "hwc" for the end; as stored by
            default. Only the strides change: an hwc image seen as chw is in torch's channels_last format.
        dtype: "float32" converts all floating-point fields; as stored by default.
        cache_bytes: inputs and stacked scalars are kept in memory up to this size each.

    Raises UsageError for names that are not there, ShardError for damaged files.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Ensemble,
        fields: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        *,
        split: str | None = None,
        partition: tuple[int, int] | Partition | None = None,
        normalise: Any = None,
        stack_scalars: bool | Sequence[str] = False,
        layout: Literal["chw", "hwc"] | None = None,
        dtype: Literal["float32"] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if layout not in (None, "chw", "hwc") or dtype not in (None, "float32"):
            raise UsageError(f"layout is chw or hwc, dtype is float32, not {layout!r} and {dtype!r}")
        self.ens = source if isinstance(source, Ensemble) else open_shards(source)
        self.split = split
        self.partition = Partition(*partition) if isinstance(partition, tuple) else partition
        columns = Columns(self.ens)
        chosen = columns.default_fields() if fields is None else [c for f in fields for c in columns.field(f)]
        labels = columns.default_labels() if inputs is None else [columns.input(name) for name in inputs]
        refuse_text([*chosen, *labels])
        _refuse_unfit(labels)
        if normalise is not None and not isinstance(normalise, Normaliser):
            # what is not read need not be fit for it: a constant field, for example
            normalise = Normaliser.fit(self.ens, normalise, among=[*chosen, *labels])
        self.normaliser: Normaliser | None = normalise
        wanted = {c.name for c in chosen} if stack_scalars is True else set(stack_scalars or ())
        self._stacked = [c for c in chosen if c.name in wanted and c.kind == "scalar" and not c.is_complex]
        self._single = [c for c in chosen if c not in self._stacked]
        self._labels = labels
        self._layout, self._dtype, self._cache_bytes = layout, dtype, cache_bytes
        self._matrices: dict[str, Matrix] = {}
        self.keys = self._unique_keys()
        self._moves = {c.name: move for c in self._single if (move := self._move(c)) is not None}
        self._scalings = self._all_scalings()
        self._source: Source | None = Source(self.ens, _members(self.ens, split, self.partition))
        self._readers: dict[bool, BatchReader] = {}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The columns of "inputs"."""
        return tuple(name for column in self._labels for name in column.column_names)

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """The columns of "scalars"."""
        return tuple(column.name for column in self._stacked)

    @property
    def rows(self) -> Array:
        """The row of the ensemble that each sample is, (n,) int64."""
        return self.source.rows_of(np.arange(len(self), dtype=np.int64))

    @property
    def source(self) -> Source:
        if self._source is None:
            self._source = Source(self.ens, _members(self.ens, self.split, self.partition))
        return self._source

    @property
    def fingerprint(self) -> str:
        """Equal for data sets with the same samples in the same order."""
        return combine(identity(self.ens), self.split, repr(self.partition))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        """One sample by its number, or a batch by a list or an array of numbers."""
        if np.ndim(index) == 0:
            return self.tensors(self.reader().read(self._checked([index])), single=True)
        return self.tensors(self.reader().read(self._checked(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[WholeBatch]:
        """The batch that `torch.utils.data.DataLoader` asks for; default collating makes it a dict."""
        return [WholeBatch(self[np.asarray(indices)])]

    def reader(self, raw: bool = False) -> BatchReader:
        """Batches as NumPy arrays; `raw` leaves the fields as stored, to be normalised by `finish`."""
        if raw not in self._readers:
            self._readers[raw] = BatchReader(self.source, self._items(raw))
        return self._readers[raw]

    def tensors(self, batch: Mapping[str, Array], single: bool = False) -> dict[str, Tensor]:
        """What a reader read, as tensors that share its memory, in the layout asked for."""
        made = {key: torch.from_numpy(values) for key, values in batch.items()}
        for key, (old, new) in self._moves.items():
            made[key] = made[key].movedim(old, new)
        if not single:
            return made
        ragged = {column.name: column.ragged for column in self._single}  # a sample has its items alone
        names = {INPUTS: False, SCALARS: False, **ragged}
        return {key: values if names[key] else values[0] for key, values in made.items() if key in names}

    def finish(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise and convert, on any device, the tensors of a raw reader."""
        done = dict(batch)
        for column in self._single:
            scaling, values = self.scaling(column.name), done[column.name]
            dtype = torch.float32 if self._target(column) == FLOAT else values.dtype
            done[column.name] = (values if scaling is None else scaling.forward(values)).to(dtype)
        return done

    def scaling(self, key: str) -> Scaling | None:
        """How the values under a key of a batch are normalised; KeyError if there is no such key."""
        if key not in self._scalings:
            raise KeyError(f"no '{key}' of values in a batch; there are: {', '.join(self._scalings)}")
        return self._scalings[key]

    def _all_scalings(self) -> dict[str, Scaling | None]:
        """By key, for the layout that the batch has."""
        found = {key: matrix.scaling for key, matrix in self._matrices.items()}
        for column in self._single:
            scaling, move = self._stored_scaling(column), self._moves.get(column.name)
            found[column.name] = scaling if scaling is None or move is None else scaling.moved(move[1])
        return found

    def inverse(self, key: str, values: Any) -> Any:
        """Predictions of `key`, an array or a tensor (…, *shape in a sample), in the data set's units."""
        scaling = self.scaling(key)
        return values if scaling is None else scaling.inverse(values)

    def _unique_keys(self) -> tuple[str, ...]:
        """The keys of a batch."""
        keys = [key for item in self._items(raw=False) for key in item.keys]
        for key in keys:
            if keys.count(key) > 1:
                raise UsageError(
                    f"two parts of a batch would be called '{key}'; choose by fields=, inputs= and stack_scalars="
                )
        if not keys:
            raise UsageError(f"nothing of {self.ens.path} is left to read; choose fields or inputs")
        return tuple(keys)

    def _items(self, raw: bool) -> list[Item]:
        matrices = ((INPUTS, self._labels), (SCALARS, self._stacked))
        items: list[Item] = [self._matrix(key, columns) for key, columns in matrices if columns]
        parts = [
            Part(c, c.dtype, None) if raw else Part(c, self._target(c), self._stored_scaling(c))
            for c in self._single
        ]
        plain = [part for part in parts if not part.column.graph]
        if dense := [part for part in plain if not part.column.ragged]:
            items.append(Dense(dense))
        items += [Varied(part) for part in plain if part.column.ragged]
        for graph in dict.fromkeys(part.column.graph for part in parts if part.column.graph):
            items.append(Graphs(graph, [part for part in parts if part.column.graph == graph]))
        return items

    def _matrix(self, key: str, columns: Sequence[Column]) -> Matrix:
        """One for all readers, as it keeps values in memory."""
        if key not in self._matrices:
            self._matrices[key] = Matrix(key, columns, self._stack(columns), self._cache_bytes)
        return self._matrices[key]

    def _stack(self, columns: Sequence[Column]) -> Scaling | None:
        found = [self._stored_scaling(column) for column in columns]
        widths = [len(column.column_names) for column in columns]
        return Scaling.stack(found, widths) if any(scaling is not None for scaling in found) else None

    def _stored_scaling(self, column: Column) -> Scaling | None:
        return None if self.normaliser is None else self.normaliser.of(column)

    def _target(self, column: Column) -> np.dtype[Any]:
        """The type of a field in a batch."""
        converted = self._stored_scaling(column) is not None or (
            self._dtype is not None and column.dtype.kind == "f"
        )
        return FLOAT if converted else column.dtype

    def _move(self, column: Column) -> tuple[int, int] | None:
        """From where to where the axis of the channels moves, counted from the end."""
        axis, num = column.channel_axis, len(column.shape)
        if self._layout is None or axis is None or column.kind not in ("image", "volume"):
            return None
        return axis - num, -num if self._layout == "chw" else -1

    def _checked(self, indices: Any) -> Array:
        """Sample numbers (n,) int64 in [0, len); negative ones count from the end."""
        where = np.asarray(indices, dtype=np.int64)
        size = len(self)
        if where.ndim != 1 or (where.size and not -size <= int(where.min()) <= int(where.max()) < size):
            raise IndexError(f"samples are numbered from 0 to {size - 1}, and given one by one or in a list")
        return np.where(where < 0, where + size, where)

    def __getstate__(self) -> dict[str, Any]:
        """Without what every process finds out for itself."""
        return {**self.__dict__, "_source": None, "_matrices": {}, "_readers": {}}


def _refuse_unfit(labels: Sequence[Column]) -> None:
    for column in labels:
        if column.ragged or len(column.shape) > 1:
            raise UsageError(
                f"'{column.name}' is neither a number nor a series of fixed length, and has no place among the "
                "columns of inputs; ask for it in fields="
            )
        if column.is_complex:
            raise UsageError(
                f"'{column.name}' is complex and has no place among the float32 inputs; leave it out"
            )


def _members(ens: Ensemble, split: str | None, partition: Partition | None) -> Array | None:
    """Ascending rows of a partition of a split; None for all."""
    if split is None and partition is None:
        return None
    if split is not None and split not in ens.splits:
        raise UsageError(f"no split '{split}' in {ens.path}; there are: {', '.join(ens.splits) or 'none'}")
    rows = np.arange(len(ens)) if split is None else ens.splits[split]
    return rows if partition is None else rows[partition.select(ens.sample_id[rows])]
