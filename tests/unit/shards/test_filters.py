"""Filters and derived fields, from the bundles to the counts of the manifest."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_study import make_cmd_study, make_study

from merlin.errors import ShardError
from merlin.plan.plan import PlannedField
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.format.shard_info import read_info
from merlin.shards.writing.bundle import list_bundles
from merlin.shards.writing.manifest import write_manifest

ENERGY = PlannedField(name="energy")
LOG = PlannedField(name="log", expression="log10(energy)")
VALID = ("energy > 0", "energy < 40 or x > 90")


def study_of(path, **more):
    more = {"num": 50, "fields": (ENERGY, LOG), "valid": VALID} | more
    return make_study(path, **more)


def energies(num=50):
    """Task t has energy t - 5."""
    return {"energy": np.arange(num) - 5.0}


def rows_of(study):
    found = []
    for path in sorted(study.directory.glob("shard_*.h5")):
        with h5py.File(path) as file:
            found += file["row"][()].tolist()
    return found


KEPT = [t for t in range(50) if t - 5 > 0 and (t - 5 < 40 or 2 * t > 90)]


def test_rejected_rows_are_counted_and_listed_and_not_stored(tmp_path):
    study = study_of(tmp_path)
    assert study.collect(0, 50, outputs=energies()) == {}  # no task fails
    data = read_manifest(study.finish())
    assert rows_of(study) == KEPT
    assert str(data.counts) == "planned 50 = ok 43 + failed 0 + filtered 7 + skipped 0 + missing 0"
    assert data.counts.reconciled
    assert [(f.expression, f.num, f.rows) for f in data.filters] == [
        ("energy > 0", 6, ((0, 6),)),
        ("energy < 40 or x > 90", 1, ((45, 46),)),
    ]
    assert data.sources[0].filtered == ((0, 6), (45, 46))
    assert sum(data.splits.counts.values()) == 43


def test_a_shard_knows_what_was_filtered_in_it(tmp_path):
    study = study_of(tmp_path)
    study.collect(0, 50, outputs=energies())
    study.write_shards()
    assert read_info(study.directory / "shard_00000.json").filtered == {"energy > 0": ((0, 6),)}
    with h5py.File(study.directory / "shard_00002.h5") as file:
        assert json.loads(file["provenance/filtered"].asstr()[()]) == {"energy < 40 or x > 90": [[45, 46]]}


def test_a_shard_may_lose_all_its_rows_to_filters(tmp_path):
    study = study_of(tmp_path, valid=("energy > 25",))
    study.collect(0, 50, outputs=energies())
    data = read_manifest(study.finish())
    assert [shard.num_rows for shard in data.shards] == [0, 9, 10]
    assert data.counts.filtered == 31


def test_derived_values_are_those_of_the_stored_ones(tmp_path):
    fields = (
        PlannedField(name="energy", dtype="float32", keep_bits=8),
        PlannedField(name="log", expression="log10(energy)", dtype="float32", units="dex"),
        PlannedField(name="twice", expression="2 * log"),
        PlannedField(name="good", expression="energy > x", dtype="bool"),
        PlannedField(name="count", expression="floor(2.5) + 1 > 2", dtype="bool"),
        PlannedField(name="trace", kind="series", shape=(4,), dtype="float32"),
        PlannedField(name="part", kind="series", shape=(2,), expression="trace[1:3] / energy"),
    )
    study = make_study(tmp_path, num=20, fields=fields)
    energy = np.arange(1, 21) * np.pi
    study.collect(0, 20, outputs={"energy": energy, "trace": np.arange(80.0).reshape(20, 4)})
    study.finish()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        fields = {name: file["fields"][name][()] for name in file["fields"]}
        attributes = dict(file["fields/log"].attrs)
    stored = fields["energy"].astype(float)
    assert (stored != energy).any()
    np.testing.assert_array_equal(fields["log"], np.log10(stored).astype(np.float32))
    np.testing.assert_array_equal(fields["twice"], 2 * fields["log"].astype(float))
    np.testing.assert_array_equal(fields["good"], stored > np.arange(0.0, 40, 2))
    np.testing.assert_array_equal(fields["part"], fields["trace"][:, 1:3] / stored[:, None])
    assert attributes["expression"] == "log10(energy)"
    assert attributes["units"] == "dex"


def test_filters_come_before_what_is_derived_fails(tmp_path):
    study = study_of(tmp_path, valid=("energy > -4",))
    causes = study.collect(0, 10, outputs=energies(10))
    # 0 and 1 are filtered, 2 to 5 have no finite logarithm
    assert causes[5] == "field 'log': expected a finite value, found -inf"
    assert sorted(causes) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("energy > 2", [3]),
        ("not energy > 2", [1, 2]),
        ("energy != 2", [1, 3]),
        ("energy > 0 or True", [0, 1, 2, 3]),
        ("isnan(energy)", [0]),
        ("energy / 0 > 1", [1, 2, 3]),
        ("sqrt(0 - energy) > -1", []),
        ("1 / (energy - 2) < 9e9", [1, 3]),
    ],
)
def test_what_is_undefined_is_not_valid(tmp_path, expression, kept):
    study = make_study(
        tmp_path, num=4, fields=(PlannedField(name="energy", finite=False),), valid=(expression,)
    )
    assert study.collect(0, 4, outputs={"energy": np.array([np.nan, 1.0, 2.0, 3.0])}) == {}
    study.finish()
    assert rows_of(study) == kept


def test_a_field_that_must_be_finite_fails_before_any_filter(tmp_path):
    study = make_study(tmp_path, num=2, fields=(ENERGY,), valid=("energy > 0",))
    causes = study.collect(0, 2, outputs={"energy": np.array([np.nan, 1.0])})
    assert causes == {0: "field 'energy': expected a finite value, found nan"}


def test_inputs_parameters_texts_and_items_may_be_named(tmp_path):
    fields = (
        ENERGY,
        PlannedField(name="note", kind="text"),
        PlannedField(name="path", kind="ragged", ragged=True, output="path"),
        PlannedField(name="steps", expression="len(path)", dtype="int32"),
        PlannedField(name="halves", kind="ragged", ragged=True, expression="path / scale"),
    )
    study = make_study(
        tmp_path,
        num=6,
        fields=fields,
        params=({"scale": 2, "mode": "fast"}, {"scale": 4, "mode": "slow"}),
        valid=("note != 'bad'", "x < 8 or mode == 'slow'", "len(path) > 0"),
    )
    path = np.empty(6, dtype=object)
    path[:] = [np.arange(float(n)) for n in (1, 2, 0, 3, 4, 5)]
    outputs = {"energy": np.ones(6), "note": np.array(list("abcdef"), dtype=object), "path": path}
    outputs["note"][1] = "bad"
    for source in (0, 1):
        assert study.collect(0, 6, source=source, outputs=outputs) == {}
    data = read_manifest(study.finish())
    assert rows_of(study) == [0, 3, 6, 9, 10, 11]
    assert [f.num for f in data.filters] == [2, 2, 2]
    assert [s.counts.filtered for s in data.sources] == [4, 2]
    with h5py.File(study.directory / "shard_00000.h5") as file:
        assert file["fields/steps"][()].tolist() == [1, 3, 1, 3, 4, 5]
        offsets, values = file["fields/halves/offsets"][()], file["fields/halves/values"][()]
        assert values[offsets[1] : offsets[2]].tolist() == [0, 0.5, 1]
        assert values[offsets[3] : offsets[4]].tolist() == [0, 0.25, 0.5]


def test_an_input_of_text_where_a_number_is_needed_fails_the_samples_with_a_cause(tmp_path):
    study = make_study(tmp_path, num=3, fields=(ENERGY, PlannedField(name="d", expression="energy + mode")),
                       params=({"mode": "fast"},))  # fmt: skip
    causes = study.collect(0, 3, outputs={"energy": np.ones(3)})
    assert causes[0] == "field 'd': energy + mode: 'mode' is a text, and a number is needed"
    study = make_study(
        tmp_path / "b", num=3, fields=(ENERGY,), valid=("mode > 1",), params=({"mode": "fast"},)
    )
    causes = study.collect(0, 3, outputs={"energy": np.ones(3)})
    assert causes[2] == "valid 'mode > 1': column 6: compares a text with a number"


def test_a_whole_number_that_the_dtype_cannot_hold_is_refused_not_wrapped(tmp_path):
    fields = (PlannedField(name="n", dtype="int64"), PlannedField(name="m", expression="n * 2", dtype="int8"))
    study = make_study(tmp_path, num=2, fields=fields)
    causes = study.collect(0, 2, outputs={"n": np.array([5, 100])})
    assert causes == {1: "field 'm': expected int8 values, found 200, which is out of range"}


def test_an_undefined_whole_number_fails_its_sample(tmp_path):
    fields = (
        PlannedField(name="r", kind="ragged", dtype="int32", ragged=True, output="r"),
        PlannedField(name="m", expression="max(r)", dtype="int32"),
        PlannedField(name="b", expression="max(r) > 2", dtype="bool"),
    )
    study = make_study(tmp_path, num=2, fields=fields)
    items = np.empty(2, dtype=object)
    items[:] = [np.array([1, 7]), np.array([], dtype=int)]
    assert study.collect(0, 2, outputs={"r": items}) == {1: "field 'm': max(r) is undefined"}
    study.finish()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        assert (file["fields/m"][0], file["fields/b"][0]) == (7, True)


class TestTheSameAnswerAgain:
    def test_a_lost_bundle_is_filtered_again_from_files(self, tmp_path):
        files = {t: {"o.json": {"e": t - 5}} for t in range(50)}
        fields = (PlannedField(name="energy", file="o.json", key="e"), LOG)
        study = make_cmd_study(tmp_path, files, fields, valid=VALID)
        study.collect(0, 50)
        whole = [study.write_shard(k) for k in range(3)]
        for file in list_bundles(study.directory / "bundles/0"):
            file.path.unlink()
        (study.directory / whole[0].file).unlink()
        again = study.write_shard(0)
        assert (again.filtered, again.content_digest) == (whole[0].filtered, whole[0].content_digest)

    def test_a_shard_written_again_takes_what_was_filtered_from_the_old_one(self, tmp_path):
        study = study_of(tmp_path)
        study.not_run = {(0, 12)}
        study.collect(0, 50, outputs=energies())
        study.finish()
        assert not list(study.directory.glob("bundles"))
        study.not_run = set()
        study.collect(12, 13, outputs={"energy": np.array([7.0])}, attempt=2)
        info = study.write_shard(0)
        assert info.filtered == {"energy > 0": ((0, 6),)}
        assert info.num_rows == 14
        with h5py.File(study.directory / info.file) as file:
            attempts = dict(
                zip(file["row"][()].tolist(), file["provenance/attempt"][()].tolist(), strict=True)
            )
        assert attempts[12] == 2
        assert attempts[13] == 1

    def test_a_later_attempt_counts_whether_it_is_rejected_or_not(self, tmp_path):
        study = study_of(tmp_path, num=10, valid=("energy > 0",))
        study.collect(0, 10, outputs={"energy": np.ones(10)})
        study.collect(2, 4, outputs={"energy": np.array([-1.0, 5.0])}, attempt=2)
        study.collect(7, 8, outputs={"energy": np.array([-1.0])}, attempt=3)
        study.collect(7, 8, outputs={"energy": np.array([9.0])}, attempt=4)
        info = study.write_shard(0)
        assert info.filtered == {"energy > 0": ((2, 3),)}
        with h5py.File(study.directory / info.file) as file:
            assert file["row"][()].tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9]
            assert file["fields/energy"][()].tolist() == [1, 1, 5, 1, 1, 1, 9, 1, 1]

    def test_the_manifest_writes_no_shard_again_for_filtered_rows(self, tmp_path):
        study = study_of(tmp_path)
        study.collect(0, 50, outputs=energies())
        study.finish()
        before = {p.name: p.stat().st_mtime_ns for p in study.directory.glob("shard_*.h5")}
        write_manifest(study.workspace, study.manifest)
        assert {p.name: p.stat().st_mtime_ns for p in study.directory.glob("shard_*.h5")} == before

    def test_a_filtered_row_of_a_function_that_nothing_holds_any_more_is_an_error(self, tmp_path):
        study = study_of(tmp_path)
        study.collect(10, 50, outputs={"energy": energies()["energy"][10:]})
        with pytest.raises(ShardError, match="nothing holds row 0-9"):
            study.write_shard(0)

    @settings(max_examples=repeats(8, 150), deadline=None)
    @given(cuts=st.lists(st.integers(1, 25), min_size=1, max_size=6))
    def test_it_does_not_depend_on_how_the_run_was_cut_into_chunks(self, tmp_path_factory, cuts):
        answers = []
        for pieces in ([50], cuts):
            study = study_of(tmp_path_factory.mktemp("cut") / "w")
            lo = i = 0
            while lo < 50:
                hi = min(50, lo + pieces[i % len(pieces)])
                study.collect(lo, hi, outputs={"energy": energies()["energy"][lo:hi]}, worker=f"w{i}")
                lo, i = hi, i + 1
            answers.append([(info.content_digest, info.filtered) for info in study.write_shards()])
        assert answers[0] == answers[1]


def test_attempts_are_no_part_of_the_content(tmp_path):
    digests = []
    for attempt in (1, 5):
        study = study_of(tmp_path / str(attempt), valid=())
        study.collect(10, 50, outputs={"energy": energies()["energy"][10:]}, attempt=attempt)
        study.not_run = {(0, t) for t in range(10)}
        digests.append(read_manifest(study.finish()).content_digest)
    assert digests[0] == digests[1]


def test_a_shard_says_where_it_comes_from(tmp_path):
    study = make_study(tmp_path, num=4, params=({"P": 1}, {"P": 2.5}), per_shard=6)
    study.collect_all()
    study.finish()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        about = dict(file.attrs)
    assert json.loads(about["parameters"]) == {"sim/P0": {"P": 1}, "sim/P1": {"P": 2.5}}
    assert json.loads(about["variables"]) == {}
    assert {"spec_digest", "code_version", "host", "created", "seed", "study_id"} <= about.keys()
    with h5py.File(study.directory / "shard_00001.h5") as file:
        assert json.loads(file.attrs["parameters"]) == {"sim/P1": {"P": 2.5}}


def test_integers_that_do_not_fit_the_field_fail_their_samples_alone(tmp_path):
    fields = (
        PlannedField(name="n", dtype="int64"),
        PlannedField(name="u", dtype="uint64"),
        PlannedField(name="m", expression="n * 4611686018427387904", dtype="int64"),
        PlannedField(name="d", expression="u", dtype="uint64"),
        PlannedField(name="s", expression="n * 4611686018427387904", dtype="float64"),
        PlannedField(name="w", expression="where(n < 3, u / 1, 0)", dtype="uint64"),
    )
    study = make_study(tmp_path, num=4, fields=fields)
    n = np.array([1, 2, -2, 3])
    u = np.array([2**53 + 1, 5, 2**64 - 1, 7], dtype=np.uint64)
    causes = study.collect(0, 4, outputs={"n": n, "u": u})
    assert causes == {
        1: "field 'm': expected int64 values, found 9.223372036854776e+18, which is out of range",
        2: "field 'w': expected uint64 values, found 1.8446744073709552e+19, which is out of range",
        3: "field 'm': expected int64 values, found 1.3835058055282164e+19, which is out of range",
    }
    study.finish()
    with h5py.File(study.directory / "shard_00000.h5") as file:
        stored = {name: file[f"fields/{name}"][()].tolist() for name in "mds"}
    assert stored == {"m": [2**62], "d": [2**53 + 1], "s": [2.0**62]}
