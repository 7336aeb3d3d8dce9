"""Compression of data sets. A new codec is a file of `codecs/` and its line in `CODECS`."""

from __future__ import annotations

from msgspec import Struct

from merlin.base.codecs import blosc2, gzip, zstd
from merlin.base.codecs.codec import Filter
from merlin.base.codecs.shuffles import SHUFFLES
from merlin.errors import ShardError

CODECS = {codec.name: codec for codec in (gzip.CODEC, zstd.CODEC, blosc2.CODEC)}
NAMES = ("none", *CODECS)

_ALONE_BYTES = 1 << 16  # a row of this size or more is a chunk of its own
_CHUNK_BYTES = 1 << 17


class Compression(Struct, frozen=True):
    """How a data set is compressed; `name` "none" is not at all."""

    name: str = "none"
    shuffle: str = "byte"
    level: int | None = None  # None: the usual one of the codec

    @property
    def is_none(self) -> bool:
        return self.name in ("", "none")

    def filters(self) -> list[Filter]:
        """HDF5's pipeline. Raises ShardError for a codec or shuffle that does not exist."""
        if self.shuffle not in SHUFFLES:
            raise ShardError(f"unknown shuffle '{self.shuffle}'; known: {', '.join(SHUFFLES)}")
        if self.name not in CODECS:
            raise ShardError(f"unknown compression '{self.name}'; known: {', '.join(NAMES)}")
        codec = CODECS[self.name]
        return codec.filters(self.shuffle, codec.usual_level if self.level is None else self.level)


NONE = Compression()


def chunk_rows(row_bytes: int, num_rows: int) -> int:
    """Rows per chunk. Reading one row decompresses its whole chunk, so large rows stand alone."""
    if row_bytes >= _ALONE_BYTES:
        return 1
    rows = max(1, _CHUNK_BYTES // max(1, row_bytes))
    return min(1 << (rows.bit_length() - 1), max(1, num_rows))
