"""Shards and manifests: complete, reproducible, resumable."""

from __future__ import annotations

import json
import os
import warnings

import h5py
import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_study import FIELDS, make_cmd_study, make_study, values_of

import merlin
from merlin.base.compression import NAMES
from merlin.errors import ShardError
from merlin.ledger.session import make_session
from merlin.plan.plan import PlannedField
from merlin.shards.describe import describe
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.format.splits import split_indices
from merlin.shards.format.statistics import Accumulator, merge
from merlin.shards.proving.verify import verify
from merlin.shards.writing.manifest import write_manifest


def test_a_study_ends_in_a_data_set_that_verifies(tmp_path):
    study = make_study(tmp_path)
    study.collect_all()
    report = verify(study.finish())
    assert report.ok, report.problems
    assert (report.num_rows, report.num_shards) == (50, 3)
    assert str(report.counts) == "planned 50 = ok 50 + failed 0 + filtered 0 + skipped 0 + missing 0"


def test_what_was_collected_is_what_is_read(tmp_path):
    study = make_study(tmp_path)
    study.collect_all()
    expected = values_of(np.arange(50))
    with merlin.open_shards(study.finish()) as ens:
        for name, values in expected.items():
            np.testing.assert_array_equal(ens[name][:], values)
        np.testing.assert_array_equal(ens.inputs.array(), np.arange(100.0).reshape(50, 2))


@pytest.mark.parametrize("compression", NAMES)
def test_every_compression_holds_the_same_content(tmp_path, compression):
    plain, packed = make_study(tmp_path / "a"), make_study(tmp_path / "b", compression=compression)
    for study in (plain, packed):
        study.collect_all()
        study.finish()
    assert verify(packed.directory).ok
    assert read_manifest(plain.directory).content_digest == read_manifest(packed.directory).content_digest
    with merlin.open_shards(packed.directory) as ens:
        picked = [33, 2, 2, 49]
        np.testing.assert_array_equal(ens["image"][picked], values_of(np.array(picked))["image"])


@pytest.fixture(scope="module")
def digests_of_one_chunk(tmp_path_factory):
    return digests_of(tmp_path_factory, [50])


def digests_of(tmp_path_factory, pieces):
    study = make_study(tmp_path_factory.mktemp("cut") / "w")
    lo = 0
    for i in range(50):
        hi = min(50, lo + pieces[i % len(pieces)])
        if lo < hi:
            study.collect(lo, hi, worker=f"w{i}")
        lo = hi
    return [info.content_digest for info in study.write_shards()]


@settings(max_examples=repeats(8, 150), deadline=None)
@given(cuts=st.lists(st.integers(1, 25), min_size=1, max_size=6))
def test_the_content_digest_does_not_depend_on_how_the_run_was_cut_into_chunks(
    tmp_path_factory, digests_of_one_chunk, cuts
):
    assert digests_of(tmp_path_factory, cuts) == digests_of_one_chunk


def test_of_two_bundles_with_the_same_row_the_highest_attempt_counts_then_the_newest(tmp_path):
    study = make_study(tmp_path, num=3, fields=(PlannedField(name="x"),))
    study.collect(0, 3, outputs={"x": np.full(3, 2.0)}, attempt=2, worker="b")
    study.collect(0, 3, outputs={"x": np.full(3, 1.0)}, attempt=1, worker="a")
    study.collect(1, 2, outputs={"x": np.full(1, 3.0)}, attempt=2, worker="a")
    for i, path in enumerate(
        [*study.directory.glob("bundles/0/*-2-b.h5"), *study.directory.glob("bundles/0/1-2-*.h5")]
    ):
        os.utime(path, ns=(i * 10**9, i * 10**9))
    study.write_shards()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        assert file["fields/x"][:].tolist() == [2.0, 3.0, 2.0]


def test_a_later_run_outranks_whatever_an_earlier_one_called_its_attempts(tmp_path):
    study = make_study(tmp_path, num=3, fields=(PlannedField(name="x"),))
    first, second = make_session(1_700_000_000.0), make_session(1_700_000_100.0)
    study.collect(0, 3, outputs={"x": np.full(3, 2.0)}, attempt=1, session=second)
    study.collect(0, 3, outputs={"x": np.full(3, 1.0)}, attempt=5, session=first)
    study.collect(0, 3, outputs={"x": np.full(3, 0.0)}, attempt=9)  # as earlier versions wrote it
    study.write_shards()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        assert file["fields/x"][:].tolist() == [2.0, 2.0, 2.0]


