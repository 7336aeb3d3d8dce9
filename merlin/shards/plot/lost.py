"""Inputs of the samples that are not in a data set, from the workspace that it was made in."""

from __future__ import annotations

import numpy as np

from merlin.base.ranges import Ranges
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.segments import Array, offsets_of
from merlin.shards.plot.choice import even
from merlin.shards.plot.ticks import drawn
from merlin.shards.reading.planned import task_inputs

MAX_LOST = 400  # of each outcome; so many marks can still be distinguished


def lost_inputs(data: DataSet, labels: tuple[str, ...], parameters: tuple[str, ...]) -> dict[str, Array]:
    """Inputs and parameters of at most `MAX_LOST` samples, by outcome: (m, labels + parameters) float64.

    Empty if the data set was moved out of its workspace, or its sources do not run per sample.
    """
    found: dict[str, list[Array]] = {}
    for source in data.sources if data.per_sample else ():
        picked = {outcome: _some(getattr(source, outcome), MAX_LOST) for outcome in OUTCOMES[1:]}
        tasks = np.unique(np.concatenate(list(picked.values())))
        inputs = task_inputs(data, source, tasks)
        try:
            columns = [inputs[label].astype(np.float64) for label in labels]
            columns += [np.full(len(tasks), float(source.params[name])) for name in parameters]
        except (KeyError, TypeError, ValueError):
            continue  # no tasks, no samples file, or not the one that it was; the picture does without
        for outcome, some in picked.items():
            found.setdefault(outcome, []).append(
                drawn(np.column_stack(columns))[np.searchsorted(tasks, some)]
            )
    lost = {outcome: np.concatenate(parts) for outcome, parts in found.items()}
    return {outcome: rows[even(len(rows), MAX_LOST)] for outcome, rows in lost.items() if len(rows)}


def _some(ranges: Ranges, num: int) -> Array:
    """At most `num` of the tasks in the ranges, spread evenly."""
    sizes = [b - a for a, b in ranges]
    wanted = even(sum(sizes), num)
    starts = offsets_of(sizes)
    which = np.searchsorted(starts, wanted, side="right") - 1
    firsts = np.array([a for a, _ in ranges], dtype=np.int64)
    return np.asarray(firsts[which] + wanted - starts[which])
