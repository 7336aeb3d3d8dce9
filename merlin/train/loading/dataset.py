"""A data set as torch sees it: samples of one split and partition, read by whole batches.

    dataset = ShardDataset("study/collect", split="train", stack_scalars=True, normalise="standard")
    dataset[5]["image"], dataset[[3, 1, 2]]["inputs"], len(dataset)

It may be given to `torch.utils.data.DataLoader` as it is, with any sampler and number of workers, or to
`merlin.train.ShardLoader`, which is faster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
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
from merlin.shards.format.segments import Array
from merlin.shards.reading.indexing import Rows, as_number
from merlin.train.loading.batches import (
    FLOAT,
    BatchField,
    BatchReader,
    DenseFields,
    Graphs,
    Item,
    Matrix,
    RaggedField,
    Source,
)
from merlin.train.loading.columns import Columns, identity, refuse_text, rows_of
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.order import Partition
from merlin.train.loading.scaling import Scaling

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
        self.partition = _partition(partition)
        chosen, labels = _choose(Columns(self.ens), fields, inputs)
        if normalise is not None and not isinstance(normalise, Normaliser):
            # columns that are not read need not suit the method: one may be constant, for example
            normalise = Normaliser.fit(self.ens, normalise, among=[*chosen, *labels])
        self.normaliser: Normaliser | None = normalise
        stacked = _stacked(chosen, stack_scalars)
        self._matrices = [
            Matrix(key, columns, self._stacked_scaling(columns), cache_bytes)
            for key, columns in ((INPUTS, labels), (SCALARS, stacked))
            if columns
        ]
        self._parts = [self._part(column, dtype, layout) for column in chosen if column not in stacked]
        self.keys = self._unique_keys()
        self.input_names = tuple(name for column in labels for name in column.column_names)
        self.scalar_names = tuple(column.name for column in stacked)
        self._scalings = {matrix.key: matrix.scaling for matrix in self._matrices}
        self._scalings |= {part.name: part.tensor_scaling for part in self._parts}
        self._readers: dict[bool, BatchReader] = {}
        _ = self.source

    @cached_property
    def source(self) -> Source:
        """The samples, by their rows in the ensemble."""
        return Source(self.ens, _members(self.ens, self.split, self.partition))

    @property
    def rows(self) -> Array:
        """The row of the ensemble that each sample is, (n,) int64."""
        return self.source.rows_of(np.arange(len(self), dtype=np.int64))

    @property
    def fingerprint(self) -> str:
        """Equal for data sets with the same samples in the same order."""
        if self.split is None:
            return self.earlier_fingerprint
        splits = self.ens.manifest.splits
        return combine(self.earlier_fingerprint, list(splits.fractions.items()), splits.seed)

    @property
    def earlier_fingerprint(self) -> str:
        """The fingerprint of earlier versions, which did not tell how samples are divided among splits."""
        return combine(identity(self.ens), self.split, repr(self.partition))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        """One sample by its number, or a batch by a slice, a mask, or a list or an array of numbers; negative ones
        count from the end. Raises IndexError for anything else, and for samples that are not there."""
        number = as_number(index)
        where = Rows(len(self)).many(index if number is None else [number])
        return self.tensors(self.reader().read(where), single=number is not None)

    def __getitems__(self, indices: Sequence[int]) -> list[WholeBatch]:
        """The batch that `torch.utils.data.DataLoader` asks for; default collating makes it a dict."""
        return [WholeBatch(self[np.asarray(indices)])]

    def reader(self, raw: bool = False) -> BatchReader:
        """Batches as NumPy arrays; `raw` leaves the fields as stored, to be normalised by `finish`."""
        if raw not in self._readers:
            self._readers[raw] = BatchReader(self.source, self._items(raw))
        return self._readers[raw]

    def tensors(self, batch: Mapping[str, Array], single: bool = False) -> dict[str, Tensor]:
        """The arrays of a reader as tensors that share its memory, in the layout asked for."""
        made = {key: torch.from_numpy(values) for key, values in batch.items()}
        for part in self._parts:
            if part.move is not None:
                made[part.name] = made[part.name].movedim(*part.move)
        if not single:
            return made
        ragged = {part.name for part in self._parts if part.column.ragged}  # a sample has its items alone
        return {key: made[key] if key in ragged else made[key][0] for key in self._scalings}

    def finish(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise and convert, on any device, the tensors of a raw reader."""
        done = dict(batch)
        for part in self._parts:
            scaling, values = self._scalings[part.name], done[part.name]
            dtype = torch.float32 if part.dtype == FLOAT else values.dtype
            done[part.name] = (values if scaling is None else scaling.forward(values)).to(dtype)
        return done

    def scaling(self, key: str) -> Scaling | None:
        """How the values under a key of a batch are normalised; KeyError if there is no such key."""
        if key not in self._scalings:
            raise KeyError(f"no '{key}' of values in a batch; there are: {', '.join(self._scalings)}")
        return self._scalings[key]

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
        parts = [BatchField(p.column, p.column.dtype, None) for p in self._parts] if raw else self._parts
        plain = [part for part in parts if not part.column.graph]
        items: list[Item] = [*self._matrices]
        if dense := [part for part in plain if not part.column.ragged]:
            items.append(DenseFields(dense))
        items += [RaggedField(part) for part in plain if part.column.ragged]
        for graph in dict.fromkeys(part.column.graph for part in parts if part.column.graph):
            items.append(Graphs(graph, [part for part in parts if part.column.graph == graph]))
        return items

    def _scaling_of(self, column: Column) -> Scaling | None:
        return None if self.normaliser is None else self.normaliser.of(column)

    def _stacked_scaling(self, columns: Sequence[Column]) -> Scaling | None:
        found = [self._scaling_of(column) for column in columns]
        widths = [len(column.column_names) for column in columns]
        return Scaling.stack(found, widths) if any(scaling is not None for scaling in found) else None

    def _part(self, column: Column, dtype: str | None, layout: str | None) -> BatchField:
        scaling = self._scaling_of(column)
        converted = scaling is not None or (dtype is not None and column.dtype.kind == "f")
        move, axis = None, column.field.channel_axis_from_end
        if layout is not None and axis is not None and column.sample_kind.spatial:
            move = axis, -len(column.shape) if layout == "chw" else -1
        return BatchField(column, FLOAT if converted else column.dtype, scaling, move)

    def __getstate__(self) -> dict[str, Any]:
        """The state without what every process finds out for itself."""
        kept = {name: value for name, value in self.__dict__.items() if name != "source"}
        return {**kept, "_readers": {}}


