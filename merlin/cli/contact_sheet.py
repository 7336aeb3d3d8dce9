"""A picture of a data set: images and series of samples spread over it, and a histogram of every scalar."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from merlin.shards.manifest_file import FieldInfo
    from merlin.shards.reader import Ensemble

WIDTH_IN = 14.0
MAX_HISTOGRAMS = 24
MAX_CHANNELS = 4
HISTOGRAM_COLUMNS = 6
SAMPLES_OF_A_HISTOGRAM = 20_000


def draw_contact_sheet(ensemble: Ensemble, out: Path, *, num: int = 12) -> None:
    """Write the picture to `out`; its suffix names the format.

    Raises:
        UsageError: the data set is empty, or holds nothing that can be drawn.
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    if len(ensemble) == 0:
        raise UsageError(f"{ensemble.path} holds no sample; there is nothing to plot")
    rows = _spread(len(ensemble), num)
    fields = [f for f in ensemble.fields.values() if f.dtype != "text"]
    images = [f for f in fields if _image_axes(f)]
    series = [f for f in fields if len(f.shape) == 1]
    scalars = [f.name for f in fields if not f.shape][:MAX_HISTOGRAMS]
    bands = [("image", f, channel) for f in images for channel in range(_num_channels(f))]
    heights = [WIDTH_IN / max(len(rows), 6) + 0.25] * len(bands) + [2.2] * len(series)
    num_rows = -(-len(scalars) // HISTOGRAM_COLUMNS)
    heights += [1.9 * num_rows] if scalars else []
    if not heights:
        raise UsageError(f"{ensemble.path} has no scalar, series or image to plot")
    figure = matplotlib.figure.Figure(figsize=(WIDTH_IN, sum(heights) + 0.6), layout="constrained")
    figure.suptitle(f"{ensemble.manifest.study.get('name', ensemble.path.name)}: {len(ensemble):,} samples")
    parts = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    for part, (_, field, channel) in zip(parts, bands, strict=False):
        _draw_images(part, ensemble, field, channel, rows)
    for part, field in zip(parts[len(bands) :], series, strict=False):
        _draw_series(part, ensemble, field, rows)
    if scalars:
        _draw_histograms(parts[-1], ensemble, scalars)
    _save(figure, out)


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "merlin shards plot") from error
    return matplotlib


def _save(figure: Any, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.stem}.{os.getpid()}{out.suffix}")
    try:
        figure.savefig(part, dpi=100)
    except ValueError as error:
        raise UsageError(f"cannot write {out}: {error}") from error
    part.replace(out)


def _spread(size: int, num: int) -> list[int]:
    """At most `num` positions, evenly over the data set."""
    num = min(num, size)
    return [k * size // num for k in range(num)]


def _image_axes(field: FieldInfo) -> bool:
    return field.kind == "image" and len(field.shape) in (2, 3)


def _num_channels(field: FieldInfo) -> int:
    return min(field.shape[2], MAX_CHANNELS) if len(field.shape) == 3 else 1


def _draw_images(part: Any, ensemble: Ensemble, field: FieldInfo, channel: int, rows: list[int]) -> None:
    """One row of pictures with a common scale."""
    import numpy as np

    pictures = [np.asarray(ensemble[field.name][i]) for i in rows]
    if len(field.shape) == 3:
        pictures = [picture[:, :, channel] for picture in pictures]
    top = max(float(picture.max()) for picture in pictures)
    low = min(float(picture.min()) for picture in pictures)
    axes = part.subplots(1, len(rows), squeeze=False)[0]
    for axis, picture, row in zip(axes, pictures, rows, strict=True):
        axis.imshow(picture, cmap="inferno", vmin=min(low, 0.0), vmax=top or 1.0, interpolation="nearest")
        axis.set_axis_off()
        axis.set_title(f"sample {ensemble.sample_id[row]}", fontsize=6, pad=2)
    name = f"{field.name}[…, {channel}]" if len(field.shape) == 3 else field.name
    part.suptitle(name, fontsize=8, x=0.005, ha="left")


def _draw_series(part: Any, ensemble: Ensemble, field: FieldInfo, rows: list[int]) -> None:
    axis = part.subplots()
    for i in rows:
        axis.plot(ensemble[field.name][i], linewidth=0.8)
    axis.set_title(_with_units(field), fontsize=8, loc="left")
    axis.tick_params(labelsize=6)
    axis.margins(x=0)


def _draw_histograms(part: Any, ensemble: Ensemble, names: list[str]) -> None:
    step = math.ceil(len(ensemble) / SAMPLES_OF_A_HISTOGRAM)
    axes = part.subplots(-(-len(names) // HISTOGRAM_COLUMNS), HISTOGRAM_COLUMNS, squeeze=False).ravel()
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes, names, strict=False):
        values = ensemble[name][::step]
        axis.hist(values[abs(values) < math.inf], bins=40, color="tab:blue")
        axis.set_title(_with_units(ensemble.fields[name]), fontsize=8)
        axis.tick_params(labelsize=6)
        axis.set_yticks([])


def _with_units(field: FieldInfo) -> str:
    return f"{field.name} [{field.units}]" if field.units and field.units != "1" else field.name
