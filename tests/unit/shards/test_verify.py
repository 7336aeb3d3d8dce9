"""Damage is found wherever it is, called by its name, and told down to the sample."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import warm_probes
from damage_tools import changed_rows, edit_manifest, extents_of, flip, lost, numbers, values_by_row
from msgspec.structs import replace
from reading_data import PRESENT, make_reading_study
from shard_study import FIELDS, make_study

from merlin.base.compression import NAMES
from merlin.errors import NotADataSetError
from merlin.ledger.records import RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan_io import write_plan
from merlin.plan.tasks import Outcome
from merlin.shards.evidence import probe
from merlin.shards.format.digest import digest_bytes
from merlin.shards.format.shard_info import read_info
from merlin.shards.format.statistics import Statistics
from merlin.shards.proving.verify import verify


@pytest.fixture(autouse=True)
def _files_are_probed_by_processes_that_have_loaded_h5py(monkeypatch):
    monkeypatch.setattr(probe, "subprocess", warm_probes())


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Scalars, series, images, texts, ragged fields and a graph; absent rows of every kind; three shards."""
    return make_reading_study(tmp_path_factory.mktemp("intact") / "w").finish()


@pytest.fixture
def data(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "w" / "collect")


def kinds(report):
    return {(p.kind, p.file) for p in report.problems}


def only(report):
    (found,) = report.problems
    return found


# ------------------------------------------------------------------------------------------------ intact


@pytest.mark.parametrize("compression", NAMES)
def test_an_intact_data_set_is_ok_and_every_byte_is_counted(tmp_path, compression):
    directory = make_reading_study(tmp_path / "w", compression=compression).finish()
    seen = []
    report = verify(directory, lambda done, total: seen.append((done, total)), workers=2)
    assert report.ok, [p.render() for p in report.problems]
    assert (report.num_rows, report.num_read) == (len(PRESENT), report.size_bytes)
    assert seen[-1] == (report.size_bytes, report.size_bytes)
    quick = verify(directory, quick=True)
    assert quick.ok
    assert quick.num_read == 0


# ------------------------------------------------------------------------------------------------ flipped bytes


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_byte_in_values_names_exactly_the_samples_that_changed(tmp_path, compression, seed):
    """What changed is read with h5py from the file before and after."""
    random = np.random.default_rng(seed)
    directory = make_reading_study(tmp_path / "w", compression=compression).finish()
    path = directory / "shard_00001.h5"
    content, before = path.read_bytes(), values_by_row(path)
    extents = extents_of(directory, 1, "fields/")
    for i in random.permutation(len(extents))[:8]:
        name, offset, size = extents[i]
        flip(path, offset + int(random.integers(size)), 1 << int(random.integers(8)))
        report = verify(directory)
        assert kinds(report) == {("flipped bytes", path.name)}
        try:
            changed = changed_rows(before, values_by_row(path))
        except (OSError, ValueError):  # it cannot be decompressed, or offsets lead nowhere
            changed = None
        if changed is not None:
            assert lost(report) == changed, name
        assert only(report).dataset == name
        assert only(report).rows == only(report).samples
        assert only(report).lost in ((), only(report).rows)  # (): it decodes to the same values
        path.write_bytes(content)
    assert verify(directory).ok


def test_a_byte_flipped_anywhere_in_a_shard_is_found(data):
    """Also where HDF5 does not come back from reading it."""
    random = np.random.default_rng(7)
    path = data / "shard_00001.h5"
    content = path.read_bytes()
    for offset in random.integers(0, len(content), 8).tolist():
        flip(path, offset, 1 << int(random.integers(8)))
        report = verify(data)
        assert not report.ok, offset
        assert {p.file for p in report.problems} == {path.name}
        assert not verify(data, quick=True).ok or all(p.dataset for p in report.problems), offset
        path.write_bytes(content)


