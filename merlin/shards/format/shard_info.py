"""What is known about a finished shard without opening it: sizes, digests, statistics.

Kept beside each shard as ``shard_00000.json``, so that the manifest is made without reading the shards again
and `verify` can say which rows are damaged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from merlin.errors import ShardError
from merlin.shards.format.digest import ALGORITHM, combine, digest_bytes
from merlin.shards.format.statistics import Statistics

FORMAT = "merlin-shard-info"
VERSION = 2
SHARD_FORMAT = "merlin-shard"  # of the shards themselves
SHARD_VERSION = 1
PROVENANCE = "provenance/"  # columns that differ from run to run, outside the content digest
ATTEMPT = "provenance/attempt"
FILTERED = "provenance/filtered"  # a text: JSON of `ShardInfo.filtered`

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the file that hold rows [lo, hi) of a dataset, and their digest as stored."""

    offset: int
    nbytes: int
    lo: int
    hi: int
    digest: str
    mask: int = 0  # of a compressed chunk: bit i says that filter i was left out


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A data set of the file. Of the `values` of a ragged field, rows (also those of extents) are items."""

    name: str  # "fields/image"
    dtype: str  # NumPy's, "<f4"; or "text"
    shape: tuple[int, ...]  # with rows first
    compression: str
    block_rows: int
    blocks: tuple[str, ...]  # digest of each block of rows, uncompressed
    extents: tuple[Extent, ...]  # empty for text, whose bytes belong to the file's skeleton
    statistics: Statistics | None  # of the `offsets` of a ragged field: of the numbers of items per row
    ragged: bool = False  # `values` or `offsets` of a ragged field
    shuffle: str = ""  # of a compressed one
    references: int | None = None  # of text: where in the file the references to the values are (text_heap)

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
    filtered: dict[str, Ranges] = field(default_factory=dict)  # rows that a filter rejected, by expression
    rows: Ranges = ()  # that it holds, in the order in which it holds them
    checks: str = ""  # check values of these rows (row_check.encode); "" if they are not known

    @property
    def num_filtered(self) -> int:
        return sum(b - a for ranges in self.filtered.values() for a, b in ranges)

    @property
    def content_digest(self) -> str:
        """Of all values; independent of host, time, attempts, layout and compression."""
        content = [d for d in self.datasets if not d.name.startswith(PROVENANCE)]
        return combine([(d.name, d.digest) for d in sorted(content, key=lambda d: d.name)])

    @property
    def file_digest(self) -> str:
        """Covers every byte of the file once."""
        stored = [(e.offset, e.nbytes, e.digest) for d in self.datasets for e in d.extents]
        return combine(self.size_bytes, self.skeleton, stored)

    def to_json(self) -> str:
        datasets = []
        for dataset in self.datasets:
            entry = {each.name: getattr(dataset, each.name) for each in fields(dataset)}
            entry["statistics"] = dataset.statistics.to_json() if dataset.statistics else None
            entry["digest"] = dataset.digest
            entry["extents"] = [
                [e.offset, e.nbytes, e.lo, e.hi, e.digest, *([e.mask] if e.mask else [])]
                for e in dataset.extents
            ]
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
        proof = {"filtered": self.filtered, "rows": self.rows, "checks": self.checks}
        whole = {**head, **body, **proof, "datasets": datasets}
        return json.dumps({**whole, "digest": combine(whole)}, indent=1)

    @property
    def info_digest(self) -> str:
        """Of the sidecar's text."""
        return digest_bytes(self.to_json().encode())


def shard_name(shard: int) -> str:
    return f"shard_{shard:05d}.h5"


def info_name(shard: int) -> str:
    return f"shard_{shard:05d}.json"


def next_info_name(shard: int) -> str:
    """The sidecar of a shard that is about to be replaced; it gets its name when the new shard has its own."""
    return f"{info_name(shard)}.next"


def read_info(path: Path) -> ShardInfo:
    """Raises ShardError if the sidecar is missing, damaged or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ShardError(
                f"{path}: expected {FORMAT} version {VERSION}, found {data['format']} {data['version']}"
            )
        digest = data.pop("digest")
        is_whole = combine(data) == digest
        info = _from_json(data)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ShardError(f"{path}: not a readable shard description: {e}") from e
    if not is_whole or (info.content_digest, info.file_digest) != (
        data["content_digest"],
        data["file_digest"],
    ):
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
                ragged=entry.get("ragged", False),
                shuffle=entry.get("shuffle", ""),
                references=entry.get("references"),
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
        filtered={
            expression: tuple((a, b) for a, b in ranges)
            for expression, ranges in data.get("filtered", {}).items()
        },
        rows=tuple((a, b) for a, b in data.get("rows", ())),
        checks=data.get("checks", ""),
    )
