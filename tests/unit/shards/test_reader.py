"""Reading: NumPy's indexing over many files, several columns at once, and readers that cross processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
import tracemalloc

import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_data import NUM, PRESENT, make_reading_study
from shard_study import make_study, values_of

import merlin
from merlin.base.compression import NAMES
from merlin.errors import NotADataSetError, ShardError, UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.counts import counts_of

SIZE = len(PRESENT)


@pytest.fixture(scope="module", params=[*NAMES, "bit"])
def ens(request, tmp_path_factory):
    more = (
        {"compression": "zstd", "shuffle": "bit"}
        if request.param == "bit"
        else {"compression": request.param}
    )
    path = tmp_path_factory.mktemp("read") / "w"
    with merlin.open_shards(make_reading_study(path, **more).finish()) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def truth():
    return values_of(np.array(PRESENT))


def keys(size):
    """What NumPy takes for the first axis."""
    bound = st.none() | st.integers(-size - 3, size + 3)
    return (
        st.integers(-size, size - 1)
        | st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1, 5]))
        | st.lists(st.integers(-size, size - 1), max_size=20).map(lambda v: np.array(v, np.int64))
        | st.lists(st.booleans(), min_size=size, max_size=size).map(np.array)
    )


@settings(max_examples=repeats(25, 600), deadline=None)
@given(key=keys(SIZE))
def test_every_index_gives_what_numpy_gives(ens, truth, key):
    for name in ("image", "energy", "note", "history"):
        np.testing.assert_array_equal(ens[name][key], truth[name][key])


@settings(max_examples=repeats(20, 400), deadline=None)
@given(
    positions=st.lists(st.integers(-SIZE, SIZE - 1), min_size=1, max_size=30),
    data=st.data(),
)
def test_a_selection_is_indexed_as_the_data_set_is(ens, truth, positions, data):
    selection = ens.take(positions)
    key = data.draw(keys(len(positions)))
    for name in ("image", "energy", "note"):
        np.testing.assert_array_equal(selection[name][key], truth[name][positions][key])


def test_further_indices_apply_to_the_sample(ens, truth):
    np.testing.assert_array_equal(ens["image"][3:7, 1, :, 0], truth["image"][3:7, 1, :, 0])
    np.testing.assert_array_equal(ens["image"][5, 1], truth["image"][5, 1])
    np.testing.assert_array_equal(ens["image"][..., 0], truth["image"][..., 0])
    np.testing.assert_array_equal(np.asarray(ens["energy"]), truth["energy"])


@pytest.mark.parametrize(
    "key",
    [
        ([1, 2], [0, 1]),
        ([1, 2, 5], slice(None), [0, 1, 1]),
        (np.array([[1], [9]]), [0, 1, 3]),
        ([[1, 2], [3, 3]],),
        ([3, 1], slice(1, 4), 2),
        ([3, 1], None, 2),
        ([1, 2], 0, [4, 1]),
        (4, slice(None), [0, 1]),
        (slice(3, 9, 2), [0, 1], [0, 1]),
        (slice(2, 6), [True, False, True, False, True, False]),
        (np.arange(SIZE) < 2, [0, 1]),
        (..., 3, 1, 2, 0),
        (..., [3, 1], 1, [2, 2], 0),
        (..., None),
        (np.array(4), 1),
        (-1, ...),
        (),
    ],
)
def test_arrays_on_several_axes_go_along_with_each_other(ens, truth, key):
    np.testing.assert_array_equal(ens["image"][key], truth["image"][key], strict=True)


def test_an_array_without_axes_is_an_integer(ens, truth):
    assert ens["energy"][np.array(4)] == truth["energy"][4]
    assert ens["note"][np.array(4)] == truth["note"][4]
    assert ens["energy"][..., 4] == truth["energy"][4]


@pytest.mark.parametrize(
    "key", [True, np.True_, None, 1.0, np.array(2.0), "yield", (None, 1), (True, [0, 1])]
)
def test_what_names_no_sample_is_an_error(ens, key):
    with pytest.raises(IndexError, match="names no sample"):
        ens["image"][key]


def test_shapes_and_dtypes_are_known_without_reading(ens):
    assert ens["image"].shape == (SIZE, 6, 5, 2)
    assert ens["image"].dtype == np.float32
    assert ens.fields["energy"].units == "J"
    assert len(ens) == SIZE


@pytest.mark.parametrize("key", [SIZE, -SIZE - 1, [0, SIZE]])
def test_an_index_outside_is_an_error(ens, key):
    with pytest.raises(IndexError, match=f"outside the data set of {SIZE} samples"):
        ens["image"][key]


@pytest.mark.parametrize("key", [[0.5], [["yield"]], [[[0.5]]], np.ones((3, 3), bool)])
def test_an_index_of_another_kind_is_an_error(ens, key):
    with pytest.raises(IndexError, match=r"one-dimensional integers or a mask|a mask needs shape"):
        ens["image"][key]


def test_an_unknown_name_is_told_what_there_is(ens):
    with pytest.raises(KeyError, match=r"no field, input or parameter 'imag'.*image"):
        ens["imag"]
    with pytest.raises(TypeError, match=r"not slice\(0, 2, None\).*take"):
        ens[0:2]


def test_batches_come_in_the_order_asked_for(ens, truth):
    where = np.random.default_rng(0).integers(-SIZE, SIZE, 128)
    batch = ens.batch(where, ["image", "energy", "x", "note", "history"])
    assert list(batch) == ["image", "energy", "x", "note", "history"]
    for name in ("image", "energy", "note", "history"):
        np.testing.assert_array_equal(batch[name], truth[name][where])
        assert batch[name].flags.c_contiguous
    np.testing.assert_array_equal(batch["x"], 2.0 * np.array(PRESENT)[where])


@pytest.mark.parametrize("num", [1, 7, 128])
def test_allocated_arrays_are_filled_again_and_again(ens, truth, num):
    names = ["x", "image", "energy", "y", "count", "history", "note"]
    out = ens.allocate(num, names)
    for seed in range(3):
        where = np.random.default_rng(seed).integers(0, SIZE, num)
        batch = ens.batch(where, names, out=out)
        assert list(batch) == names
        for name in ("image", "energy", "count", "history", "note"):
            assert batch[name] is out[name]
            np.testing.assert_array_equal(out[name], truth[name][where])
        np.testing.assert_array_equal(out["y"], 2.0 * np.array(PRESENT)[where] + 1)


def test_arrays_of_the_callers_are_filled(ens, truth):
    where = np.arange(SIZE)[::-1]
    unaligned = np.empty(SIZE * 60 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(SIZE, 6, 5, 2)
    out = {"image": unaligned, "energy": np.empty(SIZE)}
    batch = ens.batch(where, ["image", "energy", "count"], out=out)
    assert batch["image"] is out["image"] and batch["energy"] is out["energy"]
    np.testing.assert_array_equal(out["image"], truth["image"][::-1])
    np.testing.assert_array_equal(out["energy"], truth["energy"][::-1])
    np.testing.assert_array_equal(batch["count"], truth["count"][::-1])
    for wrong in (
        np.empty((3, 6, 5, 2), np.float32),
        np.empty((SIZE, 6, 5, 2)),
        np.empty((SIZE, 6, 5, 4), np.float32)[..., ::2],
    ):
        with pytest.raises(ValueError, match="out has to be"):
            ens.batch(where, ["image"], out={"image": wrong})


@pytest.mark.parametrize("is_other_first", [True, False])
def test_arrays_allocated_by_another_data_set_are_filled_with_the_values_of_this_one(
    ens, truth, tmp_path, is_other_first
):
    study = make_study(tmp_path / "w", num=9)
    study.collect(0, 9, outputs=values_of(np.arange(9) + 500))
    names, where = ["energy", "count", "image"], np.arange(8)
    with merlin.open_shards(ens.path) as first, merlin.open_shards(study.finish()) as other:
        expected = {first: truth, other: values_of(np.arange(9) + 500)}
        out = first.allocate(8, names)
        for reader in (other, first, other) if is_other_first else (first, other, first):
            for fields in (names, None):
                batch = reader.batch(where, fields, out=out)
                assert list(batch) == names
                for name in names:
                    assert batch[name] is out[name]
                    np.testing.assert_array_equal(out[name], expected[reader][name][where])
        np.testing.assert_array_equal(first.batch(where, names)["energy"], truth["energy"][where])


def test_by_default_a_batch_has_all_fields_but_text(ens):
    every = ["energy", "count", "history", "image", "track", "hits", "mesh"]
    assert list(ens.batch([3, 4])) == every
    assert list(ens.allocate(2)) == ["energy", "count", "history", "image"]
    assert list(ens.batch([3, 4], out=ens.allocate(2))) == every
    assert list(ens.batch([3, 4], out=ens.allocate(2, ["track", "x"]))) == ["track", "x"]


def test_no_rows_make_an_empty_batch(ens):
    batch = ens.batch([])
    assert batch["image"].shape == (0, 6, 5, 2)
    assert len(batch["track"]) == 0
    assert ens["image"][4:4].shape == (0, 6, 5, 2)
    assert ens.take([]).batch([])["energy"].shape == (0,)


def test_batches_in_order_cover_every_sample(ens, truth):
    found = list(ens.batches(20, ["energy"]))
    assert [len(batch["energy"]) for batch in found] == [20, 20, 3]
    np.testing.assert_array_equal(np.concatenate([batch["energy"] for batch in found]), truth["energy"])


@pytest.mark.parametrize("num", [0, -1, 2.5, None])
def test_batches_have_at_least_one_sample(ens, num):
    with pytest.raises(UsageError, match=f"a batch has at least 1 sample, not {num}"):
        ens.batches(num)


def test_iterating_gives_the_samples(ens, truth):
    for i, sample in zip(range(3), ens, strict=False):
        assert sample["note"] == truth["note"][i]
        np.testing.assert_array_equal(sample["image"], truth["image"][i])
        assert list(sample["mesh"]) == ["nodes", "edges", "targets"]


def test_splits_cover_every_sample_once(ens):
    parts = [ens.splits[name] for name in ("train", "validation", "test")]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(SIZE))
    backwards = ens.take(slice(None, None, -1))
    again = np.concatenate([ens.positions[::-1][backwards.splits[name]] for name in ens.splits])
    np.testing.assert_array_equal(again, np.concatenate([np.sort(p)[::-1] for p in parts]))


def test_a_selection_stays_what_it_is_when_the_indices_that_it_was_made_from_change(ens):
    indices = np.arange(20)
    selection = ens.take(indices)
    assert selection.sample_id.tolist() == PRESENT[:20]
    indices[:] = indices[::-1].copy()
    assert selection["count"][:].tolist() == PRESENT[:20]
    again = pickle.loads(pickle.dumps(selection))
    for shared in (selection.positions, again.positions, ens.splits["train"], ens.sample_id, selection.row):
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 3


def test_texts_that_were_handed_out_may_be_written(ens, truth):
    for key in (slice(0, 2), slice(None)):
        ens["note"][key][:] = "written"
    np.testing.assert_array_equal(ens["note"][:], truth["note"])


def test_inputs_are_columns_and_a_matrix(ens):
    assert list(ens.inputs) == ["x", "y"]
    np.testing.assert_array_equal(ens.inputs.array(10, 12), [[2.0 * t, 2.0 * t + 1] for t in PRESENT[10:12]])
    assert ens.inputs.array().shape == (SIZE, 2)
    assert ens.provenance["attempt"][:3].tolist() == [1, 1, 1]


# other processes and threads


def _hold(*ensembles):
    global HELD
    HELD = ensembles


def _read(task):
    which, start = task
    batch = HELD[which].batch(np.arange(start, start + 5), ["image", "energy", "note"])
    return which, start, batch["image"].copy(), batch["note"].tolist(), len(HELD[which]["track"][start])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_ensemble_crosses_to_other_processes(ens, truth, method):
    ens.batch([0, 30], ["image", "note"])
    selection = ens.take(np.arange(SIZE)[::-1])
    context = multiprocessing.get_context(method)
    processes = 1 if method == "spawn" else 2  # a new Python for each takes most of the time
    with context.Pool(processes, initializer=_hold, initargs=(ens, selection)) as pool:
        tasks = [(which, start) for which in (0, 1) for start in (0, 15, 30)]
        for which, start, image, note, num in pool.map(_read, tasks):
            order = slice(None, None, -1 if which else 1)
            np.testing.assert_array_equal(image, truth["image"][order][start : start + 5])
            assert note == truth["note"][order][start : start + 5].tolist()
            assert num == PRESENT[order][start] % 7
    np.testing.assert_array_equal(ens["image"][:], truth["image"])


def test_an_ensemble_can_be_pickled(ens, truth):
    again = pickle.loads(pickle.dumps(ens))
    np.testing.assert_array_equal(again["image"][40:], truth["image"][40:])
    selection = pickle.loads(pickle.dumps(ens.take([5, 3])))
    assert isinstance(selection, Ensemble)
    np.testing.assert_array_equal(selection["image"][:], truth["image"][[5, 3]])


def test_threads_share_an_ensemble(ens, truth):
    ens.close()
    wrong = []

    def read(seed):
        for where in np.random.default_rng(seed).integers(0, SIZE, (20, 32)):
            batch = ens.batch(where, ["image", "energy", "note"])
            wrong.extend(name for name in batch if not np.array_equal(batch[name], truth[name][where]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# views


def test_slices_of_uncompressed_rows_are_views_that_cannot_be_written(tmp_path):
    study = make_study(tmp_path / "w", num=30)
    study.collect_all()
    ens = merlin.open_shards(study.finish())
    view = ens["image"][2:9]
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert np.shares_memory(view, ens["image"][5:6])
    ens.close()
    assert view[0, 0, 0, 0] == 2
    del ens
    assert view[-1, 0, 0, 0] == 8


def test_a_slice_over_shards_is_a_view_if_they_end_where_it_fits(tmp_path):
    """Rows of 1024 float32 are a page each, and 16 of them a multiple of 64 KiB."""
    from merlin.plan.plan import PlannedField

    field = PlannedField(name="page", kind="series", dtype="float32", shape=(1024,))
    study = make_study(tmp_path / "w", num=45, per_shard=16, fields=(field,))
    values = np.arange(45 * 1024, dtype=np.float32).reshape(45, 1024)
    study.collect(0, 45, outputs={"page": values})
    ens = merlin.open_shards(study.finish())
    np.testing.assert_array_equal(ens["page"][:], values)
    assert not ens["page"][:].flags.owndata and np.shares_memory(ens["page"][:], ens["page"][20])
    np.testing.assert_array_equal(ens["page"][[29, 0, 15]], values[[29, 0, 15]])


def test_batches_of_uncompressed_rows_need_no_copy_of_the_data_set(tmp_path):
    """Several trainers read a share each; each of them would hold all."""
    from merlin.plan.plan import PlannedField

    num, field = 3000, PlannedField(name="history", kind="series", dtype="float32", shape=(256,))
    study = make_study(tmp_path / "w", num=num, per_shard=1000, fields=(field,))
    values = np.arange(num * 256, dtype=np.float32).reshape(num, 256)
    study.collect(0, num, outputs={"history": values})
    ens, rows = merlin.open_shards(study.finish()), np.arange(0, num, 100)
    tracemalloc.start()
    found = ens.batch(rows)["history"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(found, values[rows])
    assert peak < values.nbytes / 2


def test_a_directory_without_manifest_is_not_a_data_set(tmp_path):
    with pytest.raises(NotADataSetError, match="no finished data set"):
        merlin.open_shards(tmp_path)
    with pytest.raises(NotADataSetError, match=r"there is no .*nowhere"):
        merlin.open_shards(tmp_path / "nowhere")


def test_a_workspace_is_its_data_set_if_it_has_one(tmp_path):
    study = make_study(tmp_path / "w", num=3)
    study.collect_all()
    directory = study.finish()
    for path in (directory, directory / "manifest.json", study.workspace.path):
        with merlin.open_shards(path) as ens:
            assert ens.path == directory and len(ens) == 3
    shutil.copytree(directory, study.workspace.path / "other")
    with pytest.raises(NotADataSetError, match=r"holds 2 data sets; name one of them: .*other"):
        merlin.open_shards(study.workspace.path)


@pytest.mark.parametrize("name", ["collect", "."])
def test_the_process_may_change_its_directory(tmp_path, monkeypatch, name):
    study = make_study(tmp_path / "w", num=3)
    study.not_run = {(0, 0)}
    study.collect_all()
    directory = study.finish()
    monkeypatch.chdir(directory if name == "." else directory.parent)
    ens = merlin.open_shards(name)
    monkeypatch.chdir("/")
    for reader in (ens, pickle.loads(pickle.dumps(ens))):
        assert reader["count"][:].tolist() == [1, 2]
        assert len(reader.query_table("select x")) == 3


@pytest.mark.parametrize("text", ["[" * 100_000, '{"counts": {"planned": "x", "ok": "x"}}', "{}", ""])
def test_a_senseless_manifest_is_a_damaged_data_set_that_counts_nothing(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ShardError, match="manifest"):
        merlin.open_shards(tmp_path)
    assert counts_of(tmp_path) is None


def test_nobody_waits_for_a_pipe_in_the_place_of_a_manifest(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(NotADataSetError):
        merlin.open_shards(tmp_path)
    assert counts_of(tmp_path) is None


def test_every_row_is_planned_or_absent(ens):
    assert ens.row.tolist() == PRESENT
    assert ens.manifest.counts.planned == NUM
