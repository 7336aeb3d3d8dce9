"""Filters undone outside of the HDF5 library give what the library gives."""

from __future__ import annotations

import h5py
import hdf5plugin
import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.base.codecs import plugins, shuffles
from merlin.base.codecs.codec import DecodeError
from merlin.base.codecs.pipeline import make_pipeline
from merlin.base.codecs.shuffles import unshuffle
from merlin.base.compression import CODECS

BLOSC2, NOTHING = hdf5plugin.Blosc2, hdf5plugin.Blosc2.NOFILTER
PIPELINES = {
    "gzip": {"compression": "gzip"},
    "gzip shuffled": {"compression": "gzip", "shuffle": True},
    "zstd": hdf5plugin.Zstd(clevel=3),
    "zstd shuffled": {"shuffle": True, **hdf5plugin.Zstd(clevel=3)},
    "zstd bitshuffled": hdf5plugin.Bitshuffle(cname="zstd", clevel=3),
    "lz4 bitshuffled": hdf5plugin.Bitshuffle(),
    "bits alone": hdf5plugin.Bitshuffle(cname="none"),
    "blosc2": BLOSC2(cname="zstd", clevel=5, filters=NOTHING),
    "blosc2 shuffled": BLOSC2(cname="zstd", clevel=5, filters=BLOSC2.SHUFFLE),
    "blosc2 bitshuffled": BLOSC2(cname="zstd", clevel=5, filters=BLOSC2.BITSHUFFLE),
    "shuffled": {"shuffle": True},
}
DTYPES = ("<f4", "<f8", "<i2", "u1", "<i8", "<c16")


@pytest.fixture(params=PIPELINES)
def written(request, tmp_path):
    """A data set of chunks of a few rows, for each dtype."""
    values = np.random.default_rng(0).integers(0, 200, (22, 40))
    with h5py.File(tmp_path / "file.h5", "w") as file:
        for dtype in DTYPES:
            file.create_dataset(dtype, data=values.astype(dtype), chunks=(4, 40), **PIPELINES[request.param])
    with h5py.File(tmp_path / "file.h5") as file:
        yield file


def decoded(dataset, *, native=True):
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    rows = dataset.chunks[0]
    out = np.zeros((-(-len(dataset) // rows) * rows, *dataset.shape[1:]), dataset.dtype)
    pipeline = make_pipeline([(f[0], tuple(f[2])) for f in filters], out[:rows].nbytes)
    assert pipeline is not None
    for lo in range(0, len(out), rows):
        mask, stored = dataset.id.read_direct_chunk((lo, 0))
        pipeline.decode(np.frombuffer(stored, np.uint8), mask, out[lo : lo + rows].reshape(-1).view(np.uint8))
    return out[: len(dataset)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_decode_to_what_was_written(written, dtype):
    np.testing.assert_array_equal(decoded(written[dtype]), written[dtype][:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_so_they_do_without_any_native_shuffle(written, dtype, monkeypatch):
    monkeypatch.setattr(shuffles, "native_unshuffle", lambda: None)
    np.testing.assert_array_equal(decoded(written[dtype]), written[dtype][:])


@settings(max_examples=repeats(25, 600), deadline=None)
@given(itemsize=st.sampled_from([1, 2, 3, 4, 8, 16]), num=st.integers(1, 50))
def test_shuffling_is_undone(itemsize, num):
    values = np.random.default_rng(num).integers(0, 256, (num, itemsize), dtype=np.uint8)
    out = np.zeros(values.size, np.uint8)
    unshuffle(np.ascontiguousarray(values.T).reshape(-1), out, itemsize)
    np.testing.assert_array_equal(out, values.reshape(-1))


@pytest.mark.parametrize("name", [*CODECS, "zstd bitshuffled"])
def test_bytes_that_no_filter_made_are_an_error(name, tmp_path):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        dataset = file.create_dataset("x", data=np.arange(1000.0), chunks=(1000,), **PIPELINES[name])
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    pipeline = make_pipeline([(f[0], tuple(f[2])) for f in filters], 8000)
    with pytest.raises(DecodeError):
        pipeline.decode(np.full(300, 7, np.uint8), 0, np.empty(8000, np.uint8))
    with pytest.raises(DecodeError):
        pipeline.decode(np.zeros(0, np.uint8), 0, np.empty(8000, np.uint8))


def test_a_pipeline_with_something_unknown_is_left_to_the_library():
    assert make_pipeline([(3, ())], 100) is None  # a checksum
    assert make_pipeline([(1, (4,)), (1, (4,))], 100) is None  # the size between the two is not known
    assert make_pipeline([(32008, (0, 4, 4, 0, 3, 3)), (1, (4,))], 100) is None
    assert make_pipeline([], 4) is not None


def test_a_plugin_that_is_another_one_is_not_called(monkeypatch):
    plugins.plugin_function.cache_clear()
    assert plugins.plugin_function("zstd", 32015) is not None
    assert plugins.plugin_function("zstd", 32026) is None
    plugins.plugin_function.cache_clear()
    monkeypatch.setattr(plugins, "plugin_library", lambda name: None)
    assert plugins.plugin_function("zstd", 32015) is None
    plugins.plugin_function.cache_clear()
