"""NumPy archives: one ``.npz`` for N samples, one member for each column.

A ragged column is two members, ``<name>.values`` and ``<name>.offsets`` (one more than samples).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.stored import read_npy_header
from merlin.errors import UsageError
from merlin.shards.export.base import Exporter
from merlin.shards.export.view import ExportColumn
from merlin.shards.format.segments import Array, Ragged, offsets_of

_TEXT_LIMIT = 1 << 30  # bytes of an array of text, which has the width of its longest value
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date of a zip file; equal data makes equal files


class NpzExporter(Exporter):
    format = "npz"
    samples_per_file = 1000
    compressions = ("none", "deflate")

    def file_name(self, number: int) -> str:
        return f"samples_{number:05d}.npz"

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        kind = zipfile.ZIP_STORED if self.compression == "none" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", kind) as archive:
            for column in self.view.columns:
                if column.ragged:
                    self._write_ragged(archive, column, lo, hi)
                elif column.is_text:
                    self._write_text(archive, column, lo, hi)
                else:
                    blocks = (block[column.key] for _, block in self.view.blocks(lo, hi, [column]))
                    write_member(archive, column.key, column.dtype, (hi - lo, *column.shape), blocks)
        return {}

    def _write_ragged(self, archive: zipfile.ZipFile, column: ExportColumn, lo: int, hi: int) -> None:
        offsets = offsets_of(self.view.lengths(column, lo, hi))
        shape = (int(offsets[-1]), *column.shape)

        def values() -> Iterator[Array]:
            for _, block in self.view.blocks(lo, hi, [column]):
                found = block[column.key]
                assert isinstance(found, Ragged)
                yield found.values

        write_member(archive, f"{column.key}.values", column.dtype, shape, values())
        write_member(archive, f"{column.key}.offsets", offsets.dtype, offsets.shape, iter([offsets]))

    def _write_text(self, archive: zipfile.ZipFile, column: ExportColumn, lo: int, hi: int) -> None:
        """Read the values twice, because NumPy's text has one width for all of them."""
        width = 1
        for _, block in self.view.blocks(lo, hi, [column]):
            width = max(width, max((len(text) for text in block[column.key]), default=0))
        if width * 4 * (hi - lo) > _TEXT_LIMIT:
            raise UsageError(
                f"npz: text '{column.key}' of {width:,} characters makes an array of more than a gigabyte; "
                "use fewer --samples-per-file, or another format"
            )
        dtype = np.dtype(f"<U{width}")
        blocks = (block[column.key].astype(dtype) for _, block in self.view.blocks(lo, hi, [column]))  # type: ignore[union-attr]
        write_member(archive, column.key, dtype, (hi - lo,), blocks)

    def count(self, path: Path) -> int:
        """The number of row numbers, as the header of that member says."""
        name = f"{self.view.row.key}.npy"
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            shape, _, _ = read_npy_header(member, archive.getinfo(name).file_size)
        return shape[0]


def write_member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterator[Any]
) -> None:
    """One ``.npy`` member, block after block."""
    info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    info.compress_type = archive.compression
    with archive.open(info, "w", force_zip64=True) as member:
        member.write(npy_header(dtype, shape))
        for block in blocks:
            member.write(np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8).data)


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before the values in a ``.npy`` file."""
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()
