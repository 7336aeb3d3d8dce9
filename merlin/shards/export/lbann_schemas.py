"""LBANN's data schema (what is in a sample) and experiment schema (what of it is used, and how).

Keys of `metadata`: dims, channels, layout, transpose, scale, bias, ordering, pack, coerce. A value x is read as
scale * x + bias: inputs, scalars and series between 0 and 1; images and volumes divided by their mean where no
value is negative, as the JAG data set is, else between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.files import write_text
from merlin.base.yaml_text import yaml_text
from merlin.shards.export.view import ExportColumn, View
from merlin.shards.format.segments import Array
from merlin.shards.format.statistics import Statistics

Linear = Callable[[ExportColumn], Sequence[tuple[float, float]]]  # (scale, bias) of each channel

DATA, EXPERIMENT = "data_schema.yaml", "experiment_schema.yaml"
_PLACES = {"scalar": "scalars", "series": "series", "image": "images", "volume": "volumes", "text": "text"}
_STEP = 10  # between orderings, so that there is room for others
_HEAD = {
    DATA: "What a sample holds, and how its values are normalised.",
    EXPERIMENT: "What is trained on: inputs are packed as datum, outputs as response. Take out what is not wanted.",
}


def place(column: ExportColumn) -> str:
    """Where a column stands inside a sample."""
    if column.group in ("inputs", "parameters"):
        return f"{column.group}/{column.name}"
    return f"outputs/{_PLACES.get(column.field.kind, 'arrays')}/{column.name}"


def stored_dtype(column: ExportColumn) -> np.dtype[Any]:
    """The type in the file: Conduit has neither half precision nor booleans."""
    if column.dtype.kind == "b":
        return np.dtype("u1")
    return np.dtype("<f4") if column.dtype == np.float16 else column.dtype


def channels_last(column: ExportColumn, values: Array) -> Array:
    """Rows with their axes as `dims` says, and the channels after them."""
    order = _axes(column)
    return values if order is None else values.transpose(0, *(axis + 1 for axis in order))


def _axes(column: ExportColumn) -> tuple[int, ...] | None:
    """The order of a sample's axes in the file: d h w, then channels; None if they need no reordering."""
    field = column.field
    if not column.sample_kind.spatial:
        return None
    if field.layout:
        return tuple(field.layout.index(letter) for letter in "dhwc" if letter in field.layout)
    channel = field.channel_axis
    if channel is None:
        return None
    return (*(axis for axis in range(len(column.shape)) if axis != channel), channel)


def write_schemas(
    directory: Path, view: View, chosen: Sequence[ExportColumn] | None = None, linear: Linear | None = None
) -> list[str]:
    """Write both files; returns their names.

    `chosen` are the columns that are used, in their order, instead of all; `linear` overrules their (scale, bias), one
    pair per channel, so that x is read as scale * x + bias.
    """
    used = [c for c in view.columns if c.group != "ids" and not c.is_text]
    used = sorted(used, key=_group_order) if chosen is None else list(chosen)
    data: dict[str, Any] = {}
    for number, column in enumerate(used, 1):
        node = data
        for key in place(column).split("/"):
            node = node.setdefault(key, {})
        known = metadata(column)
        if linear is not None:
            known |= _scales(linear(column), "channels" in known)
        node["metadata"] = known | {"ordering": _STEP * number}
    experiment: dict[str, Any] = {}
    for group, pack in (("inputs", "datum"), ("parameters", "datum"), ("outputs", "response")):
        if group in data:
            inner: dict[str, Any] = {key: {} for key in data[group]} if group == "outputs" else {}
            experiment[group] = {"metadata": {"pack": pack, "coerce": "float"}, **inner}
    for name, tree in ((DATA, data), (EXPERIMENT, experiment)):
        write_text(directory / name, f"# {_HEAD[name]}\n{yaml_text(tree)}")
    return [DATA, EXPERIMENT]


def _group_order(column: ExportColumn) -> int:
    """Inputs, parameters, scalars, and the rest; each in the data set's order."""
    groups = {"inputs": 0, "parameters": 1}
    return groups.get(column.group, 2 if column.sample_kind.is_number else 3)


def metadata(column: ExportColumn) -> dict[str, Any]:
    """dims, channels, layout and normalisation of a column; `ordering` is not among them."""
    found: dict[str, Any] = {}
    multiple = False
    if column.sample_kind.spatial:
        order = _axes(column) or tuple(range(len(column.shape)))
        channel = column.field.channel_axis
        multiple = channel is not None and column.shape[channel] > 1
        found["dims"] = [column.shape[axis] for axis in order if axis != channel]
        found["channels"] = 1 if channel is None else column.shape[channel]
        if multiple:
            last, first = ("hwc", "chw") if len(found["dims"]) == 2 else ("dhwc", "cdhw")
            # the reader asks for `hwc` before it normalises several channels, whatever the layout says
            found |= {"layout": last, "transpose": first, "hwc": 1}
    if column.statistics is not None:
        found |= _scales(list(_normalisations(column, column.statistics)), "channels" in found)
    return found


def _scales(pairs: Sequence[tuple[float, float]], per_channel: bool) -> dict[str, Any]:
    scales, biases = [scale for scale, _ in pairs], [bias for _, bias in pairs]
    return {"scale": scales if per_channel else scales[0], "bias": biases if per_channel else biases[0]}


def _normalisations(column: ExportColumn, statistics: Statistics) -> Iterator[tuple[float, float]]:
    """(scale, bias) per channel."""
    for low, high, mean in zip(statistics.min, statistics.max, statistics.mean, strict=True):
        if not math.isfinite(mean):
            yield 1.0, 0.0
        elif column.sample_kind.spatial and low >= 0 and mean > 0:
            yield 1.0 / mean, 0.0
        elif high > low and math.isfinite(1.0 / (high - low)):
            yield 1.0 / (high - low), -low / (high - low)
        else:
            yield 1.0, -low
