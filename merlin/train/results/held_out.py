"""The data that a run is evaluated on: the run's own, or another data set with the same fields."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from merlin.base.text import some_of
from merlin.errors import NotADataSetError, ShardError, UsageError
from merlin.shards.ensemble import Ensemble, open_shards
from merlin.shards.format.column import Column
from merlin.train.config import TrainConfig
from merlin.train.data import Classes, ColumnSelection, TrainingData, class_values
from merlin.train.loading.columns import Columns
from merlin.train.loading.dataset import ShardDataset
from merlin.train.loading.normalise import Normaliser
from merlin.train.quantities import Quantities, Quantity
from merlin.train.results.best import BestModel
from merlin.train.run_directory import RunFacts, SplitRule

ALL = "all"  # every sample, whatever its split
USUAL = ("test", "validation")
_MAX_BATCH = 1024
_BATCH_BYTES = 4 << 20


def open_held_out(best: BestModel, config: TrainConfig, facts: RunFacts, data: Path | None) -> TrainingData:
    """The data set of the run, unless another one is named, with the columns that the model knows.

    Raises NotADataSetError if it is gone, ShardError if it is another one by now or its samples are in other splits,
    UsageError if fields are missing.
    """
    ens = _own(config, facts.data_digest) if data is None else open_shards(data)
    others = facts.other_splits(SplitRule.of(ens.manifest))
    if others and ens.manifest.content_digest == facts.data_digest:
        raise ShardError(
            f"the model was trained on some samples of each split that {ens.path} has now: {others}; "
            "give the data set the splits that it had"
        )
    selection = _select(ens, best.quantities)
    return TrainingData(ens, selection, _normaliser_of(best, selection), config)


def _normaliser_of(best: BestModel, selection: ColumnSelection) -> Normaliser:
    """The model's normalisation of the columns in which a data set has its quantities."""
    known, scalings = best.quantities, best.normaliser.scalings
    quantities = (*known.inputs, *known.scalars, *known.images, *known.classes)
    pairs = zip(quantities, selection.columns, strict=True)
    return Normaliser({column.path: scalings[q.path] for q, column in pairs if q.path in scalings})


def _own(config: TrainConfig, digest: str) -> Ensemble:
    path = Path(config.data)
    try:
        ens = open_shards(path)
    except NotADataSetError as error:
        raise NotADataSetError(
            f"the data set that the run was trained on is gone: {path}; if it lies elsewhere now: --data PATH"
        ) from error
    if ens.manifest.content_digest != digest:
        raise ShardError(
            f"{path} holds other data than when the run was trained: its content digest has changed. "
            f"To evaluate on what it holds now: --data {path}"
        )
    return ens


def _select(ens: Ensemble, quantities: Quantities) -> ColumnSelection:
    columns = Columns(ens)
    predicted = {q.name for q in quantities.outputs}
    labels = {name: column for name, column in columns.fields.items() if name not in predicted}
    labels |= {**columns.parameters, **columns.inputs}
    missing = [q.name for q in quantities.inputs if q.name not in labels]
    missing += [q.name for q in quantities.outputs if q.name not in columns.fields]
    if missing:
        raise UsageError(f"{ens.path} has not what the model was trained on; missing: {', '.join(missing)}")
    fields = columns.fields
    images = tuple(_same_shape(ens, fields[q.name], q) for q in quantities.images)
    scalars = tuple(_same_shape(ens, fields[q.name], q) for q in quantities.scalars)
    classes = tuple(_same_classes(ens, fields[q.name], q) for q in quantities.classes)
    inputs = tuple(_same_shape(ens, labels[q.name], q) for q in quantities.inputs)
    return ColumnSelection(inputs, scalars, images, classes)


def _same_classes(ens: Ensemble, column: Column, quantity: Quantity) -> Classes:
    others = sorted(set(class_values(ens, _same_shape(ens, column, quantity))) - set(quantity.classes))
    if others:
        raise UsageError(
            f"'{column.name}' of {ens.path} has classes that the model does not know: {some_of(others)}; "
            f"it knows {some_of(quantity.classes, 20)}"
        )
    return Classes(column, quantity.classes)


def _same_shape(ens: Ensemble, column: Column, quantity: Quantity) -> Column:
    if (column.shape, column.field.channel_axis_from_end) != (quantity.shape, quantity.axis):
        raise UsageError(
            f"'{column.name}' of {ens.path} has shape {column.shape}, and the model was trained on {quantity.shape}"
            + ("" if column.shape != quantity.shape else " with its channels elsewhere")
        )
    return column


def choose_split(data: TrainingData, split: str | None, is_own: bool) -> tuple[ShardDataset, str, str]:
    """The samples to evaluate on, what they are called, and a note about them; by default `test`, else `validation`.

    `is_own` says that the model was trained on this data set. Raises UsageError if there is no such split, or it is
    empty.
    """
    ens, config = data.ens, data.config
    sizes = {name: len(rows) for name, rows in ens.splits.items()}
    if split is None:
        candidates = (*USUAL, config.splits.validation)
        split = next((n for n in candidates if sizes.get(n) and n != config.splits.train), None)
        if split is None:
            listed = ", ".join(f"{name} {num:,}" for name, num in sizes.items()) or "none"
            raise UsageError(
                f"{ens.path} has no split to evaluate on: name one with --split, or --split {ALL}; there are: {listed}"
            )
    dataset = data.dataset(None if split == ALL and ALL not in sizes else split)
    if not len(dataset):
        raise UsageError(f"the split '{split}' of {ens.path} is empty")
    return (
        dataset,
        split,
        _note(split, config) if is_own else "This is not the data that the model was trained on.",
    )


def _note(split: str, config: TrainConfig) -> str:
    if split == config.splits.train:
        return "The model was trained on these samples: the errors say how well it remembers, not how well it predicts."
    if split == config.splits.validation:
        return (
            "The best model was chosen by its error on these samples, so the errors are a little too small."
        )
    return "The model was trained on some of these samples." if split == ALL else ""


def rows_at_once(quantities: Iterable[Quantity]) -> int:
    """How many samples are taken through a model at once, so that their images take a few megabytes as float64."""
    row_bytes = 8 * sum(prod(q.shape) for q in quantities if q.shape)
    return max(1, min(_MAX_BATCH, _BATCH_BYTES // max(1, row_bytes)))
