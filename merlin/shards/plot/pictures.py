"""From image and volume fields to the pictures of a contact sheet."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.kinds import AXIS_NAMES
from merlin.shards.description_rows import channel_name
from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.format.segments import Array
from merlin.shards.plot.images import MAX_ROWS, MAX_TILES, Row, shrink
from merlin.shards.plot.ticks import drawn, drawn_name
from merlin.shards.reading.reader import SampleReader

MAX_DRAWN_CHANNELS = 8  # of one field
_MANY_TILES = 200  # from so many on, pictures are drawn so small that half the pixels are enough
_TRUE_COLOURS = {("r", "g", "b"), ("red", "green", "blue")}


class PictureView(Struct, frozen=True):
    """A picture within a sample: a channel of an image, or a plane through a volume."""

    label: str
    scale: str  # views with the same one share their colours
    index: tuple[Any, ...]  # into the sample
    order: tuple[int, ...]  # of the axes that are left: vertical, horizontal (, colour)
    divisor: float = 1.0  # of true colours, to 0 … 1


def views_of(field: FieldInfo) -> list[PictureView]:
    """Every channel of an image, or three mid-planes of every channel of a volume, at most `MAX_DRAWN_CHANNELS`.

    Fields of other kinds, and ragged ones, have none.
    """
    layout = field.full_layout
    if field.ragged or not field.sample_kind.spatial or len(layout) != len(field.shape):
        return []
    if _is_true_colour(field, layout):
        scale = 255.0 if field.dtype.endswith("u1") or field.dtype == "uint8" else 1.0
        order = tuple(layout.index(letter) for letter in "hwc")
        return [PictureView("", "", (slice(None),) * 3, order, scale)]
    num = field.shape[layout.index("c")] if "c" in layout else 1
    cuts = _mid_planes(field, layout) if "d" in layout else [("", {})]
    views = []
    for channel in range(min(num, MAX_DRAWN_CHANNELS)):
        name = "" if num == 1 else channel_name(field, channel)
        for plane, fixed in cuts:
            label = ", ".join(word for word in (name, plane) if word)
            views.append(_view(layout, fixed | ({"c": channel} if "c" in layout else {}), label, name))
    return views


def _is_true_colour(field: FieldInfo, layout: str) -> bool:
    if "d" in layout or "c" not in layout or field.shape[layout.index("c")] != 3:
        return False
    if field.channels:
        return tuple(name.lower() for name in field.channels) in _TRUE_COLOURS
    return np.dtype(field.dtype) == np.uint8


def _mid_planes(field: FieldInfo, layout: str) -> list[tuple[str, dict[str, int]]]:
    planes = []
    for letter in "dhw":
        at = layout.index(letter)
        name = field.axes[at] if len(field.axes) == len(layout) else AXIS_NAMES[letter]
        middle = field.shape[at] // 2
        planes.append((f"{name} = {middle}", {letter: middle}))
    return planes


def _view(layout: str, fixed: dict[str, int], label: str, scale: str) -> PictureView:
    left = [letter for letter in layout if letter not in fixed]
    order = tuple(left.index(letter) for letter in "dhw" if letter in left)
    return PictureView(label, scale, tuple(fixed.get(letter, slice(None)) for letter in layout), order)


def make_rows(reader: SampleReader, fields: list[FieldInfo], samples: Array) -> tuple[tuple[Row, ...], str]:
    """Rows of a contact sheet, and a note about channels that are left out."""
    views = [(field, view) for field in fields for view in views_of(field)]
    shown = views[:MAX_ROWS]
    limit = 256 if len(samples) * len(shown) <= _MANY_TILES else 128
    pictures: list[list[Array]] = [[] for _ in shown]
    for field in dict.fromkeys(field.name for field, _ in shown):
        column = reader[field]
        for sample in samples.tolist():
            values = drawn(column[sample])
            for (info, view), stack in zip(shown, pictures, strict=True):
                if info.name == field:
                    stack.append(_picture(values, view, limit))
    rows = tuple(
        Row(drawn_name(field), view.label, view.scale, field.units, _small(np.stack(stack)))
        for (field, view), stack in zip(shown, pictures, strict=True)
    )
    left = len(views) - len(shown)
    return rows, f"; {left} more rows of channels are not drawn" if left else ""


def _picture(values: Array, view: PictureView, limit: int) -> Array:
    return shrink(values[view.index].transpose(view.order) / view.divisor, limit)


def _small(pictures: Array) -> Array:
    """The pictures in float32, if that can hold their values."""
    reach = np.abs(pictures[np.isfinite(pictures)]).max(initial=0)
    return pictures.astype(np.float32 if reach < np.finfo(np.float32).max else np.float64)


def most_samples(fields: list[FieldInfo]) -> int:
    """How many samples fit a sheet of these fields."""
    return max(1, MAX_TILES // max(1, sum(len(views_of(field)) for field in fields)))
