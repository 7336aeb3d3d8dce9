"""Readers and the files under them: damage, replacement, limits, and machines that cannot map as we like."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from reading_data import PRESENT, make_reading_study, ragged_of
from shard_study import make_study, values_of

import merlin
from merlin.errors import ShardError
from merlin.plan.plan import PlannedField
from merlin.shards.format.shard_info import read_info
from merlin.shards.reading import mapped_column, shard_file, shard_files, store
from merlin.shards.reading.address_range import PAGE, AddressRange, map_file
from merlin.shards.reading.sharing import Cache

pytestmark = pytest.mark.usefixtures("garbage_of_others")

TRUTH = values_of(np.array(PRESENT))
EVERY = np.random.default_rng(1).permutation(len(PRESENT))

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Data sets by compression, to be copied."""
    root = tmp_path_factory.mktemp("files")
    return {name: make_reading_study(root / name, compression=name).finish() for name in ("none", "gzip")}


@pytest.fixture(params=["none", "gzip"])
def path(request, made, tmp_path):
    return shutil.copytree(made[request.param], tmp_path / "data")


def assert_all_right(ens):
    batch = ens.batch(EVERY, ["image", "energy", "note", "history", "track"])
    for name in ("image", "energy", "note", "history"):
        np.testing.assert_array_equal(batch[name], TRUTH[name][EVERY])
        np.testing.assert_array_equal(ens[name][5:30], TRUTH[name][5:30])
    for found, expected in zip(ens["track"], ragged_of(np.array(PRESENT))["track"], strict=True):
        np.testing.assert_array_equal(found, expected)


# damage


def test_a_missing_shard_is_an_error_that_names_it(path):
    (path / "shard_00001.h5").unlink()
    ens = merlin.open_shards(path)
    assert ens["image"][3, 0, 0, 0] == TRUTH["image"][3, 0, 0, 0]
    for read in (lambda: ens["image"][25], lambda: ens["note"][25], lambda: ens.batch([25], ["energy"])):
        with pytest.raises(
            ShardError, match=r"shard_00001\.h5: the file is missing; run merlin shards verify"
        ):
            read()


@pytest.mark.parametrize("size", [0, 4, 3000, -1, -5000])
def test_a_truncated_shard_is_an_error_and_not_a_signal(path, size):
    file = path / "shard_00002.h5"
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    ens = merlin.open_shards(path)
    with pytest.raises(ShardError, match=r"shard_00002\.h5: cannot be read.*run merlin shards verify"):
        ens.batch(EVERY, ["image"])
    assert ens["energy"][0] == TRUTH["energy"][0]


def test_a_shard_in_the_place_of_another_is_foreign(path):
    shutil.copy(path / "shard_00000.h5", path / "shard_00001.h5")
    with pytest.raises(
        ShardError, match=r"shard_00001\.h5: a foreign shard: number 0 with rows 0 to 20, where 1"
    ):
        merlin.open_shards(path)["image"][:]


def test_a_shard_of_another_study_is_foreign(path):
    with h5py.File(path / "shard_00001.h5", "r+") as file:
        file.attrs["study_id"] = "another"
    with pytest.raises(ShardError, match=r"shard_00001\.h5: a foreign shard, of study another"):
        merlin.open_shards(path)["image"][:]


def test_a_shard_of_another_version_is_refused(path):
    with h5py.File(path / "shard_00000.h5", "r+") as file:
        file.attrs["version"] = 99
    with pytest.raises(ShardError, match=r"expected merlin-shard version 1, found merlin-shard 99"):
        merlin.open_shards(path)["energy"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.__delitem__("fields/energy"), "there is no 'fields/energy' in it"),
        (lambda f: f.move("fields/count", "fields/energy"), "fields/energy is int32, expected float64"),
        (
            lambda f: f.create_dataset("fields/energy", data=np.zeros(3)),
            r"has shape \(3,\), expected \(18,\)",
        ),
    ],
)
def test_a_shard_with_other_columns_is_an_error(path, change, words):
    with h5py.File(path / "shard_00000.h5", "r+") as file:
        if "there is no" not in words:
            del file["fields/energy"]
        change(file)
    with pytest.raises(ShardError, match=words):
        merlin.open_shards(path)["energy"][0]