def test_damage_at_two_places_names_both_samples_and_no_other(data):
    path, before = data / "shard_00000.h5", values_by_row(data / "shard_00000.h5")
    places = {name: offset for name, offset, _ in extents_of(data, 0, "fields/")}
    flip(path, places["fields/energy"] + 8 * 3)
    flip(path, places["fields/image"] + 240 * 9 + 5)
    report = verify(data)
    assert lost(report) == changed_rows(before, values_by_row(path)) == [PRESENT[3], PRESENT[9]]
    assert {p.dataset for p in report.problems} == {"fields/energy", "fields/image"}


def test_a_flipped_byte_in_a_text_names_its_sample(data):
    path = data / "shard_00002.h5"
    flip(path, path.read_bytes().index("täsk 45".encode()) + 1)
    found = only(verify(data))
    assert (found.kind, found.dataset, found.lost) == ("flipped bytes", "fields/note", ((45, 46),))


def test_a_heap_that_makes_hdf5_loop_for_ever_is_read(data):
    """An object of size 0 in the collection of texts."""
    path = data / "shard_00002.h5"
    content = bytearray(path.read_bytes())
    at = content.index("täsk 45".encode())
    content[at - 8 : at] = bytes(8)
    path.write_bytes(content)
    report = verify(data)
    assert 45 in lost(report)
    assert {p.dataset for p in report.problems} == {"fields/note"}


def test_damage_to_inputs_loses_no_sample_and_names_those_it_concerns(data):
    (place,) = [offset for name, offset, _ in extents_of(data, 1, "inputs/x")]
    flip(data / "shard_00001.h5", place + 8 * 2 + 3)
    found = only(verify(data))
    row = [r for r in PRESENT if 20 <= r < 40][2]
    assert (found.kind, found.dataset, found.rows, found.lost) == (
        "flipped bytes",
        "inputs/x",
        ((row, row + 1),),
        (),
    )


def test_damage_between_the_values_concerns_no_sample(data):
    flip(data / "shard_00000.h5", data.joinpath("shard_00000.h5").read_bytes().index(b"total energy"))
    for quick in (False, True):
        found = only(verify(data, quick=quick))
        assert (found.kind, found.rows) == ("flipped bytes", ())
        assert "headers" in found.message


@pytest.mark.parametrize("field", ["track", "mesh/edges"])
def test_a_flipped_offset_names_the_samples_beside_it(data, field):
    path = data / "shard_00000.h5"
    (place,) = [o for name, o, _ in extents_of(data, 0, f"fields/{field}/offsets")]
    flip(path, place + 8 * 5)
    report = verify(data)
    assert only(report).dataset == f"fields/{field}/offsets"
    assert lost(report) == [PRESENT[4], PRESENT[5]]


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("quick", [False, True])
def test_a_missing_shard_has_lost_all_its_samples(data, quick):
    (data / "shard_00001.h5").unlink()
    found = only(verify(data, quick=quick))
    assert (found.kind, found.file) == ("missing file", "shard_00001.h5")
    assert numbers(found.lost) == numbers(found.samples) == [r for r in PRESENT if 20 <= r < 40]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_in_place_of_a_shard_is_one_more_damage(data, quick, make):
    (data / "shard_00001.h5").unlink()
    make(data / "shard_00001.h5")
    (data / "shard_00000.json").unlink()
    report = verify(data, quick=quick)
    assert kinds(report) == {("missing file", "shard_00000.json"), ("missing file", "shard_00001.h5")}
    assert numbers(report.problems[-1].lost) == [r for r in PRESENT if 20 <= r < 40]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.95])
