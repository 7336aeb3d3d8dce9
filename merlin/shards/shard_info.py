"""What is known about a finished shard without opening it: sizes, digests, statistics.

Kept beside each shard as ``shard_00000.json``, so that the manifest is made without reading the shards again
and `verify` can say which rows are damaged.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from merlin.errors import ShardError
from merlin.shards.digest import ALGORITHM, combine, digest_bytes
from merlin.shards.statistics import Statistics

FORMAT = "merlin-shard-info"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the file that hold rows [lo, hi) of a dataset, and their digest as stored."""

    offset: int
    nbytes: int
    lo: int
    hi: int
    digest: str


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    name: str  # "fields/image"
    dtype: str  # NumPy's, "<f4"; or "text"
    shape: tuple[int, ...]  # with rows first
    compression: str
    block_rows: int
    blocks: tuple[str, ...]  # digest of each block of rows, uncompressed
    extents: tuple[Extent, ...]  # empty for text, whose bytes belong to the file's skeleton
    statistics: Statistics | None

    @property
    def digest(self) -> str:
        """Of the content: equal values have equal digests, however they are stored."""
        return combine(self.dtype, self.shape, self.blocks)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    file: str
    shard: int
    lo: int  # the rows of the data set it stands for, absent ones included
    hi: int
    num_rows: int  # that it holds
    size_bytes: int
    skeleton: str  # digest of every byte that no extent covers
    datasets: tuple[DatasetInfo, ...]

    @property
    def content_digest(self) -> str:
        """Of all values; independent of host, time, layout and compression."""
        return combine([(d.name, d.digest) for d in sorted(self.datasets, key=lambda d: d.name)])

    @property
    def file_digest(self) -> str:
        """Covers every byte of the file once."""
        stored = [(e.offset, e.nbytes, e.digest) for d in self.datasets for e in d.extents]
        return combine(self.size_bytes, self.skeleton, stored)

    def to_json(self) -> str:
        datasets = []
        for dataset in self.datasets:
            entry = asdict(dataset)
            entry["statistics"] = dataset.statistics.to_json() if dataset.statistics else None
            entry["digest"] = dataset.digest
            entry["extents"] = [[e.offset, e.nbytes, e.lo, e.hi, e.digest] for e in dataset.extents]
            datasets.append(entry)
        head = {
            "format": FORMAT,
            "version": VERSION,
            "digest_algorithm": ALGORITHM,
            "content_digest": self.content_digest,
            "file_digest": self.file_digest,
        }
        body = {
            name: getattr(self, name)
            for name in ("file", "shard", "lo", "hi", "num_rows", "size_bytes", "skeleton")
        }
        return json.dumps({**head, **body, "datasets": datasets}, indent=1)

    @property
    def info_digest(self) -> str:
        """Of the sidecar's text."""
        return digest_bytes(self.to_json().encode())


def shard_name(shard: int) -> str:
    return f"shard_{shard:05d}.h5"


def info_name(shard: int) -> str:
    return f"shard_{shard:05d}.json"


def read_info(path: Path) -> ShardInfo:
    """Raises ShardError if the sidecar is missing, damaged or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ShardError(
                f"{path}: expected {FORMAT} version {VERSION}, found {data['format']} {data['version']}"
            )
        info = _from_json(data)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ShardError(f"{path}: not a readable shard description: {e}") from e
    if (info.content_digest, info.file_digest) != (data["content_digest"], data["file_digest"]):
        raise ShardError(f"{path}: its digests do not agree with each other; the file was changed")
    return info


def _from_json(data: dict[str, Any]) -> ShardInfo:
    datasets = []
    for entry in data["datasets"]:
        statistics = entry["statistics"]
        datasets.append(
            DatasetInfo(
                name=entry["name"],
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                compression=entry["compression"],
                block_rows=entry["block_rows"],
                blocks=tuple(entry["blocks"]),
                extents=tuple(Extent(*extent) for extent in entry["extents"]),
                statistics=Statistics.from_json(statistics) if statistics else None,
            )
        )
    return ShardInfo(
        file=data["file"],
        shard=data["shard"],
        lo=data["lo"],
        hi=data["hi"],
        num_rows=data["num_rows"],
        size_bytes=data["size_bytes"],
        skeleton=data["skeleton"],
        datasets=tuple(datasets),
    )
