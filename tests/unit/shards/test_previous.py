"""Rows are taken from damaged and from older shards if, and only if, they are proven."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import h5py
import numpy as np
import pytest
from damage_tools import extents_of, flip
from reading_data import PRESENT, make_reading_study
from shard_study import make_study

from merlin.base import compression as codecs
from merlin.errors import ShardError
from merlin.shards.evidence.previous import ProvenRows, previous_rows
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.format.shard_info import next_info_name, read_info
from merlin.shards.proving.reread import filtered_in, reread_info
from merlin.shards.proving.verify import verify
from merlin.shards.writing.gather import write_shard

ROWS = [r for r in PRESENT if 20 <= r < 40]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return make_reading_study(tmp_path_factory.mktemp("intact") / "w").finish()


@pytest.fixture
def data(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "w" / "collect")


@pytest.fixture
def proven():
    """Opens the proven rows of a shard, to be closed at the end of the test."""
    with ExitStack() as stack:

        def open_rows(data, shard=1):
            name = f"shard_{shard:05d}"
            rows = ProvenRows(data / f"{name}.h5", read_info(data / f"{name}.json"))
            stack.callback(rows.close)
            return rows

        yield open_rows


def assert_same(found, path, fields):
    """What is proven reads as it does in the intact file."""
    with h5py.File(path) as file:
        places = [file["row"][()].tolist().index(row) for row in found.rows.tolist()]
        for name in fields:
            node = file["fields"][name]
            if isinstance(node, h5py.Group):
                ends = node["offsets"][()]
                items = [node["values"][ends[p] : ends[p + 1]] for p in places]
                offsets = found.offsets(f"fields/{name}")
                assert np.diff(offsets).tolist() == [len(i) for i in items]
                out = np.empty((int(offsets[-1]), *node["values"].shape[1:]), node["values"].dtype)
                for lo in range(0, len(out), 5):
                    found.read(f"fields/{name}/values", lo, out[lo : lo + 5])
                assert np.array_equal(out, np.concatenate(items))
                continue
            is_text = node.dtype.kind == "O"
            out = np.empty((len(places), *node.shape[1:]), object if is_text else node.dtype)
            for lo in range(0, len(out), 7):
                found.read(f"fields/{name}", lo, out[lo : lo + 7])
            expected = node.asstr()[()][places] if is_text else node[()][places]
            assert np.array_equal(out, expected)


NAMES = ("energy", "history", "image", "note", "track", "hits", "mesh/nodes", "mesh/targets")


@pytest.mark.parametrize("compression", ["none", "blosc2"])
def test_an_intact_shard_has_all_rows_proven(tmp_path, compression, proven):
    data = make_reading_study(tmp_path / "w", compression=compression).finish()
    found = proven(data)
    assert found.rows.tolist() == found.given.tolist() == ROWS
    assert found.attempts.tolist() == [1] * len(ROWS)
    assert_same(found, data / "shard_00001.h5", NAMES)


def test_the_rows_around_damage_are_read_as_they_were(data, intact, proven):
    places = {name: offset for name, offset, _ in extents_of(data, 1)}
    flip(data / "shard_00001.h5", places["fields/energy"] + 8 * 4)
    flip(data / "shard_00001.h5", places["fields/mesh/nodes/offsets"] + 8 * 9)
    found = proven(data)
    assert found.rows.tolist() == [r for i, r in enumerate(ROWS) if i not in (4, 8, 9)]
    assert_same(found, intact / "shard_00001.h5", NAMES)


def test_rows_of_an_older_version_are_found_where_they_are(data, intact, tmp_path, proven):
    study = make_reading_study(tmp_path / "older")
    study.failures |= {(0, 25): "not yet", (0, 33): "not yet"}
    shutil.copy(study.finish() / "shard_00001.h5", data / "shard_00001.h5")
    found = proven(data)
    assert found.rows.tolist() == [r for r in ROWS if r not in (25, 33)]
    assert_same(found, intact / "shard_00001.h5", NAMES)


def test_a_row_of_other_values_is_not_proven_although_its_file_is_whole(data, tmp_path, proven):
    study = make_reading_study(tmp_path / "other")
    outputs = {name: values[:] for name, values in study_values(study, 20, 27).items()}
    outputs["energy"][3] += 1
    study.collect(20, 27, outputs=outputs, ok=[t in PRESENT for t in range(20, 27)], attempt=2)
    shutil.copy(study.finish() / "shard_00001.h5", data / "shard_00001.h5")
    assert proven(data).rows.tolist() == [r for r in ROWS if r != 23]


def study_values(study, lo, hi):
    from reading_data import ragged_of
    from shard_study import values_of

    tasks = np.arange(lo, hi)
    outputs = values_of(tasks)
    for name, rows in ragged_of(tasks).items():
        column = np.empty(len(tasks), object)
        column[:] = rows
        outputs[name] = np.array(rows) if name == "mesh.targets" else column
    return outputs


def test_nothing_is_proven_without_check_values(data):
    import msgspec.structs

    info = msgspec.structs.replace(read_info(data / "shard_00001.json"), checks="")
    with pytest.raises(ShardError, match="check values of 0 of 16 rows"):
        ProvenRows(data / "shard_00001.h5", info)


# ------------------------------------------------------------------------------------------------ packing again


def test_a_shard_is_packed_again_from_its_proven_rows_and_what_ran_again(tmp_path):
    study = make_study(tmp_path / "w")
    study.collect_all()
    directory = study.finish()
    before = read_manifest(directory)
    place = next(o for name, o, _ in extents_of(directory, 1, "fields/count"))
    flip(directory / "shard_00001.h5", place + 4 * 6)
    assert not verify(directory).ok
    with pytest.raises(ShardError, match="nothing holds row 26,"):
        study.write_shard(1)
    study.collect(26, 27, attempt=2)
    study.write_shard(1)
    info = read_info(directory / "shard_00001.json")
    assert info.content_digest == before.shards[1].content_digest
    with h5py.File(directory / "shard_00001.h5") as file:
        assert file["provenance/attempt"][5:8].tolist() == [1, 2, 1]


def test_a_writer_may_be_killed_at_any_rename(tmp_path):
    """The proof of the new shard is there before the shard is, and is found under either name."""
    study = make_study(tmp_path / "w")
    study.collect_all()
    directory = study.finish()
    digest = read_manifest(directory).shards[0].content_digest
    sidecar, following = directory / "shard_00000.json", directory / next_info_name(0)
    sidecar.rename(following)  # the shard has its name, its sidecar not yet
    info = write_shard(study.workspace, study.aggregate, 0, [])
    assert (info.content_digest, following.exists()) == (digest, False)
    shutil.copy(sidecar, following)  # and killed before the shard got its name
    found, problems = previous_rows(directory, 0)
    for source in found:
        source.close()
    assert [source.rows.tolist() for source in found] == [list(range(20))] * 2
    assert problems == []


def test_what_a_killed_writer_left_of_a_sidecar_is_gone_when_the_data_set_is_finished(tmp_path):
    study = make_study(tmp_path / "w")
    study.collect_all()
    study.write_shards()
    (study.directory / next_info_name(0)).write_text("{}")
    (study.directory / f"{next_info_name(1)}.4711.tmp").write_text("{")
    directory = study.finish()
    assert not list(directory.glob("*.next*"))


def test_a_shard_without_sidecar_gives_no_rows_and_says_what_to_do(data):
    (data / "shard_00001.json").unlink()
    found, problems = previous_rows(data, 1)
    assert found == []
    assert "merlin shards verify" in problems[0]


# ------------------------------------------------------------------------------------------------ lost sidecars


@pytest.mark.parametrize("compression", codecs.NAMES)
def test_a_lost_sidecar_is_told_again_to_the_last_digit(tmp_path, compression):
    directory = make_reading_study(tmp_path / "w", compression=compression).finish()
    data = read_manifest(directory)
    for entry in data.shards:
        info = reread_info(data, entry, filtered_in(data, entry.lo, entry.hi))
        assert info.to_json() == (directory / f"shard_{entry.shard:05d}.json").read_text()
