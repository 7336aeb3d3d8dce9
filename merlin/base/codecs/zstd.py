"""zstd: as small as gzip and many times as fast; with bits shuffled, the compressor inside of Bitshuffle."""

from __future__ import annotations

from merlin.base.codecs.codec import Codec, Filter
from merlin.base.codecs.plugins import plugin_filter, undone_by_plugin
from merlin.base.codecs.shuffles import shuffle_filters

_ZSTD = 32015


def _filters(shuffle: str, level: int) -> list[Filter]:
    import hdf5plugin

    if shuffle == "bit":
        return [plugin_filter(hdf5plugin.Bitshuffle(cname="zstd", clevel=level))]
    return [*shuffle_filters(shuffle), plugin_filter(hdf5plugin.Zstd(clevel=level))]


CODEC = Codec("zstd", range(1, 23), 3, _filters, {_ZSTD: undone_by_plugin("zstd", _ZSTD)})