def test_a_truncated_shard_has_lost_the_samples_beyond_its_end(tmp_path, compression, fraction):
    study = make_study(tmp_path / "w", num=200, per_shard=200, compression=compression, fields=FIELDS[:4])
    study.collect_all()
    directory = study.finish()
    path = directory / "shard_00000.h5"
    size = int(path.stat().st_size * fraction)
    info = read_info(directory / "shard_00000.json")
    path.write_bytes(path.read_bytes()[:size])
    if compression == "none":
        rows = [
            e.lo + max(0, size - e.offset) // (e.nbytes // (e.hi - e.lo))
            for d in info.datasets for e in d.extents if d.name.startswith("fields") and e.offset + e.nbytes > size
        ]  # fmt: skip
        expected = list(range(min(rows, default=200), 200))
    else:
        ends = [(e.lo, e.hi) for d in info.datasets for e in d.extents
                if d.name.startswith("fields") and e.offset + e.nbytes > size]  # fmt: skip
        expected = sorted({i for a, b in ends for i in range(a, b)})
    for quick in (False, True):
        report = verify(directory, quick=quick)
        assert ("truncated", path.name) in kinds(report)
        if fraction:
            assert lost(report) == expected
        else:
            assert lost(report) == list(range(200))


def test_a_longer_shard_is_found_and_has_lost_nothing(data):
    with (data / "shard_00001.h5").open("ab") as file:
        file.write(b"more")
    for quick in (False, True):
        report = verify(data, quick=quick)
        assert kinds(report) == {("flipped bytes", "shard_00001.h5")}
        assert lost(report) == []


@pytest.mark.parametrize("quick", [False, True])
def test_damage_to_the_virtual_data_set_is_found(data, quick):
    flip(data / "ensemble.h5", 900)
    assert kinds(verify(data, quick=quick)) == {("damaged ensemble", "ensemble.h5")}
    (data / "ensemble.h5").unlink()
    assert kinds(verify(data, quick=quick)) == {("missing file", "ensemble.h5")}


# ------------------------------------------------------------------------------------------------ schema, rows


def test_a_field_that_is_not_there_is_a_wrong_schema(data):
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        del file["fields/energy"]
    report = verify(data)
    assert {p.dataset for p in report.problems if p.kind == "wrong schema"} == {"fields/energy"}


def test_a_field_of_another_type_is_a_wrong_schema(data):
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        values = file["fields/energy"][()]
        del file["fields/energy"]
        file["fields/energy"] = values.astype("f4")
    found = [p for p in verify(data).problems if p.kind == "wrong schema"]
    assert [p.dataset for p in found] == ["fields/energy"]
    assert found[0].message == "expected <f8 (), found <f4 ()"
    rows = [r for r in PRESENT if 20 <= r < 40]
    assert set(numbers(found[0].lost)) <= set(
        rows
    )  # the old values may still lie where they were, and prove it


def test_ids_that_are_there_twice_or_do_not_belong_are_named(data):
    first = [r for r in PRESENT if 20 <= r < 40]
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        file["sample_id"][3] = first[0]
        file["sample_id"][5] = 777
    problems = {p.kind: p for p in verify(data).problems}
    assert set(problems) == {"duplicate sample id", "foreign sample id"}
    assert problems["duplicate sample id"].rows == ((first[3], first[3] + 1),)
    assert problems["foreign sample id"].rows == ((first[5], first[5] + 1),)
    assert not any(p.lost for p in problems.values())  # the fields of these rows are proven


def test_wrong_rows_are_found_in_a_shard_whose_digests_all_fit(data):
    """Whoever writes digests may be wrong about rows: the rows are checked on their own."""
    edit_manifest(data, lambda m: m["sources"][0].update(missing=[[0, 1], [22, 23], [23, 24]]))
    problems = {p.kind for p in verify(data).problems}
    assert problems == {"duplicate sample id", "foreign sample id"} or "foreign sample id" in problems


# ------------------------------------------------------------------------------------------------ other versions


def older_version(tmp_path, absent):
    """The same study without some rows, as before a restart."""
    study = make_reading_study(tmp_path / "older")
    study.failures |= {(0, task): "not yet" for task in absent}
    return study.finish()


