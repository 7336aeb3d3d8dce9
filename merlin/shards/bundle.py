"""Bundles: what one chunk contributed to one shard, kept until the shard is written.

``<aggregate id>/bundles/<shard>/<lo>-<hi>-<attempt>-<worker>.h5`` holds `row` (global row numbers, ascending)
and `fields/<name>` (contiguous). Only rows whose outputs were good are in it. A row may be in several
bundles: the highest attempt counts, then the newest file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from merlin.shards.atomic import replacing
from merlin.shards.check import block_rows

FORMAT = "merlin-bundle"
VERSION = 1
DIRECTORY = "bundles"

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-.*\.h5$")


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one field for a range of tasks; `dtype` is what the file will hold (object: text)."""

    values: np.ndarray[Any, Any]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class BundleFile:
    path: Path
    lo: int
    hi: int
    attempt: int


def bundle_directory(workspace: Path, aggregate_id: str, shard: int) -> Path:
    return workspace / aggregate_id / DIRECTORY / str(shard)


def free_path(directory: Path, lo: int, hi: int, attempt: int, worker: str) -> Path:
    """A name no file has yet: a worker may collect parts of one chunk several times (deferred tasks)."""
    stem = f"{lo}-{hi}-{attempt}-{re.sub(r'[^A-Za-z0-9_.@-]', '_', worker)}"
    path = directory / f"{stem}.h5"
    number = 1
    while path.exists():
        number += 1
        path = directory / f"{stem}.{number}.h5"
    return path


def write_bundle(
    path: Path,
    rows: np.ndarray[Any, Any],
    keep: np.ndarray[Any, Any],
    columns: Mapping[str, Column],
    attributes: Mapping[str, str | int],
) -> None:
    """Write the rows of `columns` where `keep` is true; blocks are copied only if some are left out."""
    import h5py

    num_rows = int(np.count_nonzero(keep))
    with replacing(path, durable_name=False) as temporary, h5py.File(temporary, "w", libver="latest") as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, **attributes})
        file.create_dataset("row", data=rows[keep].astype("<i8"))
        group = file.create_group("fields")
        for name, column in columns.items():
            dtype: Any = h5py.string_dtype() if column.dtype.kind == "O" else column.dtype
            dataset = group.create_dataset(name, shape=(num_rows, *column.values.shape[1:]), dtype=dtype)
            if num_rows == len(rows):
                dataset[...] = column.values
            else:
                _write_kept(dataset, column.values, keep)


def _write_kept(dataset: Any, values: np.ndarray[Any, Any], keep: np.ndarray[Any, Any]) -> None:
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    step, at = 8 * block_rows(row_bytes), 0
    for lo in range(0, len(values), step):
        block = values[lo : lo + step][keep[lo : lo + step]]
        if len(block):
            dataset[at : at + len(block)] = block
            at += len(block)


def list_bundles(directory: Path) -> list[BundleFile]:
    """The finished bundles of a shard, weakest claim first (lower attempt, then older)."""
    found: list[tuple[int, int, str, BundleFile]] = []
    if not directory.is_dir():
        return []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            lo, hi, attempt = map(int, match.groups())
            found.append((attempt, path.stat().st_mtime_ns, path.name, BundleFile(path, lo, hi, attempt)))
    return [item[-1] for item in sorted(found, key=lambda item: item[:3])]
