"""Outcomes over the tasks of a step: the cells of a heat map, from run-length maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.views.study_ledgers import Stretch
from merlin.views.study_page import StudyView

NUM_CELLS = 600


class HeatCell(NamedTuple):
    """The tasks [lo, hi) of a step by outcome; in JSON an array."""

    lo: int
    hi: int
    ok: int
    failed: int
    skipped: int
    missing: int


class Heat(Struct, frozen=True, kw_only=True):
    """All tasks of a step, numbered over its instances one after another, and over extensions."""

    step: str
    num_tasks: int
    first_sample: int | None  # task p is of sample first_sample + p; None if there is no such rule
    cells: tuple[HeatCell, ...]  # they cover [0, num_tasks) exactly, and differ in length by one at most


def heat(study: StudyView, step: str, num_cells: int = NUM_CELLS) -> Heat:
    """The outcomes of a step in `num_cells` cells at most.

    Raises WorkspaceError if there is no such step, or the study cannot be read.
    """
    with study.ledgers() as ledgers:
        stretches, runs = ledgers.stretches(step), ledgers.runs_of_step(step)
        bounds = cell_bounds(runs.num_tasks, num_cells)
        counts = runs.counts_between(bounds)
        return Heat(
            step=step,
            num_tasks=runs.num_tasks,
            first_sample=_first_sample(stretches),
            cells=tuple(
                HeatCell(lo, hi, *nums)
                for lo, hi, nums in zip(
                    bounds[:-1].tolist(), bounds[1:].tolist(), counts.tolist(), strict=True
                )
            ),
        )


def cell_bounds(num_tasks: int, num_cells: int) -> NDArray[np.int64]:
    """The bounds between cells that together are [0, num_tasks), (cells + 1,); of few tasks each has a cell."""
    num = min(num_tasks, max(1, num_cells))
    return np.arange(num + 1, dtype=np.int64) * num_tasks // max(1, num)


def _first_sample(stretches: Sequence[Stretch]) -> int | None:
    """The sample of the first task, if the others follow one by one."""
    if not all(stretch.instance.per_sample for stretch in stretches):
        return None
    first = stretches[0].member.workspace.first_sample
    follows = all(s.member.workspace.first_sample == first + s.first for s in stretches)
    return first if follows else None
