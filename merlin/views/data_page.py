"""A finished data set: its description, and pictures of its images and volumes, without matplotlib."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.base.files import stamp
from merlin.base.png import coloured, png
from merlin.errors import UsageError
from merlin.shards.describe import describe
from merlin.shards.ensemble import Ensemble, open_shards
from merlin.shards.format.counts import MANIFEST_NAME
from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.plot.images import shrink
from merlin.shards.plot.pictures import PictureView, views_of
from merlin.shards.plot.ticks import drawn

MAX_PIXELS = 512  # of a picture's longer side; larger ones are averaged down
MAX_SAMPLE_BYTES = 256 << 20  # that are read for a picture
_CACHE_BYTES = 32 << 20  # of an open data set
_GAP = 2  # pixels between channels

Array = np.ndarray[Any, Any]

_reading: dict[Path, threading.Lock] = {}  # a lock for each data set that was open


class ImageField(Struct, frozen=True, kw_only=True):
    """A field that can be looked at; `image_png` makes a picture of each row."""

    field: str
    rows: int
    height: int  # of one channel or plane, in the data
    width: int
    channels: tuple[str, ...]  # side by side in the picture; ("",) for a single one, or for true colours
    units: str


class DataPage(Struct, frozen=True, kw_only=True):
    """A data set as a page shows it."""

    description: Mapping[str, Any]  # as `merlin shards describe --json` prints it
    images: tuple[ImageField, ...]


def data_page(directory: Path) -> DataPage:
    """Describe a data set. Raises NotADataSetError if there is none, ShardError if it is damaged."""
    found = describe(directory)
    fields = [facts.info for facts in found.fields]
    images = tuple(_image_field(info, found.data.num_rows) for info in fields if views_of(info))
    return DataPage(description=found.to_json(), images=images)


def _image_field(info: FieldInfo, num_rows: int) -> ImageField:
    views = views_of(info)
    height, width = _size(info, views[0])
    return ImageField(
        field=info.name,
        rows=num_rows,
        height=height,
        width=width,
        channels=tuple(view.label for view in views),
        units=info.units,
    )


def _size(info: FieldInfo, view: PictureView) -> tuple[int, int]:
    left = [size for size, index in zip(info.shape, view.index, strict=True) if isinstance(index, slice)]
    return left[view.order[0]], left[view.order[1]]


def image_png(directory: Path, field: str, row: int) -> bytes:
    """A picture of one row of a field: its channels (planes of a volume) side by side, each from its least value to its
    greatest.

    Raises UsageError if there is no such field or row, and ShardError if it cannot be read.
    """
    with _reading.setdefault(directory, threading.Lock()):
        ensemble = _opened(directory, stamp(directory / MANIFEST_NAME))
        info = ensemble.fields.get(field)
        views = [] if info is None else views_of(info)
        if info is None or not views:
            known = ", ".join(name for name, each in ensemble.fields.items() if views_of(each)) or "none"
            raise UsageError(f"{directory} has no images called {field!r}; it has: {known}")
        if not 0 <= row < len(ensemble):
            raise UsageError(f"{directory} has the rows 0 to {len(ensemble) - 1}, and not {row}")
        if prod(info.shape) * info.value_dtype.itemsize > MAX_SAMPLE_BYTES:
            raise UsageError(f"a sample of {field} is too large to be drawn: its shape is {info.shape}")
        values = drawn(ensemble[field][row])
        pictures = [_pixels(values, view) for view in views]
    return png(_side_by_side(pictures))


def _pixels(values: Array, view: PictureView) -> Array:
    """(height, width, 4)"""
    picture = shrink(values[view.index].transpose(view.order) / view.divisor, MAX_PIXELS)
    if picture.ndim == 2:
        return coloured(picture)
    is_known = np.isfinite(picture).all(axis=2, keepdims=True)
    colours = np.round(255 * np.clip(np.nan_to_num(picture), 0.0, 1.0))
    return np.concatenate([colours, np.where(is_known, 255, 0)], axis=2).astype(np.uint8)


def _side_by_side(pictures: list[Array]) -> Array:
    height = max(picture.shape[0] for picture in pictures)
    width = sum(picture.shape[1] + _GAP for picture in pictures) - _GAP
    sheet, at = np.zeros((height, width, 4), np.uint8), 0
    for picture in pictures:
        sheet[: picture.shape[0], at : at + picture.shape[1]] = picture
        at += picture.shape[1] + _GAP
    return sheet


@lru_cache(maxsize=4)
def _opened(directory: Path, stamp_of_manifest: Hashable) -> Ensemble:
    return open_shards(directory, cache_bytes=_CACHE_BYTES, threads=1)
