"""Reading: NumPy's indexing over many files."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_study import make_study, values_of

import merlin
from merlin.errors import MissingExtraError, NotADataSetError, ShardError

NUM = 50
PRESENT = [t for t in range(NUM) if t not in (0, 21, 22)]


@pytest.fixture(scope="module", params=["none", "zstd"])
def ens(request, tmp_path_factory):
    study = make_study(tmp_path_factory.mktemp("read") / "w", num=NUM, compression=request.param)
    study.not_run = {(0, 0), (0, 21), (0, 22)}
    study.collect_all()
    with merlin.open_shards(study.finish()) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def truth():
    return values_of(np.array(PRESENT))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_index_gives_what_numpy_gives(ens, truth, data):
    size = len(PRESENT)
    bound = st.none() | st.integers(-size - 3, size + 3)
    key = data.draw(
        st.integers(-size, size - 1)
        | st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1, 5]))
        | st.lists(st.integers(-size, size - 1), max_size=20)
        | st.lists(st.booleans(), min_size=size, max_size=size)
    )
    if isinstance(key, list):
        key = np.array(key, dtype=bool if key and isinstance(key[0], bool) else np.int64)
    for name in ("image", "energy", "note", "history"):
        np.testing.assert_array_equal(ens[name][key], truth[name][key])


def test_further_indices_apply_to_the_sample(ens, truth):
    np.testing.assert_array_equal(ens["image"][3:7, 1, :, 0], truth["image"][3:7, 1, :, 0])
    np.testing.assert_array_equal(ens["image"][5, 1], truth["image"][5, 1])
    np.testing.assert_array_equal(ens["image"][..., 0], truth["image"][..., 0])
    np.testing.assert_array_equal(np.asarray(ens["energy"]), truth["energy"])


def test_shapes_and_dtypes_are_known_without_reading(ens):
    assert ens["image"].shape == (47, 6, 5, 2)
    assert ens["image"].dtype == np.float32
    assert ens.fields["energy"].units == "J"
    assert len(ens) == 47


@pytest.mark.parametrize("key", [47, -48, [0, 47]])
def test_an_index_outside_is_an_error(ens, key):
    with pytest.raises(IndexError, match="outside the data set of 47 samples"):
        ens["image"][key]


def test_an_unknown_name_is_told_what_there_is(ens):
    with pytest.raises(KeyError, match=r"no field or input 'imag'.*image"):
        ens["imag"]


def test_batches_come_in_the_order_asked_for_and_fill_arrays_given(ens, truth):
    where = np.random.default_rng(0).integers(0, 47, 128)
    batch = ens.batch(where, ["image", "energy", "x"])
    np.testing.assert_array_equal(batch["image"], truth["image"][where])
    np.testing.assert_array_equal(batch["x"], 2.0 * np.array(PRESENT)[where])
    out = {"image": np.empty((128, 6, 5, 2), np.float32), "energy": np.empty(128)}
    again = ens.batch(where, ["image", "energy"], out=out)
    assert again["image"] is out["image"]
    np.testing.assert_array_equal(out["energy"], truth["energy"][where])
    with pytest.raises(ValueError, match="out has to be"):
        ens.batch(where, ["image"], out={"image": np.empty((3, 6, 5, 2), np.float32)})


def test_splits_cover_every_sample_once(ens):
    parts = [ens.splits[name] for name in ("train", "validation", "test")]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(47))


def test_inputs_are_columns_and_a_matrix(ens):
    assert list(ens.inputs) == ["x", "y"]
    np.testing.assert_array_equal(ens.inputs.array(10, 12), [[2.0 * t, 2.0 * t + 1] for t in PRESENT[10:12]])


def test_an_ensemble_can_be_pickled_and_cross_a_fork(ens, truth):
    again = pickle.loads(pickle.dumps(ens))
    np.testing.assert_array_equal(again["image"][40:], truth["image"][40:])
    ens["image"][0]
    context = multiprocessing.get_context("fork")
    with context.Pool(2, initializer=_take, initargs=(ens,)) as pool:
        for start, values in pool.map(_read, [0, 15, 30, 40]):
            np.testing.assert_array_equal(values, truth["image"][start : start + 5])


def _take(ensemble):
    global HELD
    HELD = ensemble


def _read(start):
    return start, np.array(HELD["image"][start : start + 5])


def test_slices_inside_one_uncompressed_shard_are_views_that_cannot_be_written(tmp_path):
    study = make_study(tmp_path, num=30)
    study.collect_all()
    ens = merlin.open_shards(study.finish())
    view = ens["image"][2:9]
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert np.shares_memory(view, ens["image"][5:6])
    ens.close()
    assert view[0, 0, 0, 0] == 2


def test_a_damaged_shard_is_an_error_of_ours(tmp_path):
    study = make_study(tmp_path, num=30)
    study.collect_all()
    path = study.finish() / "shard_00001.h5"
    path.write_bytes(b"junk")
    ens = merlin.open_shards(study.directory)
    assert ens["energy"][3] == 1e6 + 1.5
    with pytest.raises(ShardError, match="run verify"):
        ens["energy"][25]


def test_a_directory_without_manifest_is_not_a_data_set(tmp_path):
    with pytest.raises(NotADataSetError):
        merlin.open_shards(tmp_path)


def test_a_contact_sheet_is_drawn(ens, tmp_path):
    pytest.importorskip("matplotlib")
    from merlin.shards.plot import contact_sheet

    path = contact_sheet(ens, tmp_path / "sheet.png", num=6)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_matplotlib_the_extra_is_named(ens, tmp_path, monkeypatch):
    from merlin.shards.plot import contact_sheet

    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="plot"):
        contact_sheet(ens, tmp_path / "sheet.png")