def test_in_place_of_a_bundle_that_cannot_be_read_nothing_older_is_taken(tmp_path):
    study = make_study(tmp_path, num=3, fields=(PlannedField(name="x"),))
    study.collect(0, 3, outputs={"x": np.full(3, 1.0)})
    study.finish()
    study.collect(0, 3, outputs={"x": np.full(3, 2.0)}, attempt=2)
    study.collect(1, 2, outputs={"x": np.full(1, 3.0)}, attempt=3)
    next(study.directory.glob("bundles/0/1-2-*.h5")).write_bytes(b"damaged")
    with pytest.raises(ShardError, match=r"nothing holds row 1,"):
        study.write_shard(0)


def test_a_row_that_nothing_holds_is_an_error_that_names_it(tmp_path):
    study = make_study(tmp_path)
    study.collect(0, 10)
    study.collect(13, 20)
    with pytest.raises(ShardError, match=r"shard 0 of 'collect': nothing holds row 10-12"):
        study.write_shard(0)
    assert not list(study.directory.glob("shard_*"))


def test_rows_of_a_shell_step_without_bundle_are_read_from_its_files(tmp_path):
    files = {t: {"o.json": {"e": t}} for t in range(6)}
    study = make_cmd_study(tmp_path, files, [PlannedField(name="e", file="o.json", key="e")])
    study.collect(0, 2)
    with merlin.open_shards(study.finish()) as ens:
        assert ens["e"][:].tolist() == list(range(6))


def test_a_shard_can_be_rewritten_from_itself_when_more_rows_arrive(tmp_path):
    study = make_study(tmp_path)
    study.not_run = {(0, 4), (0, 5)}
    study.collect_all()
    study.finish()
    assert not list(study.directory.glob("bundles"))
    study.not_run = set()
    study.collect(4, 6, attempt=2)
    info = study.write_shard(0)
    whole = make_study(tmp_path / "whole")
    whole.collect_all()
    assert info.content_digest == whole.write_shard(0).content_digest


def test_the_manifest_writes_a_shard_again_that_lacks_rows_which_have_ended_ok_since(tmp_path):
    study = make_study(tmp_path)
    study.not_run = {(0, 4)}
    study.collect_all()
    study.write_shards()
    study.not_run = set()
    study.collect(4, 5, attempt=2)
    study.record()
    write_manifest(study.workspace, study.manifest)
    assert verify(study.directory).ok
    assert len(merlin.open_shards(study.directory)) == 50


def test_failed_skipped_and_missing_samples_are_counted_and_listed(tmp_path):
    study = make_study(tmp_path, num=50)
    study.skipped, study.not_run = {(0, 1), (0, 2)}, {(0, 49)}
    outputs = values_of(np.arange(50))
    outputs["energy"][[7, 8, 30]] = np.nan
    study.collect(0, 50, outputs=outputs)
    report = verify(study.finish())
    assert report.ok, report.problems
    assert str(report.counts) == "planned 50 = ok 44 + failed 3 + filtered 0 + skipped 2 + missing 1"
    data = read_manifest(study.directory)
    assert data.sources[0].failed == ((7, 9), (30, 31))
    assert [(g.cause, g.num, g.tasks) for g in data.failures] == [
        ("field 'energy': expected a finite value, found nan", 3, ((7, 9), (30, 31)))
    ]
    with merlin.open_shards(study.directory) as ens:
        assert ens.sample_id.tolist() == [i for i in range(50) if i not in (1, 2, 7, 8, 30, 49)]


def test_a_shard_whose_samples_all_failed_is_empty_and_harmless(tmp_path):
    study = make_study(tmp_path)
    study.not_run = {(0, t) for t in range(20, 40)}
    study.collect_all()
    assert verify(study.finish()).ok
    with merlin.open_shards(study.directory) as ens:
        assert len(ens) == 30
        assert ens["count"][15:25].tolist() == [*range(15, 20), *range(40, 45)]
    with h5py.File(study.directory / "ensemble.h5") as file:
        assert file["fields/count"][18:22].tolist() == [18, 19, 40, 41]


def test_a_study_with_no_good_sample_at_all_still_ends_in_a_manifest(tmp_path):
    study = make_study(tmp_path, num=5)
    study.not_run = {(0, t) for t in range(5)}
    assert verify(study.finish()).ok
    ens = merlin.open_shards(study.directory)
    assert len(ens) == 0
    assert ens["image"][:].shape == (0, 6, 5, 2)