def test_a_damaged_chunk_is_an_error_that_names_the_items(made, tmp_path):
    path = shutil.copytree(made["gzip"], tmp_path / "data")
    (image,) = (d for d in read_info(path / "shard_00001.json").datasets if d.name == "fields/image")
    content = bytearray((path / "shard_00001.h5").read_bytes())
    extent = image.extents[0]
    content[extent.offset + 5 : extent.offset + extent.nbytes] = bytes(extent.nbytes - 5)
    (path / "shard_00001.h5").write_bytes(content)
    ens = merlin.open_shards(path)
    with pytest.raises(
        ShardError, match=r"shard_00001\.h5: fields/image, items 0 to \d+: .*run merlin shards verify"
    ):
        ens["image"][20]
    assert ens["energy"][20] == TRUTH["energy"][20]


# replacement


def rewrite(path):
    """Another file of the same content under the same name, as repairing writes it."""
    shutil.copy(path, path.with_suffix(".new"))
    with h5py.File(path.with_suffix(".new"), "r+") as file:
        file.attrs["created"] = "2027-01-01T00:00:00+00:00"
    path.with_suffix(".new").replace(path)


def test_shards_may_be_replaced_while_they_are_read(path):
    ens = merlin.open_shards(path)
    view, first = ens["image"][2:9], ens["energy"][3]
    for shard in path.glob("shard_*.h5"):
        rewrite(shard)
    np.testing.assert_array_equal(view, TRUTH["image"][2:9])
    assert first == TRUTH["energy"][3]
    assert_all_right(ens)
    for shard in path.glob("shard_*.h5"):
        rewrite(shard)
    assert_all_right(ens)


@pytest.mark.parametrize("mapped", [mapped_column.MappedColumn, None])
def test_where_columns_lay_is_forgotten_with_the_file_that_is_replaced(path, monkeypatch, mapped):
    monkeypatch.setattr(store, "MappedColumn", mapped or refuse)
    ens = merlin.open_shards(path)
    ens.prepare(["fields/energy", "fields/image", "fields/note"])
    for shard in path.glob("shard_*.h5"):
        shutil.copy(shard, shard.with_suffix(".new"))
        with h5py.File(shard.with_suffix(".new"), "r+") as file:
            for name in ("fields/image", "fields/energy"):
                values, chunks = file[name][()], file[name].chunks
                file[name][...] = 0  # where the values were
                file.move(name, f"old/{name}")
                file.create_dataset(name, data=values, chunks=chunks, compression=chunks and "gzip")
        shard.with_suffix(".new").replace(shard)
    for name in ("image", "energy", "note"):
        np.testing.assert_array_equal(ens[name][EVERY], TRUTH[name][EVERY])


TRACK = (PlannedField(name="track", kind="ragged", ragged=True, dtype="float64"),)


def run_tracks(study, lo, hi, num_items, add=0.0, attempt=1):
    """Task t has `num_items` items or up to two more, all of them t + `add`."""
    tracks = np.empty(hi - lo, object)
    tracks[:] = [np.full(num_items + task % 3, task + add) for task in range(lo, hi)]
    study.collect(lo, hi, outputs={"track": tracks}, attempt=attempt)


def tracks_study(path, **more):
    study = make_study(path, num=40, fields=TRACK, **more)
    run_tracks(study, 0, 40, 3)
    study.finish()
    return study


@pytest.mark.parametrize("num_items", [150, 3000])
def test_a_shard_with_many_more_items_leaves_the_others_alone(tmp_path, num_items):
    study = tracks_study(tmp_path / "w")
    ens = merlin.open_shards(study.directory)
    handed_out = ens["track"][20:30]
    run_tracks(study, 0, 20, num_items, add=100.0, attempt=2)
    study.write_shard(0)
    for task in (0, 17, 20, 39):
        expected = np.full(num_items + task % 3, task + 100.0) if task < 20 else np.full(3 + task % 3, task)
        np.testing.assert_array_equal(ens["track"][task], expected)
    np.testing.assert_array_equal(handed_out[0], [20.0] * 5)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_new_values_are_not_cut_where_the_old_ones_were(tmp_path, compression):
    study = tracks_study(tmp_path / "w", compression=compression)
    ens = merlin.open_shards(study.directory)
    assert ens["track"].lengths[:3].tolist() == [3, 4, 5]
    run_tracks(study, 0, 20, 5, add=100.0, attempt=2)
    study.write_shard(0)
    for _ in range(2):
        with pytest.raises(
            ShardError, match=r"shard_00000\.h5: .* the study writes it again; open the data set"
        ):
            ens["track"][17]
    np.testing.assert_array_equal(ens["track"][20], [20.0] * 5)
    again = merlin.open_shards(study.directory)
    np.testing.assert_array_equal(again["track"][17], [117.0] * 7)