@pytest.mark.parametrize("with_sidecar", [False, True])
def test_an_older_version_of_a_shard_lacks_only_the_rows_that_came_later(data, tmp_path, with_sidecar):
    older = older_version(tmp_path, [25, 33])
    names = ["shard_00001.h5", "shard_00001.json"] if with_sidecar else ["shard_00001.h5"]
    for name in names:
        shutil.copy(older / name, data / name)
    report = verify(data)
    assert ("count mismatch", "shard_00001.h5") in kinds(report)
    assert lost(report) == [25, 33]
    assert not verify(data, quick=True).ok


@pytest.mark.parametrize("with_sidecar", [False, True])
def test_a_shard_of_another_study_is_found(data, tmp_path, with_sidecar):
    other = make_reading_study(tmp_path / "other")
    plan = replace(other.workspace.plan, study_id="another")
    other.workspace = dataclasses.replace(other.workspace, plan=plan)
    other.finish()
    shutil.copy(other.directory / "shard_00001.h5", data / "shard_00001.h5")
    if with_sidecar:
        shutil.copy(other.directory / "shard_00001.json", data / "shard_00001.json")
    for quick in (False, True):
        report = verify(data, quick=quick)
        assert ("foreign shard", "shard_00001.h5") in kinds(report)
        assert lost(report) == []  # it holds the very same values, which is proven


def test_a_shard_of_another_place_has_lost_all_samples(data):
    shutil.copy(data / "shard_00000.h5", data / "shard_00001.h5")
    report = verify(data)
    assert kinds(report) == {("foreign shard", "shard_00001.h5")}
    assert lost(report) == [r for r in PRESENT if 20 <= r < 40]


# ------------------------------------------------------------------------------------------------ sidecars


@pytest.mark.parametrize("how", ["gone", "flipped", "empty"])
def test_a_shard_proves_itself_without_its_sidecar(data, how):
    path = data / "shard_00001.json"
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        text = path.read_text()
        path.write_text(text.replace('"rows": [', '"rows":  [', 1).replace('"checks": "', '"checks": "A', 1))
    else:
        path.write_text("")
    expected = ("missing file" if how == "gone" else "damaged sidecar", "shard_00001.json")
    for quick in (False, True):
        report = verify(data, quick=quick)
        assert kinds(report) == {expected}
        assert lost(report) == []


def test_python_files_of_the_user_do_not_matter(data, tmp_path, monkeypatch):
    (data / "shard_00001.json").unlink()
    for name in ("signal", "random", "merlin"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "subprocess", subprocess)
    assert lost(verify(data)) == []


def test_damage_without_a_sidecar_loses_the_whole_shard(data):
    (data / "shard_00001.json").unlink()
    name, offset, _ = extents_of(data, 0, "fields/energy")[0]
    flip(data / "shard_00001.h5", offset)
    report = verify(data)
    assert lost(report) == [r for r in PRESENT if 20 <= r < 40]
    assert name == "fields/energy"


def test_a_sidecar_of_another_run_over_the_same_values_is_told(data, tmp_path):
    again = make_reading_study(tmp_path / "again").finish()
    for name in ("shard_00001.h5", "shard_00001.json"):
        shutil.copy(again / name, data / name)
    report = verify(data)
    assert kinds(report) == {("damaged sidecar", "shard_00001.json")}
    assert lost(report) == []


# ------------------------------------------------------------------------------------------------ the manifest


def test_a_path_without_manifest_is_not_a_data_set(tmp_path):
    with pytest.raises(NotADataSetError, match="has no manifest"):
        verify(tmp_path)


def test_a_lost_manifest_is_damage_where_sidecars_show_that_there_was_one(data):
    (data / "manifest.json").unlink()
    assert kinds(verify(data)) == {("missing file", "manifest.json")}


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_a_damaged_manifest_is_damage(data, change):
    path = data / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"planned": 50', '"planned": 51') if change == "flip" else text[:500])
    report = verify(data)
    assert kinds(report) == {("damaged manifest", "manifest.json")}
    for sidecar in data.glob("shard_*.json"):
        sidecar.unlink()
    with pytest.raises(NotADataSetError):
        verify(data)