@pytest.mark.parametrize("empty", [[0], [1], [0, 1, 2]])
def test_a_shard_without_rows_has_the_input_types_of_the_others(tmp_path, empty):
    study = make_study(tmp_path)
    samples = [(i, f"mode {i}") for i in range(50)]
    np.save(study.workspace.info / "samples.npy", np.array(samples, [("x", "i4"), ("y", "U8")]))
    study.not_run = {(0, t) for t in range(50) if t // 20 in empty}
    study.collect_all()
    assert verify(study.finish()).ok
    with merlin.open_shards(study.directory) as ens:
        assert ens.inputs["x"][:].dtype == np.float64
        assert list(ens.inputs["y"][:]) == [f"mode {t}" for t in range(50) if t // 20 not in empty]


def test_sources_with_parameters_follow_each_other_and_carry_them(tmp_path):
    params = ({"GAMMA": 1.5, "MODE": "fast"}, {"GAMMA": 2, "MODE": "slow"})
    study = make_study(tmp_path, num=15, per_shard=10, params=params)
    study.not_run = {(1, 3)}
    study.collect_all(chunk=4)
    assert verify(study.finish()).ok
    with merlin.open_shards(study.directory) as ens:
        assert len(ens) == 29
        assert ens.parameters["GAMMA"][13:17].tolist() == [1.5, 1.5, 2.0, 2.0]
        assert ens.parameters["MODE"][28] == "slow"
        assert "MODE" in ens and ens["MODE"][28] == "slow"
        assert ens.batch([13, 28], ["GAMMA"])["GAMMA"].tolist() == ens["GAMMA"][[13, 28]].tolist()
        described = {column.name: column.statistics for column in ens.manifest.parameters}
        assert described["GAMMA"].min == (1.5,) and described["GAMMA"].max == (2.0,)
        assert described["GAMMA"].count == (29,) and described["MODE"] is None
        assert ens.sample_id[13:20].tolist() == [13, 14, 0, 1, 2, 4, 5]
        assert ens.row[18:20].tolist() == [19, 20]
        np.testing.assert_array_equal(ens.inputs["x"][:], 2.0 * ens.sample_id)
        np.testing.assert_array_equal(ens["count"][15:], 1000 + ens.sample_id[15:])


def test_sources_without_samples_count_as_one_sample_each(tmp_path):
    study = make_study(tmp_path, per_sample=False, params=({"X": 1}, {"X": 2}, {"X": 3}))
    study.collect_all()
    assert verify(study.finish()).ok
    with merlin.open_shards(study.directory) as ens:
        assert ens.sample_id.tolist() == [0, 1, 2]
        assert len(ens.inputs) == 0
        assert ens.parameters["X"][:].tolist() == [1, 2, 3]


def test_a_shard_of_more_bundles_than_files_may_be_open_is_written(tmp_path):
    study = make_study(tmp_path, num=150, per_shard=150)
    study.collect_all(chunk=1)
    assert study.write_shard(0).num_rows == 150


def test_the_leftovers_of_a_killed_writer_are_ignored_and_cleaned_up(tmp_path):
    study = make_study(tmp_path)
    study.collect_all()
    study.directory.joinpath("shard_00000.h5.123.tmp").write_bytes(b"half a shard")
    study.directory.joinpath("bundles/0/0-20-9-w.h5.123.tmp").write_bytes(b"half a bundle")
    study.directory.joinpath("manifest.json.5.tmp").write_text("{")
    assert verify(study.finish()).ok
    assert not list(study.directory.rglob("*.tmp"))


def test_the_manifest_step_may_be_killed_and_run_again(tmp_path, monkeypatch):
    study = make_study(tmp_path)
    study.collect_all()
    study.write_shards()
    study.record()
    with monkeypatch.context() as patch:
        patch.setattr(
            "merlin.shards.writing.growing.write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            write_manifest(study.workspace, study.manifest)
    assert list(study.directory.glob("bundles/*/*.h5"))
    write_manifest(study.workspace, study.manifest)
    write_manifest(study.workspace, study.manifest)
    assert verify(study.directory).ok


def test_large_data_sets_are_aligned_to_pages_and_nothing_is_compressed_unasked(tmp_path):
    study = make_study(tmp_path, num=40, per_shard=40)
    study.collect_all()
    study.write_shards()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        image = file["fields/image"]
        assert image.chunks is None
        assert image.id.get_offset() % 4096 == 0
        assert file.attrs["format"] == "merlin-shard"
        assert file["fields/energy"].attrs["units"] == "J"
        assert json.loads(image.attrs["axes"]) == ["y", "x", "channel"]


def test_the_virtual_data_set_survives_a_move_of_the_directory(tmp_path):
    study = make_study(tmp_path / "w")
    study.collect_all()
    moved = study.finish().rename(tmp_path / "moved")
    with h5py.File(moved / "ensemble.h5") as file:
        np.testing.assert_array_equal(file["fields/image"][18:22], values_of(np.arange(18, 22))["image"])
        assert file["fields/note"].asstr()[20] == "täsk 20"
        assert file["inputs/x"].shape == (50,)
    assert verify(moved).ok


def test_statistics_are_per_channel_and_the_same_as_over_the_whole(tmp_path):
    study = make_study(tmp_path)
    study.collect_all()
    study.finish()
    by_name = {f.info.name: f.info.statistics for f in describe(study.directory).fields}
    image = values_of(np.arange(50))["image"].astype(np.float64)
    assert by_name["image"].count == (50 * 30, 50 * 30)
    np.testing.assert_allclose(by_name["image"].mean, image.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(by_name["image"].std, image.std(axis=(0, 1, 2)))
    energy = values_of(np.arange(50))["energy"]
    np.testing.assert_allclose(by_name["energy"].std, [energy.std()])
    assert (by_name["energy"].min, by_name["energy"].max) == ((energy.min(),), (energy.max(),))
    assert by_name["note"] is None


@settings(max_examples=repeats(25, 500), deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=40),
    cut=st.integers(0, 40),
    offset=st.sampled_from([0.0, 1e8]),
)
def test_merged_statistics_equal_those_of_the_union(values, cut, offset):
    array = np.array(values) + offset
    parts = []
    for part in (array[:cut], array[cut:]):
        accumulator = Accumulator((), None)
        accumulator.add(part)
        parts.append(accumulator.result())
    merged = merge(parts)
    finite = array[np.isfinite(array)]
    assert merged.count == (len(finite),)
    if len(finite):
        np.testing.assert_allclose(merged.mean, [finite.mean()], rtol=1e-12)
        np.testing.assert_allclose(merged.std, [finite.std()], rtol=1e-6, atol=1e-6)
    assert merge([*parts, None]) is None, "those of a part say nothing about the whole"


@pytest.mark.parametrize("reach", [1e155, 1e308])
def test_statistics_of_values_whose_squares_are_too_large_leave_them_out_in_silence(reach):
    accumulator = Accumulator((), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulator.add(np.linspace(-1, 1, 20) * reach)
        found = accumulator.result().to_json()
    assert (found["count"], found["min"], found["max"]) == ([20], [-reach], [reach])
    assert found["m2"] == found["std"] == [None]


def test_a_sample_stays_in_its_split_when_samples_are_added():
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    few = split_indices(np.arange(1000), fractions, 7)
    many = split_indices(np.arange(100_000), fractions, 7)
    np.testing.assert_array_equal(few, many[:1000])
    np.testing.assert_allclose(np.bincount(many) / len(many), [0.8, 0.1, 0.1], atol=0.005)


def test_another_seed_makes_another_split_and_fractions_below_one_leave_samples_out():
    ids = np.arange(10_000)
    halves = {"a": 0.5, "b": 0.25}
    first, second = split_indices(ids, halves, 0), split_indices(ids, halves, 1)
    assert 0.3 < (first != second).mean() < 0.8
    assert abs((first == 2).mean() - 0.25) < 0.02


def test_the_split_of_an_id_is_the_documented_hash():
    """docs/shard-format.md in plain integers, so that other readers can agree."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    for seed in (0, 3, -1):
        expected = [int((mix(i ^ mix(seed % 2**64)) >> 11) / 2**53 >= 0.5) for i in range(200)]
        assert split_indices(np.arange(200), {"a": 0.5, "b": 0.5}, seed).tolist() == expected


def test_description_has_one_line_for_people_and_json_for_programs(tmp_path):
    study = make_study(tmp_path)
    study.collect_all()
    study.finish()
    facts = describe(study.directory)
    assert facts.line.startswith(f"{study.directory}: 50 samples in 3 shards, ")
    assert json.loads(json.dumps(facts.to_json()))["splits"]["train"]["fraction"] == 0.8
    assert sum(facts.data.splits.counts.values()) == 50
    assert [f.info.name for f in facts.fields] == [f.name for f in FIELDS]