def test_a_shard_that_got_more_rows_is_not_called_damaged(tmp_path):
    study = make_study(tmp_path / "w")
    study.not_run = {(0, 7)}
    study.collect_all()
    study.finish()
    study.not_run = set()
    study.collect(7, 8)
    study.write_shard(0)
    with pytest.raises(
        ShardError, match=r"has shape \(20,\), expected \(19,\): the study writes it again; open"
    ):
        merlin.open_shards(study.directory)["energy"][0]


def test_a_shard_that_is_gone_is_still_read_where_it_is_mapped(made, tmp_path):
    path = shutil.copytree(made["none"], tmp_path / "data")
    ens = merlin.open_shards(path)
    ens["image"][:]
    shutil.rmtree(path)
    np.testing.assert_array_equal(ens["image"][:], TRUTH["image"])


def test_a_data_set_can_be_closed_and_read_again(path):
    ens = merlin.open_shards(path)
    for _ in range(2):
        assert_all_right(ens)
        ens.close()


# limits


def usage(path):
    """Open files below `path`, and maps of them; whatever else the process has open may come and go."""
    gc.collect()
    files, below = 0, f"{path.resolve()}/"
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            files += str(descriptor.readlink()).startswith(below)
    return files, Path("/proc/self/maps").read_text().count(below)


@linux
def test_epochs_take_no_more_files_and_maps(path):
    ens = merlin.open_shards(path, threads=2)
    out = ens.allocate(8, ["image", "energy", "note"])
    seen = []
    for _ in range(4):
        for lo in range(0, 40, 8):
            ens.batch(EVERY[lo : lo + 8], out=out)
            ens["track"][EVERY[lo : lo + 8]]
        seen.append(usage(path))
    assert seen[1:] == seen[:1] * 3
    ens.close()
    del ens, out
    assert usage(path) == (0, 0)


