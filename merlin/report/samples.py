"""The samples of a study: of each column its range and how its values are spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.errors import SamplesError, WorkspaceError
from merlin.plan.plan import Scalar
from merlin.workspace.directory import Workspace
from merlin.workspace.samples_table import BLOCK_ROWS, SamplesTable

NUM_BARS = 24
_MOST_BLOCKS = 16  # so many blocks of each study are read, evenly spaced ones of more
_MOST_WORDS = 5  # of a text column that are shown

Array = NDArray[Any]


class Column(Struct, frozen=True, kw_only=True):
    """A column of the samples; numbers are NaN and `bars` empty for text."""

    name: str
    low: float
    mean: float
    high: float
    bars: tuple[int, ...]  # values in each of `NUM_BARS` classes between low and high
    words: tuple[str, ...] = ()  # some of the values of a text column, the most frequent first
    num_words: int = 0


class SamplesSummary(Struct, frozen=True, kw_only=True):
    """All samples of a study and its extensions."""

    num: int
    num_read: int  # that the columns were summed over
    columns: tuple[Column, ...]
    problem: str = ""  # why the columns are not known


class Parameter(Struct, frozen=True, kw_only=True):
    """A global parameter, with its values in the order of the plan."""

    name: str
    values: tuple[Scalar, ...]
    steps: tuple[str, ...]  # that use it


def summarise_samples(studies: Sequence[Workspace]) -> SamplesSummary | None:
    """None for a study without samples."""
    num = sum(study.plan.num_samples for study in studies)
    if studies[0].plan.samples is None:
        return None
    try:
        parts = [block for study in studies for block in _blocks(study.samples())]
    except (SamplesError, WorkspaceError, OSError) as error:
        return SamplesSummary(num=num, num_read=0, columns=(), problem=str(error))
    labels = studies[0].plan.samples.labels
    columns = tuple(_column(label, np.concatenate([part[label] for part in parts])) for label in labels)
    num_read = sum(len(part[labels[0]]) for part in parts)
    return SamplesSummary(num=num, num_read=num_read, columns=columns if num_read else ())


def _blocks(table: SamplesTable) -> Iterator[dict[str, Array]]:
    starts = range(0, table.num, BLOCK_ROWS)
    step = -(-len(starts) // _MOST_BLOCKS) or 1
    for lo in starts[::step]:
        yield table.rows(lo, min(lo + BLOCK_ROWS, table.num))


def _column(name: str, values: Array) -> Column:
    if values.dtype.kind in "biuf":
        return _numbers(name, values.astype(np.float64))
    words, counts = np.unique(values.astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_WORDS]
    nan = float("nan")
    return Column(
        name=name, low=nan, mean=nan, high=nan, bars=(),
        words=tuple(str(words[i]) for i in order), num_words=len(words),
    )  # fmt: skip


def _numbers(name: str, values: Array) -> Column:
    known = values[np.isfinite(values)]
    if not len(known):
        nan = float("nan")
        return Column(name=name, low=nan, mean=nan, high=nan, bars=())
    low, high = float(known.min()), float(known.max())
    bars: tuple[int, ...] = ()
    if low < high:
        with suppress(ValueError):  # a range beyond what a float can hold
            bars = tuple(map(int, np.histogram(known, NUM_BARS, (low, high))[0]))
    return Column(name=name, low=low, mean=_rounded(float(known.mean()), high - low), high=high, bars=bars)


def _rounded(mean: float, span: float) -> float:
    """The mean, rounded as the span of the values allows; rounding errors of the sum become 0."""
    if not span or not np.isfinite(span):
        return mean
    return float(round(mean, 4 - int(np.floor(np.log10(span)))))


def parameters(study: Workspace) -> tuple[Parameter, ...]:
    """The global parameters that steps use."""
    values: dict[str, dict[Scalar, None]] = {}
    steps: dict[str, dict[str, None]] = {}
    for instance in study.plan.instances:
        for name, value in instance.params.items():
            values.setdefault(name, {})[value] = None
            steps.setdefault(name, {})[instance.step] = None
    return tuple(Parameter(name=n, values=tuple(found), steps=tuple(steps[n])) for n, found in values.items())
