"""WebDataset: tar files, in which the members of a sample stand together and share a key.

``000000042.json`` holds the numbers of a sample (ids, inputs, parameters, scalars), ``000000042.image.npy`` an
array, ``000000042.note.txt`` a text. Keys are row numbers. ``index.json`` lists the files and their counts.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from merlin.base.files import write_text
from merlin.shards.export.base import ExportedFile, Exporter
from merlin.shards.export.npz import npy_header
from merlin.shards.export.view import Block, ExportColumn

_BLOCK = 512
_RECORD = 20 * _BLOCK  # a tar file's length is a multiple of this
_NAME_BYTES = 100
_GROUPS = {"inputs": "inputs", "parameters": "parameters", "fields": "scalars"}
_PLAIN = re.compile(r"[^./\0]+(\.[^./\0]+)*")


class WebDatasetExporter(Exporter):
    format = "webdataset"
    samples_per_file = 1000
    compressions = ("none", "gzip")

    def refusal(self, column: ExportColumn) -> str:
        if _in_json(column):
            return ""
        if not _PLAIN.fullmatch(column.key):
            return "its name has a slash, or a dot at its end"
        if len(_member(2**63, column).encode()) > _NAME_BYTES:
            return f"its name makes a tar member of more than {_NAME_BYTES} bytes"
        same = [c.key for c in self.view.columns if c is not column and not _in_json(c)]
        twin = next((name for name in same if name.lower() == column.key.lower()), "")
        return f"WebDataset reads keys in lower case, as which '{twin}' is the same" if twin else ""

    def file_name(self, number: int) -> str:
        return f"samples-{number:06d}.tar" + (".gz" if self.compression == "gzip" else "")

    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        with path.open("wb") as file:
            if self.compression == "none":
                self._write_tar(file, lo, hi)
            else:
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
                    self._write_tar(stream, lo, hi)
        return {}

    def _write_tar(self, file: Any, lo: int, hi: int) -> None:
        members = [column for column in self.view.columns if not _in_json(column)]
        headers = {c.key: b"" if c.is_text else npy_header(c.dtype, c.shape) for c in members}
        row_name = self.view.row.key
        size = 0
        for _, block in self.view.blocks(lo, hi):
            numbers = self._numbers(block)
            for i, row in enumerate(np.asarray(block[row_name]).tolist()):
                size += _add(file, f"{row:09d}.json", numbers[i])
                for column in members:
                    data = _encode(column, block[column.key][i], headers[column.key])
                    size += _add(file, _member(row, column), data)
        file.write(bytes(2 * _BLOCK + -(size + 2 * _BLOCK) % _RECORD))

    def _numbers(self, block: Block) -> list[bytes]:
        """The JSON document of each sample."""
        columns = [column for column in self.view.columns if _in_json(column)]
        lists = [np.asarray(block[column.key]).tolist() for column in columns]
        documents = []
        for values in zip(*lists, strict=True):
            document: dict[str, Any] = {}
            for column, value in zip(columns, values, strict=True):
                group = _GROUPS.get(column.group)
                into = document.setdefault(group, {}) if group else document
                into[column.name] = value
            documents.append(json.dumps(document).encode())
        return documents

    def count(self, path: Path) -> int:
        with tarfile.open(path, "r:" if self.compression == "none" else "r:gz") as archive:
            return len({member.name.partition(".")[0] for member in archive})

    def finish(self, directory: Path, parts: list[ExportedFile]) -> list[str]:
        shards = [
            {"url": part.file, "nsamples": part.num_samples, "filesize": part.size_bytes} for part in parts
        ]
        name = self.view.ens.manifest.study.get("name", "")
        index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": shards}
        write_text(directory / "index.json", json.dumps(index, indent=1))
        return ["index.json"]


def _in_json(column: ExportColumn) -> bool:
    """True for numbers, and for the text of inputs and parameters."""
    if not column.is_scalar:
        return False
    return column.dtype.kind in "iufb" or (column.is_text and column.group != "fields")


def _member(row: int, column: ExportColumn) -> str:
    return f"{row:09d}.{column.key}.{'txt' if column.is_text else 'npy'}"


def _encode(column: ExportColumn, value: Any, header: bytes) -> bytes:
    if column.is_text:
        return str(value).encode()
    if column.ragged:
        header = npy_header(column.dtype, value.shape)
    return header + np.ascontiguousarray(value, column.dtype).tobytes()


def _add(file: IO[bytes], name: str, data: bytes) -> int:
    """Append a member and return its bytes; no time, owner or host enters, so equal data makes equal files."""
    encoded = name.encode()
    size = b"%011o\0" % len(data) if len(data) < 8**11 else b"\x80" + len(data).to_bytes(11, "big")
    head = encoded.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"00000000000\0"
    tail = b"0".ljust(101, b"\0") + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
    checksum = b"%06o\0 " % (sum(head) + 8 * 32 + sum(tail))
    file.write(head + checksum + tail)
    file.write(data)
    padding = -len(data) % _BLOCK
    file.write(bytes(padding))
    return _BLOCK + len(data) + padding