def _choose(
    columns: Columns, fields: Sequence[str] | None, inputs: Sequence[str] | None
) -> tuple[list[Column], list[Column]]:
    """The fields and the inputs of these names. Raises UsageError for what cannot be read as such."""
    chosen = columns.default_fields() if fields is None else [c for f in fields for c in columns.field(f)]
    labels = columns.default_labels() if inputs is None else [columns.input(name) for name in inputs]
    refuse_text([*chosen, *labels])
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
    return chosen, labels


def _partition(given: object) -> Partition | None:
    """The partition that is given as (k, K). Raises UsageError for what is none."""
    if given is None or isinstance(given, Partition):
        return given
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(n, Integral) for n in given):
        return Partition(*given)
    raise UsageError(f"partition is (k, K), two whole numbers, or a Partition, not {given!r}")


def _stacked(chosen: Sequence[Column], wanted: bool | Sequence[str]) -> list[Column]:
    """The scalars to be stacked. Raises UsageError for a name that is no scalar among the fields chosen."""
    scalars = [column for column in chosen if column.sample_kind.is_number and not column.ragged]
    known = [column.name for column in scalars]
    names = known if wanted is True else list(wanted or ())
    for name in names:
        if name not in known:
            raise UsageError(
                f"stack_scalars: no scalar '{name}' among the fields chosen; there are: "
                f"{', '.join(known) or 'none'}"
            )
    return [column for column in scalars if column.name in names and not column.is_complex]


def _members(ens: Ensemble, split: str | None, partition: Partition | None) -> Array | None:
    """Ascending rows of a partition of a split; None for all."""
    if split is None and partition is None:
        return None
    rows = rows_of(ens, split)
    return rows if partition is None else rows[partition.select(ens.sample_id[rows])]
