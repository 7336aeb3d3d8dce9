"""True images, predicted ones and their difference, channel by channel below each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from merlin.shards.plot.images import Row, Sheet, shrink
from merlin.shards.plot.ticks import number
from merlin.train.results.evaluate import ImagesShown

Array = np.ndarray[Any, Any]

MAX_CHANNELS = 6
_LIMIT = 128  # pixels of a side


def sheet_of(shown: ImagesShown, verb: str) -> Sheet:
    """A contact sheet with three rows for each channel."""
    rows: list[Row] = []
    quantity = shown.quantity
    for channel in range(min(MAX_CHANNELS, shown.true.shape[1])):
        name = quantity.channel(channel) or quantity.name
        true, predicted = shown.true[:, channel], shown.predicted[:, channel]
        low, high = true.min(), true.max()  # colours are chosen by the true ones alone
        for words, scale, stack in (
            ("true", "values", true),
            (verb, "values", np.clip(predicted, low, high)),
            ("difference", "difference", np.clip(predicted - true, low - high, high - low)),
        ):
            rows.append(Row(name, words, scale, quantity.units, _small(stack)))
    errors = tuple(number(error, 2) for error in shown.errors)
    return Sheet(tuple(f"#{i}" for i in shown.sample_ids), "relative L2", errors, tuple(rows))


def _small(stack: Array) -> Array:
    return np.stack([shrink(picture, _LIMIT) for picture in stack]).astype(np.float32)