@linux
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_many_shards_need_few_files_and_maps(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(shard_files, "MAX_HANDLES", 3)
    for module in (shard_files, store):
        monkeypatch.setattr(module, "map_limit", lambda: 20)
    study = make_reading_study(tmp_path / "w", per_shard=2, compression=compression)
    path = study.finish()
    ens = merlin.open_shards(path)
    assert len(ens.manifest.shards) == 25
    for _ in range(2):
        assert_all_right(ens)
        files = ens._store.files
        assert len(files._handles) <= 3 and len(files._maps) <= 10
        assert usage(path)[1] <= 20


def test_each_of_many_shards_is_opened_a_few_times_for_all_columns(path, monkeypatch):
    monkeypatch.setattr(shard_files, "MAX_HANDLES", 1)
    opened = []

    class Counted(h5py.File):
        def __init__(self, name, *args, **kwargs):
            opened.append(name)
            super().__init__(name, *args, **kwargs)

    monkeypatch.setattr(h5py, "File", Counted)
    names = ["energy", "image", "history", "track"]
    with merlin.open_shards(path) as ens:
        num_shards = len(ens.manifest.shards)
        assert num_shards > 2
        ens.prepare(["fields/energy", "fields/image", "fields/history", "fields/track"])
        assert len(opened) == num_shards
        ens.batch(EVERY, names)
        assert len(opened) == num_shards
        assert len(ens.query("energy = energy and x = x and y = y")) == len(ens)
        assert len(opened) <= 2 * num_shards
    opened.clear()
    with merlin.open_shards(path) as ens:
        for name in (*names, "note"):
            ens[name][:]
        ens.inputs["x"][:]
        assert len(opened) <= 5 * num_shards


def test_chunks_are_kept_up_to_a_limit(made):
    ens = merlin.open_shards(made["gzip"], cache_bytes=100_000)
    assert_all_right(ens)
    assert 0 < ens._store._cache.size <= 100_000
    none = merlin.open_shards(made["gzip"], cache_bytes=0)
    assert_all_right(none)
    assert none._store._cache.size == 0


def test_what_was_used_longest_ago_leaves_the_cache_first():
    cache = Cache(240)
    for i in range(3):
        cache.put(i, np.full(10, float(i)))
    assert cache.get(0) is not None
    cache.put(3, np.zeros(10))
    assert [i for i in range(4) if cache.get(i) is not None] == [0, 2, 3]
    cache.put(4, np.zeros(100))
    assert cache.get(4) is None and cache.size == 240
    cache.put(0, np.zeros(5))
    assert cache.size == 200
    cache.put("text", np.array(["a" * 500], object))
    assert cache.get("text") is None


# other ways of reading


def refuse(*_):
    raise OSError(12, "cannot allocate memory")


@pytest.mark.parametrize(
    "broken",
    [
        (store, "MappedColumn", refuse),
        (AddressRange, "__init__", refuse),
        (AddressRange, "place", refuse),
        (mapped_column, "PAGE", 1 << 16),
        (mapped_column, "_COPIED_BYTES", 0),
        (mapped_column, "_MAX_BYTES", 1 << 12),
        (shard_file, "make_pipeline", lambda filters, size: None),
    ],
    ids=lambda broken: broken[1],
)
def test_the_values_are_the_same_on_other_machines(path, monkeypatch, broken):
    if broken[0] is AddressRange:
        monkeypatch.setattr(
            shard_file, "map_file", lambda fd: np.frombuffer(os.pread(fd, 1 << 30, 0), np.uint8)
        )
    monkeypatch.setattr(*broken)
    assert_all_right(merlin.open_shards(path))


def test_files_are_mapped_where_one_range_cannot_be_had(made, monkeypatch):
    monkeypatch.setattr(store, "MappedColumn", refuse)
    ens = merlin.open_shards(made["none"])
    assert_all_right(ens)
    assert not ens["image"][2:9].flags.owndata and not ens["image"][2:9].flags.writeable


def test_rows_that_do_not_fill_pages_lie_in_one_range_too(tmp_path):
    """1001 bytes: no shard ends at a page, and no two begin alike."""
    field = PlannedField(name="odd", kind="series", dtype="uint8", shape=(1001,))
    study = make_study(tmp_path / "w", num=60, per_shard=17, fields=(field,))
    values = np.random.default_rng(0).integers(0, 255, (60, 1001)).astype(np.uint8)
    study.collect(0, 60, outputs={"odd": values})
    ens = merlin.open_shards(study.finish())
    where = np.random.default_rng(1).integers(0, 60, 200)
    np.testing.assert_array_equal(ens["odd"][where], values[where])
    np.testing.assert_array_equal(ens["odd"][:], values)
    np.testing.assert_array_equal(ens["odd"][10:40], values[10:40])
    np.testing.assert_array_equal(ens["odd"][18:30], values[18:30])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_data_set_without_any_row_can_be_read(tmp_path, compression):
    study = make_reading_study(tmp_path / "w", compression=compression)
    study.failures = {(0, task): "broken" for task in range(50)}
    ens = merlin.open_shards(study.finish())
    assert len(ens) == 0
    assert ens.batch([])["image"].shape == (0, 6, 5, 2)
    assert ens["image"][:].shape == (0, 6, 5, 2) and len(ens["track"][:]) == 0
    assert ens["mesh"][[]]["ptr"].tolist() == [0]
    assert len(ens.query("energy > 0")) == 0 and len(ens.to_pandas()) == 0
    assert ens.query_table("select outcome, count(*) group by all").rows == [("failed", 50)]


# address ranges


@linux
def test_a_range_holds_pieces_of_files_and_copies(tmp_path):
    content = np.random.default_rng(0).integers(0, 256, 3 * PAGE, dtype=np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    found = AddressRange(4 * PAGE)
    found.place(0, descriptor, PAGE, PAGE + 10)
    found.write(2 * PAGE, b"abc")
    for wrong in ((1, 0, 10), (0, 1, 10), (4 * PAGE, 0, 1), (0, 0, 3 * PAGE + 1), (-PAGE, 0, 1)):
        with pytest.raises(ValueError, match=r"placed|ends before"):
            found.place(wrong[0], descriptor, *wrong[1:])
    with pytest.raises(ValueError, match="cannot be put"):
        found.write(4 * PAGE, b"x")
    os.close(descriptor)
    values = found.array(np.dtype(np.uint8), (PAGE + 10,))
    with pytest.raises(ValueError, match="leaves the range"):
        found.array(np.dtype(np.float64), (PAGE,))
    copied = found.array(np.dtype("S1"), (3,), at=2 * PAGE)
    address = found.address
    del found
    np.testing.assert_array_equal(values, content[PAGE : 2 * PAGE + 10])
    assert copied.tolist() == [b"a", b"b", b"c"]
    assert not values.flags.writeable
    del values, copied
    gc.collect()
    assert f"{address:x}-" not in Path("/proc/self/maps").read_text()


def test_an_empty_file_has_no_bytes(tmp_path):
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    assert len(map_file(descriptor)) == 0
    os.close(descriptor)
