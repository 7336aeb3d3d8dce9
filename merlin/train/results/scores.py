"""Errors of predictions, added up batch by batch in float64: R², RMSE, relative L2, SSIM.

For predictions p and true values t of a scalar over all samples:

    R² = 1 - Σ(p - t)² / Σ(t - mean t)²        RMSE = √(Σ(p - t)² / n)        relative L2 = √(Σ(p - t)² / Σt²)

A channel of an image field has the same relative L2, with sums over all its pixels, and beside it ‖p - t‖ / ‖t‖ of each
sample, with its mean and quantiles: it says how well faint pictures do. R² compares with the mean image: its
denominator is the sum over all pixels of Σ(t - mean t)² of that pixel.

Of classes the accuracy, and beside it that of always saying the most frequent class; the cross-entropy, which is the
mean of -log of the probability that the true class was given; and of each class, how many of its samples were found
(recall), and how many that were taken for it are of it (precision).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from merlin.shards.format.segments import Array

QUANTILES = {"median": 0.5, "p90": 0.9}


class Spread(Struct):
    """Count, mean and sum of squared deviations of arrays (n, *shape), element by element.

    Batches are joined as in Chan, Golub and LeVeque (1983), so that large values cancel nothing.
    """

    num: int = 0
    mean: Any = 0.0
    squares: Any = 0.0

    def add(self, values: Array) -> None:
        num = len(values)
        if not num:
            return
        mean = values.mean(axis=0)
        squares = ((values - mean) ** 2).sum(axis=0)
        gap = mean - self.mean
        total = self.num + num
        self.squares = self.squares + squares + gap**2 * (self.num * num / total)
        self.mean = self.mean + gap * (num / total)
        self.num = total


class ScalarScores(Struct):
    """The scores of one scalar."""

    spread: Spread = msgspec.field(default_factory=Spread)
    squared: float = 0.0  # Σ(p - t)²
    absolute: float = 0.0
    signed: float = 0.0
    size: float = 0.0  # Σt²
    worst: float = 0.0

    def add(self, predicted: Array, true: Array) -> None:
        """Values (n,) float64."""
        error = predicted - true
        self.spread.add(true)
        self.squared += float(error @ error)
        self.absolute += float(np.abs(error).sum())
        self.signed += float(error.sum())
        self.size += float(true @ true)
        self.worst = max(self.worst, float(np.abs(error).max(initial=0.0)))

    def result(self) -> dict[str, float]:
        num = max(1, self.spread.num)
        return {
            "r2": 1 - _ratio(self.squared, float(self.spread.squares)),
            "rmse": math.sqrt(self.squared / num),
            "mae": self.absolute / num,
            "bias": self.signed / num,
            "relative_l2": math.sqrt(_ratio(self.squared, self.size)),
            "max_error": self.worst,
            "std": math.sqrt(float(self.spread.squares) / num),
        }


@dataclass
class ClassScores:
    """The scores of one field of classes; `confusion` (K, K) counts samples by true and by predicted class."""

    classes: tuple[int, ...]
    confusion: Array = field(init=False)
    surprise: float = 0.0  # Σ -log of the true class's probability

    def __post_init__(self) -> None:
        self.confusion = np.zeros((len(self.classes), len(self.classes)), np.int64)

    def add(self, predicted: Array, true: Array, probabilities: Array) -> None:
        """Classes (n,) by their values, and what each was given (n, K)."""
        rows, columns = (np.searchsorted(self.classes, values) for values in (true, predicted))
        np.add.at(self.confusion, (rows, columns), 1)
        given = probabilities[np.arange(len(rows)), rows].astype(np.float64)
        self.surprise += float(-np.log(np.maximum(given, np.finfo(np.float32).tiny)).sum())

    def result(self) -> dict[str, Any]:
        num = max(1, int(self.confusion.sum()))
        counts = (np.diag(self.confusion), self.confusion.sum(axis=1), self.confusion.sum(axis=0))
        right, of_class, predicted = (count.tolist() for count in counts)
        return {
            "accuracy": sum(right) / num,
            "most_frequent": max(of_class, default=0) / num,
            "cross_entropy": self.surprise / num,
            "classes": [
                {
                    "class": value,
                    "num_samples": n,
                    "recall": _ratio(found, n),
                    "precision": _ratio(found, taken),
                }
                for value, found, n, taken in zip(self.classes, right, of_class, predicted, strict=True)
            ],
            "confusion": self.confusion.tolist(),
        }


class ImageScores(Struct):
    """The scores of one image field; arrays by channel."""

    channels: int
    spread: Spread = msgspec.field(default_factory=Spread)
    squared: Any = 0.0
    size: Any = 0.0  # Σt²
    # (n, C) float32 of each batch: 4 bytes a sample and channel
    relative: list[Array] = msgspec.field(default_factory=list)
    similar: Any = 0.0

    def add(self, predicted: Array, true: Array, similarity: Array) -> None:
        """Images (n, C, H, W) float64, and their similarity (n, C)."""
        squares = ((predicted - true) ** 2).sum(axis=(2, 3))
        self.spread.add(true)
        self.squared = self.squared + squares.sum(axis=0)
        sizes = (true**2).sum(axis=(2, 3))
        self.size = self.size + sizes.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.sqrt(squares / sizes)
        self.relative.append(relative.astype(np.float32))
        self.similar = self.similar + similarity.sum(axis=0)

    def per_sample(self) -> Array:
        """(n,) relative L2, the mean over channels; those of a channel that is all zero are left out."""
        relative = np.concatenate(self.relative)
        known = np.isfinite(relative)
        total = np.where(known, relative, 0).sum(axis=1, dtype=np.float64)
        return np.asarray(total / np.maximum(1, known.sum(axis=1)))

    def result(self, names: list[str]) -> dict[str, Any]:
        """The scores of the field, which are means over its channels, and of each channel."""
        relative = np.concatenate(self.relative).astype(np.float64)
        variance = np.asarray(self.spread.squares).sum(axis=(1, 2))
        channels = [
            {
                "name": name,
                "relative_l2": math.sqrt(_ratio(float(self.squared[i]), float(self.size[i]))),
                "per_sample": _summary(relative[:, i]),
                "ssim": float(self.similar[i]) / max(1, self.spread.num),
                "r2": 1 - _ratio(float(self.squared[i]), float(variance[i])),
            }
            for i, name in enumerate(names)
        ]
        return {
            "relative_l2": _mean([c["relative_l2"] for c in channels]),
            "per_sample": _summary(self.per_sample()),
            "ssim": _mean([c["ssim"] for c in channels]),
            "r2": _mean([c["r2"] for c in channels]),
            "channels": channels,
        }


def _summary(values: Array) -> dict[str, float]:
    known = values[np.isfinite(values)]
    if not known.size:
        return dict.fromkeys(("mean", *QUANTILES, "max"), math.nan)
    quantiles = {name: float(np.quantile(known, at)) for name, at in QUANTILES.items()}
    return {"mean": float(known.mean()), **quantiles, "max": float(known.max())}


def _mean(values: list[Any]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _ratio(part: float, whole: float) -> float:
    """NaN where there is nothing to compare with, as for R² where the true values do not vary."""
    return part / whole if whole > 0 else math.nan
