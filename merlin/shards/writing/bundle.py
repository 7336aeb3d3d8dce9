"""Bundles: what one chunk contributed to one shard, kept until the shard is written.

``<aggregate id>/bundles/<shard>/<lo>-<hi>-<session>-<attempt>-<worker>.h5`` holds `row` (global row numbers,
ascending), the fields as in a shard (contiguous), and for each filter the rows that it rejected. Only rows whose
outputs were good are in it. A row may be in several bundles: the latest session counts, in it the highest attempt,
then the newest file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from msgspec import Struct

from merlin.base.files import replacing
from merlin.base.records import FileFormat
from merlin.ledger.session import session_start
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.segments import Array, Ragged, Values
from merlin.shards.writing.check import rows_in_cache

FORMAT = FileFormat("merlin-bundle", 1)
DIRECTORY = "bundles"

# microseconds since 1970; names by earlier versions have no session, and a name with one counts more
_NAME = re.compile(r"(\d+)-(\d+)-(?:(\d{12,})-)?(\d+)-.*\.h5$")


class Origin(Struct, frozen=True):
    """Which attempt made some rows, in which session and by which worker."""

    attempt: int
    worker: str
    session: str = ""  # of the ledger; "" is weaker than any

    @property
    def attributes(self) -> dict[str, str | int]:
        """What a bundle's attributes say of it."""
        return {"attempt": self.attempt, "worker": self.worker}


GATHERED = Origin(0, "gather")  # no worker: collected from files after the run


class BundleFile(Struct, frozen=True):
    path: Path
    lo: int
    hi: int


class Contribution(Struct, frozen=True):
    """Rows of one shard."""

    rows: Array  # (n,) ascending
    keep: Array  # (n,) bool: those to be stored
    columns: Mapping[str, Values]  # of n rows, by path ("fields/energy")
    filtered: Mapping[str, Array]  # rows that a filter rejected, by its expression


def free_path(directory: Path, lo: int, hi: int, origin: Origin) -> Path:
    """A name no file has yet: a worker may collect parts of one chunk several times (deferred tasks)."""
    session = int(1e6 * session_start(origin.session, 0.0))  # microseconds
    worker = re.sub(r"[^A-Za-z0-9_.@-]", "_", origin.worker)
    stem = "-".join([str(lo), str(hi), *([str(session)] if session else []), str(origin.attempt), worker])
    path = directory / f"{stem}.h5"
    number = 1
    while path.exists():
        number += 1
        path = directory / f"{stem}.{number}.h5"
    return path


def write_bundle(
    path: Path, content: Contribution, attributes: Mapping[str, str | int], *, is_durable: bool = True
) -> None:
    """Write the rows to be stored; columns are copied only if some rows are left out.

    One that is not durable need not survive a crash of the machine.
    """
    begun = replacing(path, durable=is_durable, durable_name=False)
    with begun as temporary, NewFile(temporary, libver="latest") as new:
        file = new.file
        file.attrs.update({**FORMAT.head(), **attributes})
        file.create_dataset("row", data=content.rows[content.keep].astype("<i8"))
        file.create_group("fields")
        for name, column in content.columns.items():
            if isinstance(column, Ragged):
                kept = column.select(content.keep)
                file.create_dataset(f"{name}/values", data=kept.values)
                file.create_dataset(f"{name}/offsets", data=kept.offsets.astype("<i8"))
            else:
                _write_dense(file, name, column, content.keep)
            new.check()
        for number, (expression, rows) in enumerate(content.filtered.items()):
            dataset = file.create_dataset(f"filtered/{number}", data=rows.astype("<i8"))
            dataset.attrs["expression"] = expression


def _write_dense(file: Any, name: str, values: Array, keep: Array) -> None:
    num_rows = int(np.count_nonzero(keep))
    dtype: Any = h5py.string_dtype() if values.dtype.kind == "O" else values.dtype
    dataset = file.create_dataset(name, shape=(num_rows, *values.shape[1:]), dtype=dtype)
    if num_rows == len(keep):
        dataset[...] = values
        return
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    step, at = 8 * rows_in_cache(row_bytes), 0
    for lo in range(0, len(values), step):
        block = values[lo : lo + step][keep[lo : lo + step]]
        if len(block):
            dataset[at : at + len(block)] = block
            at += len(block)


def list_bundles(directory: Path) -> list[BundleFile]:
    """The finished bundles of a shard, weakest claim first (earlier session, lower attempt, then older)."""
    found: list[tuple[tuple[int, int, int, str], BundleFile]] = []
    if not directory.is_dir():
        return []
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            lo, hi, session, attempt = (int(number or 0) for number in match.groups())
            rank = session, attempt, path.stat().st_mtime_ns, path.name
            found.append((rank, BundleFile(path, lo, hi)))
    return [file for _, file in sorted(found, key=lambda item: item[0])]
