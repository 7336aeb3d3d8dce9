"""What is known about a finished shard without opening it: sizes, digests, statistics.

Kept beside each shard as ``shard_00000.json``, so that the manifest is made without reading the shards again
and `verify` can say which rows are damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from merlin.base.ranges import Ranges
from merlin.base.records import FileFormat, as_kind, indented, to_plain
from merlin.errors import ShardError
from merlin.shards.format.digest import ALGORITHM, combine, digest_bytes, digest_file_ranges
from merlin.shards.format.statistics import Statistics

FORMAT = FileFormat("merlin-shard-info", 2)
SHARD_FORMAT = FileFormat("merlin-shard", 1)  # of the shards themselves
PROVENANCE = "provenance/"  # columns that differ from run to run, outside the content digest
ATTEMPT = "provenance/attempt"
FILTERED = "provenance/filtered"  # a text: JSON of `ShardInfo.filtered`


class Extent(NamedTuple):
    """Bytes of the file that hold rows [lo, hi) of a dataset, and their digest as stored."""

    offset: int
    nbytes: int
    lo: int
    hi: int
    digest: str
    mask: int = 0  # of a compressed chunk: bit i says that filter i was left out


class DatasetInfo(Struct, frozen=True):
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
    def is_compressed(self) -> bool:
        return self.compression not in ("", "none")

    @property
    def digest(self) -> str:
        """Digest of the content: equal values have equal digests, however they are stored."""
        return combine(self.dtype, self.shape, self.blocks)


class ShardInfo(Struct, frozen=True, kw_only=True):
    file: str
    shard: int
    lo: int  # the rows of the data set it stands for, absent ones included
    hi: int
    num_rows: int  # that it holds
    size_bytes: int
    skeleton: str  # digest of every byte that no extent covers
    filtered: dict[str, Ranges] = field(default_factory=dict)  # rows that a filter rejected, by expression
    rows: Ranges = ()  # that it holds, in the order in which it holds them
    checks: str = ""  # check values of these rows (row_check.encode); "" if they are not known
    revision: int = 0  # of the study, that wrote it
    datasets: tuple[DatasetInfo, ...]

    @property
    def content_digest(self) -> str:
        """Digest of all values; independent of host, time, attempts, layout and compression."""
        content = [d for d in self.datasets if not d.name.startswith(PROVENANCE)]
        return combine([(d.name, d.digest) for d in sorted(content, key=lambda d: d.name)])

    @property
    def file_digest(self) -> str:
        """A digest that covers every byte of the file once."""
        stored = [(e.offset, e.nbytes, e.digest) for d in self.datasets for e in d.extents]
        return combine(self.size_bytes, self.skeleton, stored)

    def to_json(self) -> str:
        """The sidecar's text."""
        plain = to_plain(self)
        if not self.revision:  # left out for a study that was never updated
            del plain["revision"]
        for dataset, entry in zip(self.datasets, plain["datasets"], strict=True):
            entry["digest"] = dataset.digest
            entry["extents"] = [extent if extent[-1] else extent[:-1] for extent in entry["extents"]]
        head = {
            **FORMAT.head(),
            "digest_algorithm": ALGORITHM,
            "content_digest": self.content_digest,
            "file_digest": self.file_digest,
        }
        body = {**head, **plain}
        return indented({**body, "digest": combine(body)})

    @property
    def info_digest(self) -> str:
        """Digest of the sidecar's text."""
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
        if wrong := FORMAT.mismatch(data):
            raise ShardError(f"{path}: {wrong}")
        digest = data.pop("digest")
        is_intact = combine(data) == digest
        info = as_kind(data, ShardInfo)
        stated = (data["content_digest"], data["file_digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise ShardError(f"{path}: not a readable shard description: {e}") from e
    if not is_intact or (info.content_digest, info.file_digest) != stated:
        raise ShardError(f"{path}: its digests do not agree with each other; the file was changed")
    return info


def sized_info(directory: Path, shard: int) -> ShardInfo | None:
    """What a shard holds; None if there is no valid sidecar, or no file of the size that it says."""
    try:
        info = read_info(directory / info_name(shard))
        size = (directory / shard_name(shard)).stat().st_size
    except (ShardError, OSError):
        return None
    return info if size == info.size_bytes else None


def skeleton_digest(path: Path, datasets: Sequence[DatasetInfo]) -> str:
    """Return the digest of every byte of the file that lies in no extent: headers, attributes, text, gaps."""
    extents = sorted((e for d in datasets for e in d.extents), key=lambda e: e.offset)
    begins = [0, *(e.offset + e.nbytes for e in extents)]
    with path.open("rb", buffering=0) as file:
        ends = [*(e.offset for e in extents), os.fstat(file.fileno()).st_size]
        return digest_file_ranges(file.fileno(), zip(begins, ends, strict=True))
