"""blosc2: zstd over blocks that fit a core's cache, with a shuffle of its own."""

from __future__ import annotations

from merlin.base.codecs.codec import Codec, Filter
from merlin.base.codecs.plugins import plugin_filter, undone_by_plugin

_BLOSC2 = 32026


def _filters(shuffle: str, level: int) -> list[Filter]:
    from hdf5plugin import Blosc2

    kinds = {"none": Blosc2.NOFILTER, "byte": Blosc2.SHUFFLE, "bit": Blosc2.BITSHUFFLE}
    return [plugin_filter(Blosc2(cname="zstd", clevel=level, filters=kinds[shuffle]))]


CODEC = Codec("blosc2", range(10), 5, _filters, {_BLOSC2: undone_by_plugin("blosc2", _BLOSC2)})
