"""Damage is found, wherever it is, and named."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
from shard_study import make_study

from merlin.errors import NotADataSetError, ShardError
from merlin.shards.verify import verify


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    study = make_study(tmp_path_factory.mktemp("intact") / "w")
    study.not_run = {(0, 3)}
    study.collect_all()
    return study.finish()


@pytest.fixture
def data(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "data")


def flip(path, offset, bit=1):
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def test_an_intact_data_set_is_ok_and_progress_reaches_the_end(data):
    seen = []
    assert verify(data, lambda done, total: seen.append((done, total))).ok
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_byte_anywhere_in_a_shard_is_found(data, seed):
    random = np.random.default_rng(seed)
    path = data / "shard_00001.h5"
    content = path.read_bytes()
    for offset in random.integers(0, len(content), 40).tolist():
        flip(path, offset, 1 << int(random.integers(8)))
        report = verify(data)
        assert not report.ok, offset
        assert {p.file for p in report.problems} == {"shard_00001.h5"}
        path.write_bytes(content)
    assert verify(data).ok


@pytest.mark.parametrize("name", ["shard_00001.json", "ensemble.h5"])
def test_a_flipped_byte_in_any_other_file_is_found(data, name):
    path = data / name
    for offset in (0, path.stat().st_size // 2, path.stat().st_size - 1):
        flip(path, offset)
        assert name in {p.file for p in verify(data).problems}
        flip(path, offset)


def test_a_flipped_byte_in_the_manifest_is_found(data):
    text = (data / "manifest.json").read_text()
    (data / "manifest.json").write_text(text.replace('"planned": 50', '"planned": 51'))
    with pytest.raises(ShardError, match="digest does not fit"):
        verify(data)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_damage_in_values_names_the_data_set_and_the_rows(tmp_path, compression):
    study = make_study(tmp_path, num=200, per_shard=200, compression=compression)
    study.collect_all(chunk=50)
    info = study.write_shard(0)
    directory = study.finish()
    dataset = next(d for d in info.datasets if d.name == "fields/image")
    extent = dataset.extents[-1]
    flip(directory / "shard_00000.h5", extent.offset + extent.nbytes - 1)
    (problem,) = verify(directory).problems
    assert (problem.kind, problem.dataset) == ("damaged", "fields/image")
    assert problem.rows == problem.samples == ((extent.lo, extent.hi),)


def test_damage_in_text_names_its_column(data):
    content = (data / "shard_00002.h5").read_bytes()
    flip(data / "shard_00002.h5", content.index("täsk 45".encode()) + 1)
    (problem,) = verify(data).problems
    assert problem.dataset == "fields/note"


def test_a_truncated_shard_is_found_with_the_rows_it_lost(data):
    path = data / "shard_00000.h5"
    path.write_bytes(path.read_bytes()[:5000])
    problems = verify(data).problems
    assert problems[0].kind == "truncated"
    assert problems[0].rows
    assert all(not (a <= 3 < b) for a, b in problems[0].rows)  # row 3 was never there


@pytest.mark.parametrize("name", ["shard_00001.h5", "shard_00001.json", "ensemble.h5"])
def test_a_missing_file_is_found(data, name):
    (data / name).unlink()
    assert ("missing file", name) in {(p.kind, p.file) for p in verify(data).problems}


def test_a_shard_of_another_data_set_is_found_even_with_its_sidecar(data, tmp_path):
    other = make_study(tmp_path / "other")
    other.collect_all()
    other.finish()
    for name in ("shard_00000.h5", "shard_00000.json"):
        shutil.copy(other.directory / name, data / name)
    assert not verify(data).ok


def test_a_path_without_manifest_is_not_a_data_set(tmp_path):
    with pytest.raises(NotADataSetError, match="has no manifest"):
        verify(tmp_path)


def test_a_manifest_of_a_newer_version_is_refused(data):
    content = json.loads((data / "manifest.json").read_text())
    content["version"] = 99
    (data / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ShardError, match="expected merlin-dataset version 1, found merlin-dataset 99"):
        verify(data)


def test_counts_that_do_not_add_up_are_found_in_a_manifest_that_is_consistent_otherwise(data):
    from merlin.shards.manifest_file import manifest_text

    content = json.loads((data / "manifest.json").read_text())
    del content["digest"]
    content["counts"]["missing"] = 0
    (data / "manifest.json").write_text(manifest_text(content))
    (problem,) = verify(data).problems
    assert problem.kind == "counts"
    assert "planned 50 ≠ ok 49" in problem.message


def test_duplicate_and_foreign_rows_are_found_in_a_shard_whose_digests_all_fit(data):
    """Whoever writes digests may be wrong about rows: the rows are checked on their own."""
    from merlin.shards import verify as module
    from merlin.shards.manifest_file import read_manifest

    path = data / "shard_00001.h5"
    with h5py.File(path, "r+") as file:
        rows = file["row"][:]
        rows[1], rows[2] = rows[0], 777
        file["row"][:] = rows
    manifest = read_manifest(data)
    entry = manifest.shards[1]
    problems = list(module._check_rows(manifest, entry, path, np.arange(entry.lo, entry.hi)))
    assert [p.message for p in problems] == [
        "rows that are in it more than once: 20",
        "rows that do not belong in it: 777",
        "rows that it should hold and does not: 21-22",
        "rows with another sample's id: 20, 777",
    ]
