"""gzip: HDF5's own deflate, which every reader of HDF5 has."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from merlin.base.codecs.codec import Codec, DecodeError, Filter, copy_exactly
from merlin.base.codecs.shuffles import shuffle_filters

if TYPE_CHECKING:
    from merlin.base.codecs.codec import Array

_DEFLATE = 1


def _filters(shuffle: str, level: int) -> list[Filter]:
    return [*shuffle_filters(shuffle), Filter(_DEFLATE, (level,))]


def _inflate(stored: Array, out: Array) -> None:
    import numpy as np

    try:
        data = zlib.decompress(stored.data, bufsize=len(out))
    except zlib.error as error:
        raise DecodeError(str(error)) from error
    copy_exactly(np.frombuffer(data, np.uint8), out)


CODEC = Codec("gzip", range(10), 4, _filters, {_DEFLATE: lambda options: _inflate})
