"""Contact sheets: samples in columns, channels of images (or planes of volumes) in rows, a colour bar per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

import merlin.shards.plot.canvas as look
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas
from merlin.shards.plot.colours import SIGNED, Colours, choose_colours
from merlin.shards.plot.ticks import label, number

MAX_PIXELS = 256  # of a picture's longer side; larger ones are averaged down
MAX_ROWS = 24
MAX_TILES = 1200
_LEAST_PIXELS = 64  # smaller pictures are drawn with larger pixels
_LEFT, _RIGHT, _HEAD, _BETWEEN = 1.3, 1.05, 0.36, 0.2
_GAP = 0.04


class Row(Struct, frozen=True):
    """One channel of one field: a picture per sample."""

    field: str
    channel: str  # "" if there is only one
    scale: str  # rows of a field with the same one share their colours
    units: str
    pictures: Array  # (samples, height, width), or (samples, height, width, 3) of true colours in 0 … 1

    @property
    def is_coloured(self) -> bool:
        return self.pictures.ndim == 4

    @property
    def aspect(self) -> float:
        """Height over width."""
        return float(np.clip(self.pictures.shape[1] / max(1, self.pictures.shape[2]), 0.2, 2.5))


class Sheet(Struct, frozen=True):
    titles: tuple[str, ...]  # per sample: its id
    ordered_by: str  # "" if by nothing
    values: tuple[str, ...]  # per sample, of what they are ordered by
    rows: tuple[Row, ...]

    @property
    def per_block(self) -> int:
        """Samples side by side: few large pictures of few rows, many small ones of many."""
        fitting = 6 if len(self.rows) <= 2 else 8 if len(self.rows) <= 6 else 12
        widest = min(row.aspect for row in self.rows)
        return max(1, min(len(self.titles), max(2, round(fitting * min(1.0, widest * 1.2)))))

    @property
    def side(self) -> float:
        """Width of a picture, inches."""
        return min(2.2, (WIDTH - _LEFT - _RIGHT) / self.per_block - _GAP)

    @property
    def num_blocks(self) -> int:
        return -(-len(self.titles) // self.per_block)

    @property
    def block_height(self) -> float:
        fields = len({row.field for row in self.rows})
        return _HEAD + sum(self.side * row.aspect + _GAP for row in self.rows) + 0.1 * (fields - 1)

    @property
    def height(self) -> float:
        return self.num_blocks * (self.block_height + _BETWEEN)


def shrink(picture: Array, limit: int = MAX_PIXELS) -> Array:
    """A picture (h, w, …) of at most `limit` pixels a side, by averaging blocks of pixels."""
    for axis in (0, 1):
        step = -(-picture.shape[axis] // limit)
        if step > 1:
            edges = np.arange(0, picture.shape[axis], step)
            sizes = np.diff(np.append(edges, picture.shape[axis]))
            total = np.add.reduceat(picture, edges, axis=axis, dtype=np.float64)
            picture = total / np.expand_dims(sizes, tuple(a for a in range(picture.ndim) if a != axis))
    return picture


def draw(sheet: Sheet, canvas: Canvas) -> None:
    groups: dict[tuple[str, str], list[Array]] = {}
    for row in sheet.rows:
        groups.setdefault((row.field, row.scale), []).append(row.pictures)
    chosen = {key: choose_colours(stacks) for key, stacks in groups.items()}
    colours = [None if row.is_coloured else chosen[row.field, row.scale] for row in sheet.rows]
    for block in range(sheet.num_blocks):
        top = block * (sheet.block_height + _BETWEEN)
        samples = range(block * sheet.per_block, min((block + 1) * sheet.per_block, len(sheet.titles)))
        _block(sheet, canvas, top, samples, colours)


def _block(sheet: Sheet, canvas: Canvas, top: float, samples: range, colours: list[Colours | None]) -> None:
    step = sheet.side + _GAP
    soft = {"fontsize": look.SMALL, "color": look.SOFT}
    for place, sample in enumerate(samples):
        middle = _LEFT + place * step + sheet.side / 2
        canvas.text(middle, top + 0.02, sheet.titles[sample], ha="center", fontsize=look.SMALL)
        canvas.text(middle, top + 0.16, sheet.values[sample], ha="center", **soft)
    for below, words in ((0.02, "sample"), (0.16, label(sheet.ordered_by, "", room=1.2))):
        canvas.text(_LEFT - 0.1, top + below, words, ha="right", **soft)
    at, field = top + _HEAD, ""
    for row, how in zip(sheet.rows, colours, strict=True):
        if field and field != row.field:
            at += 0.1
        height = sheet.side * row.aspect
        is_first, field = field != row.field, row.field
        _name(canvas, row, at, height, is_first=is_first)
        axes = canvas.axes(_LEFT, at, len(samples) * step - _GAP, height)
        image = _strip(axes, row.pictures[samples.start : samples.stop], how, _GAP / sheet.side, canvas)
        if how is not None:
            left, units = _LEFT + len(samples) * step + 0.05, row.units if is_first else ""
            _bar(canvas, left, at, height, image, how, units)
        at += height + _GAP


def _name(canvas: Canvas, row: Row, top: float, height: float, *, is_first: bool) -> None:
    right, middle = _LEFT - 0.1, top + height / 2
    if not row.channel:
        canvas.text(right, middle, label(row.field, "", room=right), ha="right", va="center")
        return
    if is_first:
        canvas.text(MARGIN, top + 0.02, label(row.field, "", room=right), weight="bold")
    channel = label(row.channel, "", room=right * look.NORMAL / look.SMALL)
    canvas.text(right, middle, channel, ha="right", va="center", fontsize=look.SMALL, color=look.SOFT)


def _strip(axes: Any, pictures: Array, how: Colours | None, gap: float, canvas: Canvas) -> Any:
    """Pictures side by side as one image, which is drawn much faster than one each; the gaps stay clear."""
    look.without_box(axes)
    axes.set_xlim(0, len(pictures) * (1 + gap) - gap)
    axes.set_ylim(0, 1)
    scale = -(-_LEAST_PIXELS // pictures.shape[2])
    pictures = pictures.repeat(scale, axis=1).repeat(scale, axis=2)
    num, height, width = pictures.shape[:3]
    clear = max(1, round(gap * width))
    strip = np.full((height, num * (width + clear) - clear, *pictures.shape[3:]), np.nan)
    for i, picture in enumerate(pictures):
        strip[:, i * (width + clear) : i * (width + clear) + width] = picture
    extent = (0, num * (1 + gap) - gap, 0, 1)
    options: dict[str, Any] = {"aspect": "auto", "extent": extent, "interpolation": canvas.interpolation}
    if how is None:
        shown = np.isfinite(strip[..., :1])
        return axes.imshow(np.concatenate([np.nan_to_num(strip), shown], axis=-1), origin="upper", **options)
    return axes.imshow(how.within(strip), cmap=how.name, norm=how.norm(), origin="lower", **options)


def _bar(
    canvas: Canvas, left: float, top: float, height: float, image: Any, how: Colours, units: str
) -> None:
    """The colour bar of a row."""
    inset = min(0.1, height * 0.08)
    axes = canvas.axes(left, top + inset, 0.08, height - 2 * inset)
    ticks = [how.lo, 0.0, how.hi] if how.name == SIGNED else [how.lo, how.hi]
    bar = canvas.figure.colorbar(image, cax=axes, ticks=ticks)
    bar.ax.set_yticklabels([number(value, 2) for value in ticks])
    bar.ax.tick_params(labelsize=look.SMALL, labelcolor=look.SOFT, length=0, pad=2)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    if height > 0.45:
        words = ["" if units == "1" else units, how.scale]
        middle = 0.5 if len(ticks) == 2 else 0.28  # beside the tick at 0
        canvas.text(left + 0.12, top + height * middle, "\n".join(w for w in words if w), va="center",
                    fontsize=look.SMALL - 1, color=look.SOFT)  # fmt: skip
