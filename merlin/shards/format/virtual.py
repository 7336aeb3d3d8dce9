"""One HDF5 file that shows all shards of a data set as one, by virtual data sets; it holds their names relative to
itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.field import TEXT_DTYPE
from merlin.base.files import replacing
from merlin.base.records import FileFormat
from merlin.errors import ShardError
from merlin.shards.format.hdf5_file import NewFile
from merlin.shards.format.manifest_file import ColumnInfo, DataSet
from merlin.shards.format.segments import Array

FORMAT = FileFormat("merlin-ensemble", 1)


def write_virtual(path: Path, data: DataSet) -> None:
    """Write the file for a manifest, beside the shards.

    The offsets of ragged fields count through all shards, so they are stored, shard by shard; all else is virtual.
    """
    num_rows = data.num_rows
    shards = [(shard.file, shard.num_rows) for shard in data.shards if shard.num_rows]
    with replacing(path) as temporary, NewFile(temporary, libver=("earliest", "v110")) as new:
        file = new.file
        file.attrs.update({**FORMAT.head(), "num_rows": num_rows})
        ragged = [c.path for c in data.columns if c.ragged and c.path.endswith("/offsets")]
        items = _write_offsets(file, path.parent, shards, ragged, num_rows)
        for column in data.columns:
            if not column.ragged:
                _show(file, column, shards)
            elif column.path.endswith("/values"):
                sizes = items[column.path.removesuffix("/values")]
                _show(file, column, [(shard, size) for (shard, _), size in zip(shards, sizes, strict=True)])


def _show(file: Any, column: ColumnInfo, parts: list[tuple[str, int]]) -> None:
    """Create a virtual data set of one data set per shard, (file, length), one after the other."""
    import h5py

    name = column.path
    dtype = h5py.string_dtype() if column.dtype == TEXT_DTYPE else np.dtype(column.dtype)
    shape = (sum(size for _, size in parts), *column.shape)
    if not shape[0]:
        file.create_dataset(name, shape=shape, dtype=dtype)
        return
    layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
    source = name.replace("%", "%%")  # there, %b would stand for a number
    at = 0
    for shard, size in parts:
        if size:
            layout[at : at + size] = h5py.VirtualSource(shard, source, shape=(size, *shape[1:]), dtype=dtype)
            at += size
    file.create_virtual_dataset(name, layout)


def _write_offsets(
    file: Any, directory: Path, shards: list[tuple[str, int]], names: list[str], num_rows: int
) -> dict[str, list[int]]:
    """Store offsets that count through all shards; returns the items of each ragged field in each shard."""
    items: dict[str, list[int]] = {name.removesuffix("/offsets"): [] for name in names}
    if not names:
        return items
    stored = {name: file.create_dataset(name, (num_rows + 1,), "<i8") for name in names}
    totals = dict.fromkeys(names, 0)
    at = 0
    for shard, size in shards:
        for name, offsets in _read_offsets(directory / shard, names).items():
            stored[name][at : at + size + 1] = offsets + totals[name]
            items[name.removesuffix("/offsets")].append(int(offsets[-1]))
            totals[name] += int(offsets[-1])
        at += size
    return items


def _read_offsets(path: Path, names: list[str]) -> dict[str, Array]:
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            return {name: file[name][()] for name in names}
    except (OSError, KeyError, RuntimeError) as e:
        raise ShardError(f"{path}: cannot be read: {e}") from e
