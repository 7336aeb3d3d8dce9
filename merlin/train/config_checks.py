"""Checks of a configuration that need the data set or the model. Findings point at the value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from merlin.base.document.findings import allowed
from merlin.base.document.tree import to_data
from merlin.base.document.validation import validate_as
from merlin.errors import UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column
from merlin.train.config_file import ConfigFile
from merlin.train.data import DEFAULT_METHOD, Classes, ColumnSelection, class_values, find_bad_values
from merlin.train.loading.columns import Columns

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.models.base import Trainee

GROUPS = ("inputs", "scalars", "images")  # what is normalised; beside them there are classes


def check_data(file: ConfigFile, ens: Ensemble) -> ColumnSelection:
    """The columns that the configuration selects; notes what is not there, constant, or not finite."""
    columns = Columns(ens)
    numeric = [c for c in columns.fields.values() if not c.is_text and not c.ragged]
    labels = columns.default_labels()
    scalars = [c for c in numeric if c.sample_kind.is_number]
    images = [c for c in numeric if c.sample_kind.is_picture]
    fields = [c for c in numeric if _may_be_input(c)]
    inputs = _choose(file, ens, "inputs", labels, [*fields, *labels])
    class_columns = _choose(file, ens, "classes", (), scalars)
    learned = () if class_columns else (*scalars, *images)
    rest = [c for c in learned if c not in inputs]
    selection = ColumnSelection(
        inputs=inputs,
        scalars=_choose(file, ens, "scalars", [c for c in rest if c.sample_kind.is_number], scalars),
        images=_choose(file, ens, "images", [c for c in rest if c.sample_kind.is_picture], images),
        classes=tuple(_classes(file, ens, class_columns)),
    )
    _refuse_double(file, selection)
    complete = not file.findings.failed  # else what is missing has been reported
    if complete and not selection.inputs:
        hint = "name fields that are inputs, e.g. fields.inputs: [image]"
        file.error(("fields", "inputs"), f"{ens.path} has no inputs that are numbers and vary", hint)
    if complete and not selection.scalars and not selection.images and not selection.classes:
        hint = "name scalars, images or classes"
        file.error(("fields",), f"nothing to learn is selected of {ens.path}", hint)
    _check_methods(file, selection)
    _check_splits(file, ens)
    if not file.findings.failed:
        splits = (file.config.splits.train, file.config.splits.validation)
        for column, message in find_bad_values(ens, selection, splits):
            group = _group_of(column, selection)
            hint = f"leave it out of fields.{group}, or let the study's aggregate step refuse such samples"
            file.error(("fields", group), message, hint, code="not-finite")
    return selection


def _may_be_input(column: Column) -> bool:
    """True for a field that is a number, a series of one axis, or an image."""
    kind, num_axes = column.sample_kind, len(column.shape)
    plain = not column.is_complex and not column.graph
    return plain and (kind.is_picture or (num_axes < 2 and num_axes in kind.axes))


def _choose(
    file: ConfigFile, ens: Ensemble, group: str, usual: Sequence[Column], offered: Sequence[Column]
) -> tuple[Column, ...]:
    """The columns that are named, from those offered; if none are, the usual ones that can be used."""
    names: tuple[str, ...] | None = getattr(file.config.fields, group)
    if names is None:
        return tuple(c for c in usual if not _leave_out(file, group, c))
    known = {c.name: c for c in offered}
    found = []
    for place, name in enumerate(names):
        path = ("fields", group, place)
        if name not in known:
            other = ens.fields.get(name)
            what = f"{ens.path} has no {name!r}"
            if other is not None:
                what = f"'{name}' is of kind {other.kind}, which fields.{group} does not take"
            file.error(path, f"fields.{group}: {what}", allowed(name, known, "there are"), "field")
        elif wrong := _unusable(file, group, known[name]):
            what, advice = wrong
            hint = f"leave it out{f', or write {advice}' if advice else ''}"
            file.error(path, f"fields.{group}: '{name}' {what}", hint, "constant")
        else:
            found.append(known[name])
    return tuple(found)


def _classes(file: ConfigFile, ens: Ensemble, columns: Sequence[Column]) -> Iterator[Classes]:
    """The columns with their values; notes a field that is no class."""
    for column in columns:
        try:
            yield Classes(column, class_values(ens, column))
        except UsageError as error:
            file.error(
                ("fields", "classes"), f"fields.classes: {error}", "name it in fields.scalars", "classes"
            )


def _refuse_double(file: ConfigFile, selection: ColumnSelection) -> None:
    """Note fields that are both inputs and predicted, or predicted in two ways."""
    groups = {group: getattr(selection, group) for group in GROUPS}
    groups["classes"] = tuple(found.column for found in selection.classes)
    seen: dict[str, str] = {}
    for group, columns in groups.items():
        for column in columns:
            before = seen.setdefault(column.path, group)
            if before != group:
                path, hint = ("fields", group), "leave it out of one of them"
                file.error(path, f"fields.{group}: '{column.name}' is one of fields.{before}", hint, "double")


def _leave_out(file: ConfigFile, group: str, column: Column) -> bool:
    """Whether a column that nobody has named cannot be used; this is noted."""
    wrong = _unusable(file, group, column)
    if wrong is not None:
        what, advice = wrong
        message = f"'{column.name}' is left out: it {what}{f'; {advice} keeps it' if advice else ''}"
        file.findings.warning(file.place("data"), message, code="constant")
    return wrong is not None


def _unusable(file: ConfigFile, group: str, column: Column) -> tuple[str, str] | None:
    """Why a column cannot be used, and what to write so that it can be, if that helps; None if it can be used.

    An image of which only some channels are constant can be used as it is, without being normalised; values whose
    squares float64 cannot hold, by their logarithm.
    """
    known, given = column.statistics, file.config.normalise
    if known is None or not all(n > 0 for n in known.count):
        return None
    if all(known.constant):
        return "is the same in all samples", ""
    method = given.get(column.name, given.get(group, DEFAULT_METHOD))
    name = method.get("name") if isinstance(method, dict) else method
    if any(known.constant) and name is not None:
        channel = known.constant.index(True)
        return f"is constant in channel {channel}", f"normalise: {{{column.name}: none}}"
    if not known.has_spread and name != "log":
        return "has values whose squares float64 cannot hold", f"normalise: {{{column.name}: log}}"
    return None


def _group_of(column: Column, selection: ColumnSelection) -> str:
    return next((group for group in GROUPS if column in getattr(selection, group)), "classes")


def _check_methods(file: ConfigFile, selection: ColumnSelection) -> None:
    fields = file.config.fields
    named = [name for group in GROUPS for name in getattr(fields, group) or ()]  # refused ones have been told
    known = [*GROUPS, *named, *(c.name for group in GROUPS for c in getattr(selection, group))]
    for name in file.config.normalise:
        if name not in known:
            entry = file.tree.get("normalise", name)
            file.findings.error(
                entry.key_place,
                f"normalise: {name!r} is neither a group nor a selected field",
                hint=allowed(name, known, "there are"),
                code="field",
            )


def _check_splits(file: ConfigFile, ens: Ensemble) -> None:
    splits = {name: len(rows) for name, rows in ens.splits.items()}
    for key in ("train", "validation"):
        name = getattr(file.config.splits, key)
        if name not in splits:
            hint = allowed(name, splits, "there are") or "the data set was made without splits"
            file.error(("splits", key), f"splits.{key}: {ens.path} has no split {name!r}", hint, "split")
        elif not splits[name]:
            file.error(
                ("splits", key), f"splits.{key}: the split {name!r} of {ens.path} is empty", code="split"
            )


def check_model_options(file: ConfigFile) -> None:
    """Note options that the model does not know, or values that it does not take."""
    from merlin.train.models.registry import find

    block = file.tree.get("model")
    try:
        model = find(file.config.model.name)
    except UsageError as error:
        file.error(("model", "name"), str(error), code="model")
        return
    if file.config.mutates_width and model.capacity(file.config.model.options) is None:
        file.error(
            ("tournament", "mutation", "width"),
            f"the width of the model {model.name} cannot change: it knows no option 'capacity'",
            "give its callable one, capacity=1.0, a factor of all its widths, or leave width out",
        )
    entries = {key: entry for key, entry in block.mapping.items() if key != "name"}
    tree = replace(block, content=entries)
    if model.options is not None:
        validate_as(model.options, to_data(tree), tree, file.findings)
        return
    known = model.keywords()
    for key, entry in entries.items():
        if known is not None and key not in known:
            file.findings.error(
                entry.key_place,
                f"unknown option {key!r} of the model {model.name}",
                hint=allowed(key, known, "there are"),
                code="unknown-key",
            )


def check_trainee(file: ConfigFile, config: TrainConfig, trainee: Trainee) -> None:
    """Note metrics, phases and parts that the model does not have, and parts that cannot be averaged."""
    metrics = trainee.directions()

    def known(path: tuple[str | int, ...], name: str, what: str, names: Sequence[str]) -> None:
        if name not in names:
            hint = allowed(name, names, "there are") or f"the model has no {what}s"
            file.error(path, f"{'.'.join(map(str, path))}: the model has no {what} {name!r}", hint, what)

    if config.training.early_stopping is not None:
        path = ("training", "early_stopping", "metric")
        known(path, config.training.early_stopping.metric, "metric", list(metrics))
    for i, metric in enumerate(config.tournament.metrics):
        known(("tournament", "metrics", i, "name"), metric.name, "metric", list(metrics))
    for phase in config.optimizer.phases:
        known(("optimizer", "phases", phase), phase, "phase", list(trainee.phases))
    for i, part in enumerate(config.tournament.exchange):
        if part != "all":
            known(("tournament", "exchange", i), part, "part", list(trainee.parts()))
    if config.merges and len(trainee.phases) > 1 and "all" in config.tournament.exchange:
        parts = (
            allowed("", trainee.parts(), "there are") or "the model names no parts: choose another strategy"
        )
        file.error(
            ("tournament", "exchange"),
            f"the model trains {' and '.join(trainee.phases)} against each other, and each trainer's adversary fits "
            "its own model alone: the mean of all would fit none",
            f"exchange what is to be averaged, and leave adversaries out; {parts}",
        )
