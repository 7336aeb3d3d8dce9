"""MDS, the format of MosaicML streaming: shards of packed samples, and ``index.json``.

A shard is, little-endian: number of samples (u32), where each sample begins and the last one ends (u32 each,
from the start of the file), a JSON description of the columns, then the samples. A sample is the byte counts
(u32) of its columns of variable size, then the values of all columns, in the order of their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.files import temporary_name, write_text, written_name
from merlin.errors import MissingExtraError, UsageError
from merlin.shards.export.base import ExportedFile, Exporter, file_digest
from merlin.shards.export.view import Block, ExportColumn
from merlin.shards.format.segments import Array, offsets_of

_VERSION = 2
_SHARD_BYTES = 1 << 26  # what MDS writers aim at
_LEVEL = 3
_ARRAY_TYPES = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32",
                "uint64", "int64", "float64")  # fmt: skip
_SIZES = ("u1", "<u2", "<u4", "<u8")  # types of an array's sizes, by their code


class MdsExporter(Exporter):
    format = "mds"
    samples_per_file = 1000
    compressions = ("none", "zstd")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._columns = sorted(self.view.columns, key=lambda column: column.key)
        if not self.options.samples_per_file and not any(column.ragged for column in self._columns):
            row_bytes = sum(column.item_bytes for column in self._columns)
            self.step = max(1, min(_SHARD_BYTES // row_bytes, 1 << 20))

    def check(self) -> None:
        super().check()
        if self.compression == "zstd":
            _zstandard()

    def refusal(self, column: ExportColumn) -> str:
        if not column.is_text and _type(column) not in _ARRAY_TYPES:
            return f"MDS has no {column.dtype.name}"
        return ""

    def file_name(self, number: int) -> str:
        return f"shard.{number:05d}.mds" + (".zstd" if self.compression == "zstd" else "")

    def _config(self) -> dict[str, Any]:
        """What a shard says about itself, in its head and in the index."""
        return {
            "version": _VERSION,
            "format": "mds",
            "compression": None if self.compression == "none" else f"zstd:{_LEVEL}",
            "hashes": ["sha256"],
            "size_limit": None,
            "column_names": [column.key for column in self._columns],
            "column_encodings": [_encoding(column) for column in self._columns],
            "column_sizes": [_fixed_size(column) for column in self._columns],
        }

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        if self.compression == "none":
            self._write_raw(path, lo, hi)
            return {}
        raw = temporary_name(Path(f"{written_name(str(path))}.raw"))  # a name that `remove_leftovers` finds
        try:
            self._write_raw(raw, lo, hi)
            compressor = _zstandard().ZstdCompressor(level=_LEVEL)
            with raw.open("rb") as source, path.open("wb") as target:
                compressor.copy_stream(source, target, size=raw.stat().st_size)
            return {"raw": {"bytes": raw.stat().st_size, "sha256": file_digest(raw)}}
        finally:
            raw.unlink(missing_ok=True)

    def _write_raw(self, path: Path, lo: int, hi: int) -> None:
        num = hi - lo
        config = json.dumps(self._config(), sort_keys=True).encode()
        sizes: list[Array] = []
        with path.open("wb") as file:
            file.write(np.uint32(num).tobytes())
            file.write(bytes(4 * (num + 1)))
            file.write(config)
            for _, block in self.view.blocks(lo, hi):
                packed, size = self._pack(block)
                for piece in packed:
                    file.write(piece)
                sizes.append(size)
            start = 4 + 4 * (num + 1) + len(config)
            ends = start + offsets_of(np.concatenate(sizes))
            if ends[-1] >= 1 << 32:
                raise UsageError(
                    f"mds: a shard of {num:,} samples has {int(ends[-1]):,} bytes, and 2**32 are too many; "
                    "use fewer --samples-per-file"
                )
            file.seek(4)
            file.write(ends.astype("<u4").tobytes())

    def _pack(self, block: Block) -> tuple[Iterator[Any], Array]:
        """The bytes of a block's samples, and the size of each."""
        if all(_fixed_size(column) is not None for column in self._columns):
            rows = self._pack_fixed(block)
            return iter([rows.view(np.uint8).data]), np.full(len(rows), rows.dtype.itemsize, dtype=np.int64)
        samples = list(self._pack_each(block))
        return iter(samples), np.array([len(sample) for sample in samples], dtype=np.int64)

    def _pack_fixed(self, block: Block) -> Array:
        """All columns side by side, as records."""
        fields: list[Any] = [(f"f{i}", _stored(c), c.shape) for i, c in enumerate(self._columns)]
        first = block[self._columns[0].key]
        rows = np.empty(len(first), dtype=fields)
        for i, column in enumerate(self._columns):
            rows[f"f{i}"] = block[column.key]
        return rows

    def _pack_each(self, block: Block) -> Iterator[bytes]:
        for i in range(len(block[self._columns[0].key])):
            sizes, values = [], []
            for column in self._columns:
                data = _encode(column, block[column.key][i])
                values.append(data)
                if _fixed_size(column) is None:
                    sizes.append(len(data))
            yield np.array(sizes, "<u4").tobytes() + b"".join(values)

    def count(self, path: Path) -> int:
        with path.open("rb") as file:
            if self.compression == "none":
                return int(np.frombuffer(file.read(4), "<u4")[0])
            with _zstandard().ZstdDecompressor().stream_reader(file) as stream:
                return int(np.frombuffer(stream.read(4), "<u4")[0])

    def finish(self, directory: Path, parts: list[ExportedFile]) -> list[str]:
        config = self._config()
        shards = []
        for number, part in enumerate(parts):
            stored = {"bytes": part.size_bytes, "sha256": part.digest}
            raw = self._file(f"shard.{number:05d}.mds", part.facts.get("raw", stored))
            packed = None if self.compression == "none" else self._file(part.file, stored)
            shards.append({**config, "samples": part.num_samples, "raw_data": raw, "zip_data": packed})
        write_text(
            directory / "index.json", json.dumps({"version": _VERSION, "shards": shards}, sort_keys=True)
        )
        return ["index.json"]

    @staticmethod
    def _file(name: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {"basename": name, "bytes": facts["bytes"], "hashes": {"sha256": facts["sha256"]}}


def _stored(column: ExportColumn) -> np.dtype[Any]:
    """The dtype in the file: truth values are bytes there."""
    return np.dtype("u1") if column.dtype.kind == "b" else column.dtype


def _type(column: ExportColumn) -> str:
    return _stored(column).name


def _encoding(column: ExportColumn) -> str:
    if column.is_text:
        return "str"
    if column.is_scalar:
        return _type(column)
    if column.ragged:
        return f"ndarray:{_type(column)}"
    return f"ndarray:{_type(column)}:{','.join(map(str, column.shape))}"


def _fixed_size(column: ExportColumn) -> int | None:
    return None if column.ragged or column.is_text else _stored(column).itemsize * int(np.prod(column.shape))


def _encode(column: ExportColumn, value: Any) -> bytes:
    if column.is_text:
        return str(value).encode()
    values = np.ascontiguousarray(value, _stored(column)).tobytes()
    return _shape_head(value.shape) + values if column.ragged else values


def _shape_head(shape: tuple[int, ...]) -> bytes:
    """Number of axes and width of a size in one byte, then the sizes."""
    largest = max(shape)
    code = next(i for i in range(len(_SIZES)) if largest < 1 << (8 << i))
    return bytes([len(shape) << 2 | code]) + np.array(shape, _SIZES[code]).tobytes()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("zstandard", "export", "compressing MDS shards") from error
    return zstandard
