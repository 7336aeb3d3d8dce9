"""More samples for a study: which rows of a table are new, and a file of these alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.files import replacing
from merlin.workspace.array_samples import NUMBERS
from merlin.workspace.samples import write_text_rows
from merlin.workspace.samples_table import SamplesTable, row_blocks
from merlin.workspace.text_samples import DIALECTS


def kinds(table: SamplesTable) -> dict[str, str]:
    """Label -> "numbers" or "text"."""
    first = table.rows(0, min(1, table.num))
    return {label: "numbers" if column.dtype.kind in NUMBERS else "text" for label, column in first.items()}


def first_difference(a: SamplesTable, b: SamplesTable, num: int, *, b_from: int = 0) -> int | None:
    """The first of rows [0, num) of `a` that is not row b_from + i of `b`, None if all are equal."""
    return next((lo for lo, _ in differing_rows(a, b, num, b_from=b_from)), None)


def differing_rows(
    a: SamplesTable, b: SamplesTable, num: int, *, b_from: int = 0
) -> Iterator[tuple[int, int]]:
    """The ranges of rows [0, num) of `a` that are not rows b_from + i of `b`, in order; neighbours may touch."""
    for lo, hi in a.blocks(num):
        ours, theirs = a.rows(lo, hi), b.rows(b_from + lo, b_from + hi)
        differs = np.zeros(hi - lo, dtype=bool)
        for label in a.labels:
            x, y = ours[label], theirs[label]
            same_kind = (x.dtype.kind in NUMBERS) == (y.dtype.kind in NUMBERS)
            differs |= (x != y) if same_kind else np.ones(hi - lo, dtype=bool)
        edges = np.flatnonzero(np.diff(differs, prepend=False, append=False))
        yield from ((lo + first, lo + end) for first, end in edges.reshape(-1, 2).tolist())


def write_rows(path: Path, table: SamplesTable, lo: int) -> None:
    """Write rows [lo, n) of a table atomically: .csv and .tab have its text, anything else is .npy."""
    dialect = DIALECTS.get(path.suffix.lower())
    with replacing(path) as temporary:
        if dialect is None:
            _write_npy(temporary, table, lo)
            return
        with open(temporary, "wb") as file:
            blocks = (table.text_rows(a, b) for a, b in row_blocks(lo, table.num))
            write_text_rows(file, table.labels, blocks, dialect)


def _write_npy(path: Path, table: SamplesTable, lo: int) -> None:
    """One column type: (n, d); several: a structured array, so that every value keeps its type."""
    types = _types(table, lo)
    uniform = set(types.values())
    one = next(iter(uniform)) if len(uniform) == 1 else None
    dtype = np.dtype(list(types.items())) if one is None else one
    shape: tuple[int, ...] = (table.num - lo,) if one is None else (table.num - lo, len(types))
    out: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:  # a full disk is an error now; later it would end the process
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    for at, end in row_blocks(lo, table.num):
        for j, (label, column) in enumerate(table.rows(at, end).items()):
            if one is None:
                out[label][at - lo : end - lo] = column
            else:
                out[at - lo : end - lo, j] = column
    out.flush()


def _types(table: SamplesTable, lo: int) -> dict[str, np.dtype[Any]]:
    """The dtype that holds every value of each column."""
    found: dict[str, np.dtype[Any]] = {}
    for at, end in row_blocks(lo, table.num):
        for label, column in table.rows(at, end).items():
            found[label] = np.promote_types(found.get(label, column.dtype), column.dtype)
    return found
