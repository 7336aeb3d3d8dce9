"""Compression of data sets: HDF5's filter pipelines, and how many rows share a chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from merlin.errors import ShardError

ALONE_BYTES = 1 << 16  # a row of this size or more is a chunk of its own
CHUNK_BYTES = 1 << 17
SHUFFLES = ("none", "byte", "bit")
LEVELS = {"gzip": (0, 9), "zstd": (1, 22), "blosc2": (0, 9)}  # least and greatest
_USUAL_LEVELS = {"gzip": 4, "zstd": 3, "blosc2": 5}


@dataclass(frozen=True, slots=True)
class Codec:
    """How a data set is compressed; `name` "none" is not at all."""

    name: str = "none"
    shuffle: str = "byte"
    level: int | None = None  # None: the usual one of the codec

    @property
    def is_none(self) -> bool:
        return self.name in ("", "none")


NONE = Codec()


def chunk_rows(row_bytes: int, num_rows: int) -> int:
    """Rows per chunk. Reading one row decompresses its whole chunk, so large rows stand alone."""
    if row_bytes >= ALONE_BYTES:
        return 1
    rows = max(1, CHUNK_BYTES // max(1, row_bytes))
    return min(1 << (rows.bit_length() - 1), max(1, num_rows))


class Filter(NamedTuple):
    """A filter of HDF5's pipeline."""

    id: int
    options: tuple[int, ...]


SHUFFLE, DEFLATE, BITSHUFFLE = 2, 1, 32008  # HDF5's registered numbers


def filters(codec: Codec) -> list[Filter]:
    """The pipeline. Raises ShardError for a codec or shuffle that there is not."""
    if codec.shuffle not in SHUFFLES:
        raise ShardError(f"unknown shuffle '{codec.shuffle}'; known: {', '.join(SHUFFLES)}")
    if codec.name not in _MAKERS:
        raise ShardError(f"unknown compression '{codec.name}'; known: none, {', '.join(_MAKERS)}")
    level = _USUAL_LEVELS[codec.name] if codec.level is None else codec.level
    return _MAKERS[codec.name](codec.shuffle, level)


def _gzip(shuffle: str, level: int) -> list[Filter]:
    before = {"none": [], "byte": [Filter(SHUFFLE, ())], "bit": [Filter(BITSHUFFLE, (0, 0))]}[shuffle]
    if shuffle == "bit":
        import hdf5plugin  # noqa: F401 - registers the filter
    return [*before, Filter(DEFLATE, (level,))]


def _zstd(shuffle: str, level: int) -> list[Filter]:
    import hdf5plugin

    if shuffle == "bit":
        return [_plugin(hdf5plugin.Bitshuffle(cname="zstd", clevel=level))]
    before = [Filter(SHUFFLE, ())] if shuffle == "byte" else []
    return [*before, _plugin(hdf5plugin.Zstd(clevel=level))]


def _blosc2(shuffle: str, level: int) -> list[Filter]:
    from hdf5plugin import Blosc2

    kinds = {"none": Blosc2.NOFILTER, "byte": Blosc2.SHUFFLE, "bit": Blosc2.BITSHUFFLE}
    return [_plugin(Blosc2(cname="zstd", clevel=level, filters=kinds[shuffle]))]


def _plugin(made: Any) -> Filter:
    return Filter(int(made["compression"]), tuple(int(option) for option in made["compression_opts"]))


_MAKERS: dict[str, Callable[[str, int], list[Filter]]] = {"gzip": _gzip, "zstd": _zstd, "blosc2": _blosc2}