def finished_study(path):
    study = make_reading_study(path)
    directory = study.finish()
    write_plan(study.workspace.plan_path, study.workspace.plan)
    with LedgerWriter(study.workspace.ledger_dir, "w1", sync=False) as ledger:
        ledger.append(RangeRecord(instance="collect.manifest", lo=0, hi=1, outcome=Outcome.OK))
    return directory


@pytest.mark.parametrize("how", ["remove", "cut"])
def test_without_a_manifest_the_shards_are_held_against_the_study(tmp_path, how):
    directory = finished_study(tmp_path / "w")
    whole = verify(directory)
    (_, offset, size) = extents_of(directory, 1, "fields/image")[0]
    flip(directory / "shard_00001.h5", offset + size // 2)
    before = verify(directory)
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text()[:500])
    if how == "remove":
        manifest.unlink()
    report = verify(directory)
    assert report.problems[1:] == before.problems and report.samples == before.samples
    assert not report.has_manifest and report.counts == whole.counts
    document = report.to_json()
    assert document["shards_checked"] and document["lost_samples"] == before.samples
    (directory / "shard_00000.json").unlink()
    assert set(lost(verify(directory))) == {*lost(before), *(row for row in PRESENT if row < 20)}


def test_where_no_study_is_near_it_is_said_that_the_shards_were_not_checked(data):
    (data / "manifest.json").unlink()
    report = verify(data)
    assert not report.has_manifest and not report.to_json()["shards_checked"]


def test_a_manifest_of_a_newer_version_is_not_judged(data):
    content = json.loads((data / "manifest.json").read_text())
    content["version"] = 99
    (data / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(NotADataSetError, match="expected merlin-dataset version 2, found merlin-dataset 99"):
        verify(data)


def test_counts_that_do_not_add_up_are_found(data):
    edit_manifest(data, lambda m: m["counts"].update(missing=0))
    found = only(verify(data))
    assert found.kind == "count mismatch"
    assert "planned 50 ≠ ok" in found.message


# ------------------------------------------------------------------------------------------------ ranges


def narrow(directory, shard, name, **statistics):
    """Let a sidecar claim other statistics, and the manifest agree."""
    path = directory / f"shard_{shard:05d}.json"
    info = read_info(path)
    datasets = tuple(
        replace(d, statistics=Statistics.from_json({**d.statistics.to_json(), **statistics}))
        if d.name == name
        else d
        for d in info.datasets
    )
    path.write_text(replace(info, datasets=datasets).to_json())
    digest = digest_bytes(path.read_bytes())
    edit_manifest(directory, lambda m: m["shards"][shard].update(info_digest=digest))


def test_values_beyond_the_recorded_range_name_their_samples(data):
    rows = [r for r in PRESENT if r < 20]
    narrow(data, 0, "fields/energy", max=(1e6 + 0.5 * rows[-2],))
    found = only(verify(data))
    assert (found.kind, found.dataset, numbers(found.rows)) == ("out of range", "fields/energy", [rows[-1]])


def test_items_beyond_the_recorded_range_name_their_samples(data):
    with h5py.File(data / "shard_00000.h5") as file:
        values, ends = file["fields/hits/values"][()], file["fields/hits/offsets"][()]
    narrow(data, 0, "fields/hits/values", max=(float(np.sort(values)[-2]),))
    at = int(np.searchsorted(ends, np.argmax(values), side="right")) - 1
    found = only(verify(data))
    assert (found.kind, numbers(found.rows)) == ("out of range", [PRESENT[at]])


def test_what_is_not_finite_breaks_a_promise(tmp_path):
    study = make_study(tmp_path / "w", num=20)
    study.collect_all()
    directory = study.finish()
    narrow(directory, 0, "fields/energy", count=(19,))
    assert {p.kind for p in verify(directory).problems} == {"out of range"}
