"""Compression: every codec with every shuffle holds the same values, in chunks that suit single rows."""

from __future__ import annotations

import h5py
import hdf5plugin  # noqa: F401 - registers the filters
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_study import make_study

from merlin.base.compression import CODECS, Compression, chunk_rows
from merlin.errors import ShardError
from merlin.plan.plan import PlannedField
from merlin.shards.format.manifest_file import read_manifest

WAVE = PlannedField(name="wave", kind="series", dtype="float32", shape=(512,))
ITEMS = PlannedField(name="items", kind="ragged", dtype="int32", shape=(2,), ragged=True, output="items")
LABEL = PlannedField(name="label", kind="text")


def outputs(num):
    rng = np.random.default_rng(0)
    items = np.empty(num, dtype=object)
    for i in range(num):
        items[i] = rng.integers(0, 1000, (i % 5, 2))
    wave = np.cumsum(rng.normal(size=(num, 512)), axis=1).astype(np.float32)
    return {"wave": wave, "items": items, "label": np.array([f"s{i}" for i in range(num)], dtype=object)}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("shuffle", ["none", "byte", "bit"])
def test_every_codec_and_shuffle_holds_the_same_content(tmp_path, codec, shuffle):
    digests = []
    for name, more in (("plain", {}), ("packed", {"compression": codec, "shuffle": shuffle})):
        study = make_study(tmp_path / name, num=30, per_shard=30, fields=(WAVE, ITEMS, LABEL), **more)
        study.collect(0, 30, outputs=outputs(30))
        digests.append(read_manifest(study.finish()).content_digest)
    assert digests[0] == digests[1]
    with h5py.File(study.directory / "shard_00000.h5") as file:
        np.testing.assert_array_equal(file["fields/wave"][()], outputs(30)["wave"])
        assert file["fields/wave"].id.get_storage_size() < file["fields/wave"].nbytes
        assert file["fields/items/offsets"].chunks is None  # offsets, ids and text are never compressed
        assert file["sample_id"].chunks is None
    info = {field.name: field for field in read_manifest(study.directory).fields}
    assert (info["wave"].compression, info["wave"].shuffle) == (codec, shuffle)
    assert (info["label"].compression, info["label"].shuffle) == ("none", "")


def test_a_field_may_differ_from_the_aggregate(tmp_path):
    fields = (
        PlannedField(name="a", kind="series", shape=(512,), output="wave"),
        PlannedField(name="b", kind="series", shape=(512,), output="wave", compression="none"),
        PlannedField(
            name="c", kind="series", shape=(512,), output="wave", compression="gzip", level=9, shuffle="none"
        ),
    )
    study = make_study(tmp_path, num=8, fields=fields, compression="zstd", shuffle="bit", level=12)
    study.collect(0, 8, outputs={"wave": outputs(8)["wave"]})
    study.finish()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        pipelines = {}
        for name in "abc":
            plist = file[f"fields/{name}"].id.get_create_plist()
            pipelines[name] = [plist.get_filter(i)[::2] for i in range(plist.get_nfilters())]
    assert pipelines["b"] == []
    assert pipelines["c"] == [(1, (9,))]
    assert [number for number, _ in pipelines["a"]] == [32008]
    assert pipelines["a"][0][1][-1] == 12


def test_rounded_floats_compress_better_and_the_data_set_says_so(tmp_path):
    sizes = {}
    for bits in (None, 6):
        field = PlannedField(name="wave", kind="series", dtype="float32", shape=(512,), keep_bits=bits)
        study = make_study(tmp_path / str(bits), num=20, fields=(field,), compression="zstd", shuffle="bit")
        study.collect(0, 20, outputs={"wave": outputs(20)["wave"]})
        data = read_manifest(study.finish())
        sizes[bits] = data.size_bytes
        with h5py.File(study.directory / "shard_00000.h5") as file:
            values, attributes = file["fields/wave"][()], dict(file["fields/wave"].attrs)
    assert sizes[6] < sizes[None] / 1.5
    assert attributes["keep_bits"] == data.fields[0].keep_bits == 6
    expected = outputs(20)["wave"]
    assert (np.abs(values - expected) <= 2.0**-7 * np.abs(expected)).all()


@given(row_bytes=st.integers(1, 1 << 24), num=st.integers(1, 5000))
def test_large_rows_stand_alone_and_small_ones_share_a_chunk(row_bytes, num):
    rows = chunk_rows(row_bytes, num)
    assert 1 <= rows <= num
    if row_bytes >= 1 << 16:
        assert rows == 1
    else:
        assert rows * row_bytes <= 1 << 17
        assert rows == num or 2 * rows * row_bytes > 1 << 17


def test_unknown_words_are_refused():
    with pytest.raises(ShardError, match="unknown compression 'lzma'; known: none, gzip"):
        Compression("lzma").filters()
    with pytest.raises(ShardError, match="unknown shuffle 'nibble'"):
        Compression("zstd", "nibble").filters()
