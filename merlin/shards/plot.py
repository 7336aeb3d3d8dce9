"""A contact sheet: some samples' images with their scalars, on one page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.errors import MissingExtraError, ShardError
from merlin.shards.atomic import replacing

if TYPE_CHECKING:
    from merlin.shards.manifest_file import FieldInfo
    from merlin.shards.reader import Ensemble

_BACKGROUND = "#101216"
_TEXT = "#e6e6e6"
_FAINT = "#8b93a1"
_COLOUR_MAPS = ("inferno", "magma", "hot", "bone")  # all begin at black


def contact_sheet(
    ensemble: Ensemble, out_path: str | os.PathLike[str], *, image: str | None = None, num: int = 12
) -> Path:
    """Write a PNG of `num` samples spread over the range of one scalar; returns its path.

    Every channel of `image` (default: the first image field) is a column with a colour scale of its own,
    shared by all samples (square root of the intensity, up to the 99.9th percentile); below, histograms of
    the scalars.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ShardError: the data set is empty or has no image.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a contact sheet") from None
    info = _image_field(ensemble, image)
    scalars = [
        f for f in ensemble.fields.values() if f.kind == "scalar" and f.dtype != "text" and not f.shape
    ]
    leading = max(scalars, key=_relative_spread, default=None)
    chosen = _spread(ensemble, leading, num)
    pictures = ensemble[info.name][chosen].astype(np.float64)
    pictures = pictures.reshape(*pictures.shape[:3], -1)
    channels = pictures.shape[-1]
    per_line = max(1, 12 // channels)
    lines = -(-len(chosen) // per_line)
    plots = -(-min(len(scalars), 15) // 5)
    figure = Figure(figsize=(15, 0.9 + 15 / (per_line * channels) * 1.22 * lines + 1.9 * plots), dpi=120)
    FigureCanvasAgg(figure)
    figure.set_facecolor(_BACKGROUND)
    upper, lower = 15 / (per_line * channels) * 1.22 * lines, 1.9 * max(plots, 0.01)
    top, bottom = np.asarray(figure.subfigures(2, 1, height_ratios=[upper + 0.9, lower])).flat
    for part in (top, bottom):
        part.set_facecolor(_BACKGROUND)
    _draw_images(top, ensemble, info, pictures, chosen, leading, per_line)
    _draw_histograms(bottom, ensemble, scalars[:15], chosen)
    path = Path(out_path)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", facecolor=_BACKGROUND)
    return path


def _image_field(ensemble: Ensemble, name: str | None) -> FieldInfo:
    images = [f for f in ensemble.fields.values() if f.kind == "image" and len(f.shape) in (2, 3)]
    if name is not None:
        images = [f for f in images if f.name == name]
    if not images:
        raise ShardError(f"{ensemble.path} has no image field{f' {name!r}' if name else ''} to draw")
    return images[0]


def _relative_spread(scalar: FieldInfo) -> float:
    """How much a scalar varies; the one that does so most tells samples apart best."""
    statistics = scalar.statistics
    if statistics is None or not statistics.count[0] or not statistics.mean[0]:
        return 0.0
    return statistics.std[0] / abs(statistics.mean[0])


def _spread(ensemble: Ensemble, scalar: FieldInfo | None, num: int) -> np.ndarray[Any, Any]:
    """Indices at even quantiles of the scalar, so that the sheet shows its range."""
    if not len(ensemble):
        raise ShardError(f"{ensemble.path} holds no samples to draw")
    num = min(num, len(ensemble))
    order = np.argsort(ensemble[scalar.name][:], kind="stable") if scalar else np.arange(len(ensemble))
    return np.asarray(order[np.linspace(0, len(order) - 1, num).round().astype(int)])


def _draw_images(
    part: Any,
    ensemble: Ensemble,
    info: FieldInfo,
    pictures: np.ndarray[Any, Any],
    chosen: np.ndarray[Any, Any],
    leading: FieldInfo | None,
    per_line: int,
) -> None:
    channels = pictures.shape[-1]
    pictures = np.sqrt(np.clip(np.nan_to_num(pictures), 0, None))
    limits = [float(np.percentile(pictures[..., c], 99.9)) or 1.0 for c in range(channels)]
    axes = part.subplots(
        -(-len(chosen) // per_line),
        per_line * channels,
        squeeze=False,
        gridspec_kw={
            "wspace": 0.04,
            "hspace": 0.28,
            "left": 0.01,
            "right": 0.99,
            "bottom": 0.02,
            "top": 0.88,
        },
    )
    for axis in axes.flat:
        axis.set_axis_off()
    titles = _titles(ensemble, chosen, leading)
    for i, index in enumerate(chosen):
        line, place = divmod(i, per_line)
        for channel in range(channels):
            axis = axes[line, place * channels + channel]
            colours = _COLOUR_MAPS[channel % len(_COLOUR_MAPS)]
            axis.imshow(
                pictures[i, :, :, channel], cmap=colours, vmin=0, vmax=limits[channel], origin="lower"
            )
            if channel == 0:
                title = f"sample {ensemble.sample_id[index]}  {titles[i]}"
                axis.set_title(title, color=_TEXT, fontsize=8, loc="left", pad=3)
    name, size = ensemble.manifest.study["name"], len(ensemble)
    each = f"{channels} channels each, " if channels > 1 else ""
    part.suptitle(
        f"{name}: {info.name}, {len(chosen)} of {size:,} samples ({each}square root of intensity)",
        color=_TEXT,
        fontsize=12,
        x=0.01,
        ha="left",
    )


def _titles(ensemble: Ensemble, chosen: np.ndarray[Any, Any], leading: FieldInfo | None) -> list[str]:
    if leading is None:
        return [""] * len(chosen)
    values = ensemble[leading.name][chosen]
    units = "" if leading.units == "1" else leading.units
    return [f"{leading.name} {value:.3g} {units}".strip() for value in values]


def _draw_histograms(
    part: Any, ensemble: Ensemble, scalars: list[FieldInfo], chosen: np.ndarray[Any, Any]
) -> None:
    if not scalars:
        return
    columns = min(5, len(scalars))
    axes = part.subplots(
        -(-len(scalars) // columns),
        columns,
        squeeze=False,
        gridspec_kw={"hspace": 0.9, "wspace": 0.12, "left": 0.02, "right": 0.98, "bottom": 0.1, "top": 0.9},
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, info in zip(axes.flat, scalars, strict=False):
        values = np.asarray(ensemble[info.name][:], dtype=np.float64)
        values = values[np.isfinite(values)]
        axis.set_axis_on()
        axis.set_facecolor(_BACKGROUND)
        axis.hist(values, bins=48, color="#f28e2b", alpha=0.9)
        for value in np.asarray(ensemble[info.name][chosen], dtype=np.float64):
            axis.axvline(value, color=_FAINT, linewidth=0.5, alpha=0.6)
        axis.set_title(
            f"{info.name} [{info.units}]" if info.units not in ("", "1") else info.name,
            color=_TEXT,
            fontsize=8,
            pad=3,
        )
        axis.set_yticks([])
        axis.tick_params(colors=_FAINT, labelsize=6)
        axis.xaxis.get_offset_text().set(color=_FAINT, fontsize=6)
        for side in ("top", "left", "right"):
            axis.spines[side].set_visible(False)
        axis.spines["bottom"].set_color(_FAINT)
