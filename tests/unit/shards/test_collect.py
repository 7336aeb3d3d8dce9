"""Collecting outputs: what is taken, what is refused, and what the user is told."""

from __future__ import annotations

import io
import os

import h5py
import numpy as np
import pytest
from shard_study import FIELDS, make_cmd_study, make_study, values_of

import merlin
from merlin.plan.plan import PlannedField
from merlin.shards.writing.bundle import Origin
from merlin.shards.writing.collect import save_outputs


def npy(array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def hdf5(**arrays) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, array in arrays.items():
            file[name.replace("__", "/")] = array
    return out.getvalue()


IMAGE = PlannedField(name="image", kind="image", dtype="float32", shape=(64, 64, 4))


class TestFunctionOutputs:
    def test_good_outputs_reach_one_bundle_per_shard(self, tmp_path):
        study = make_study(tmp_path)
        assert study.collect(10, 45) == {}
        names = sorted(str(p.relative_to(study.directory)) for p in study.directory.rglob("*.h5"))
        assert names == ["bundles/0/10-20-1-w0.h5", "bundles/1/20-40-1-w0.h5", "bundles/2/40-45-1-w0.h5"]
        with h5py.File(study.directory / names[1]) as file:
            assert file["row"][:].tolist() == list(range(20, 40))
            np.testing.assert_array_equal(file["fields/image"], values_of(np.arange(20, 40))["image"])

    def test_a_wrong_shape_fails_every_sample_and_says_what_was_expected(self, tmp_path):
        study = make_study(tmp_path, num=3, fields=(IMAGE,))
        causes = study.collect(0, 3, outputs={"image": np.zeros((3, 64, 64), np.float32)})
        assert causes[1] == "field 'image': expected shape (64, 64, 4), found (64, 64)"
        assert set(causes) == {0, 1, 2}

    @pytest.mark.parametrize(
        ("field", "output", "cause"),
        [
            (PlannedField(name="x"), np.zeros((3, 1)), "expected a scalar, found shape (1,)"),
            (PlannedField(name="x", dtype="int64"), np.zeros(3), "expected dtype int64, found float64"),
            (PlannedField(name="x"), np.zeros(3, complex), "expected dtype float64, found complex128"),
            (
                PlannedField(name="x"),
                np.zeros(4),
                "expected an array of 3 rows (one per sample), found 4 rows",
            ),
            (
                PlannedField(name="x"),
                np.float64(1),
                "expected an array of 3 rows (one per sample), found a scalar",
            ),
            (PlannedField(name="x"), np.array(["a"] * 3), "expected dtype float64, found str32"),
            (PlannedField(name="x", output="z"), np.zeros(3), "expected an output 'z', found x"),
            (PlannedField(name="x", kind="text"), np.zeros(3), "expected text, found float64"),
        ],
    )
    def test_every_kind_of_misfit_has_its_cause(self, tmp_path, field, output, cause):
        study = make_study(tmp_path, num=3, fields=(field,))
        assert study.collect(0, 3, outputs={"x": output})[0] == f"field 'x': {cause}"

    def test_a_value_that_is_not_finite_fails_only_its_sample(self, tmp_path):
        study = make_study(tmp_path)
        outputs = values_of(np.arange(50))
        outputs["history"][7, 3] = np.nan
        outputs["energy"][30] = np.inf
        causes = study.collect(0, 50, outputs=outputs)
        assert causes == {
            7: "field 'history': expected finite values, found nan at [3] (1 of 8 values)",
            30: "field 'energy': expected a finite value, found inf",
        }
        with h5py.File(study.directory / "bundles/0/0-20-1-w0.h5") as file:
            assert file["row"][:].tolist() == [*range(7), *range(8, 20)]
            assert file["fields/count"][:].tolist() == [*range(7), *range(8, 20)]

    def test_nan_is_welcome_where_the_field_says_so(self, tmp_path):
        study = make_study(tmp_path, num=3, fields=(PlannedField(name="x", finite=False),))
        assert study.collect(0, 3, outputs={"x": np.array([1.0, np.nan, np.inf])}) == {}

    def test_values_that_the_dtype_cannot_hold_are_refused_not_wrapped(self, tmp_path):
        fields = (PlannedField(name="x", dtype="float32"), PlannedField(name="n", dtype="uint8"))
        study = make_study(tmp_path, num=3, fields=fields)
        causes = study.collect(0, 3, outputs={"x": np.array([1.0, 1e39, 2.0]), "n": np.array([1, 2, -1])})
        assert causes == {
            1: "field 'x': expected float32 values, found 1e+39, which is out of range",
            2: "field 'n': expected uint8 values, found -1, which is out of range",
        }

    def test_samples_that_did_not_end_ok_are_left_out_and_not_judged(self, tmp_path):
        study = make_study(tmp_path, num=4, fields=(PlannedField(name="x"),))
        outputs = {"x": np.array([0.0, np.nan, 2.0, np.nan])}
        assert set(study.collect(0, 4, ok=[True, False, True, True], outputs=outputs)) == {3}
        with h5py.File(next(study.directory.rglob("*.h5"))) as file:
            assert file["fields/x"][:].tolist() == [0.0, 2.0]

    def test_rows_that_do_not_stack_are_judged_one_by_one(self, tmp_path):
        study = make_study(tmp_path, num=3, fields=(PlannedField(name="x", kind="series", shape=(2,)),))
        ragged = np.empty(3, dtype=object)
        ragged[:] = [np.zeros(2), np.zeros(5), None]
        assert study.collect(0, 3, outputs={"x": ragged}) == {
            1: "field 'x': expected shape (2,), found (5,)",
            2: "field 'x': expected float64, found null",
        }

    def test_the_same_worker_collecting_a_chunk_twice_keeps_both_bundles(self, tmp_path):
        study = make_study(tmp_path, num=4, fields=(PlannedField(name="x"),))
        outputs = {"x": np.arange(4.0)}
        study.collect(0, 4, ok=[True, True, False, False], outputs=outputs)
        study.collect(0, 4, ok=[False, False, True, True], outputs=outputs)
        assert study.write_shards()[0].num_rows == 4

    def test_outputs_that_no_aggregate_collects_are_saved_beside_the_step(self, tmp_path):
        study = make_study(tmp_path, num=4)
        outputs = {"x": np.arange(4.0), "name": np.array(list("abcd")), "bad": np.zeros(9)}
        workspace, step, ok = study.workspace, study.sources[0], np.ones(4, bool)
        causes = save_outputs(workspace, step, 0, 4, ok, outputs, Origin(1, "w0"))
        assert causes[2] == "output 'bad': expected an array of 4 rows (one per sample), found 9 rows"
        del outputs["bad"]
        assert save_outputs(workspace, step, 0, 4, ok, outputs, Origin(1, "w0")) == {}
        with h5py.File(tmp_path / "sim/outputs/0-4-1-w0.h5") as file:
            assert file["fields/name"].asstr()[:].tolist() == list("abcd")


def field(name="f", **more) -> PlannedField:
    return PlannedField(name=name, **more)


GOOD = [
    (field(file="o.json", key="a"), {"o.json": {"a": 2}}, 2.0),
    (field(file="o.json", key="a.b.1"), {"o.json": {"a": {"b": [1, 7.5]}}}, 7.5),
    (field(file="o.json", key="a.b"), {"o.json": {"a.b": 3}}, 3.0),
    (field(file="o.json", key="n", dtype="uint8"), {"o.json": {"n": 255}}, 255),
    (field(file="o*.json", key="s", kind="series", shape=(3,)), {"o1.json": {"s": [1, 2, 3]}}, [1, 2, 3]),
    (field(file="o.json", key="t", kind="text"), {"o.json": {"t": "héllo"}}, "héllo"),
    (field(file="o.npy", kind="series", shape=(4,)), {"o.npy": npy(np.arange(4))}, [0, 1, 2, 3]),
    (field(file="o.npz", key="k", kind="image", shape=(2, 2)), {"o.npz": npz(k=np.eye(2), j=np.ones(3))},
     [[1, 0], [0, 1]]),
    (field(file="o.csv", key="b", kind="series", shape=(2,)), {"o.csv": b"a,b\n1,2\n3,4\n"}, [2, 4]),
    (field(file="o.csv", key="0"), {"o.csv": b"5,6\n"}, 5.0),
    (field(file="o.csv", key="b", kind="series", shape=(2,)), {"o.csv": b"a,b,a\n1,2\n \n\n3,4\n"}, [2, 4]),
    (field(file="o.tab", key="b"), {"o.tab": b"a\tb\n1\t2e3\n"}, 2000.0),
    (field(file="o.csv", kind="image", shape=(2, 2)), {"o.csv": b"1,2\n3,4\n"}, [[1, 2], [3, 4]]),
    (field(file="o.csv", kind="series", shape=(2,)), {"o.csv": b"1.0D+03\n2\n"}, [1000, 2]),
    (field(file="o.csv", kind="ragged", ragged=True), {"o.csv": b"1.0D+03\n2.0D+03\n"}, [1000, 2000]),
    (field(file="o.csv", key="1", kind="series", shape=(2,), dtype="bool"), {"o.csv": b"1,True\n2,false\n"},
     [True, False]),
    (field(file="o.csv", kind="series", shape=(2,), dtype="complex128"), {"o.csv": b"1+2j\n3j\n"}, [1 + 2j, 3j]),
    (field(file="o.csv", key="j", kind="series", shape=(2,)), {"o.csv": b"j\n1\n2\n"}, [1, 2]),
    (field(file="o.h5", key="g/d", kind="series", shape=(3,)), {"o.h5": hdf5(g__d=np.arange(3.0))},
     [0, 1, 2]),
    (field(file="sim.out", regex=r"^E = (\S+)"), {"sim.out": b"x\nE = 1.5\nE = 2.5\n"}, 1.5),
    (field(file="sim.out", regex=r"E = (\S+)", kind="series", shape=(2,)), {"sim.out": b"E = 1\nE = 2"},
     [1, 2]),
    (field(file="o.txt", kind="text"), {"o.txt": b"all of it"}, "all of it"),
    (field(file="o.txt", regex=r"\d+D[+-]\d+"), {"o.txt": b"Fortran: 12D+03"}, 12000.0),
]  # fmt: skip

BAD = [
    (field(file="o.json", key="a"), {}, "field 'f': expected a file 'o.json', found none"),
    (field(file="*.json"), {"a.json": 1, "b.json": 2},
     "field 'f': expected one file '*.json', found 2 (a.json, b.json)"),
    (field(file="o.json", key="a.b"), {"o.json": {"a": {"c": 1}}},
     "field 'f': o.json: expected key 'a.b', found keys c"),
    (field(file="o.json", key="a"), {"o.json": {"a": None}},
     "field 'f': o.json: expected float64, found null"),
    (field(file="o.json", key="a"), {"o.json": {"a": "x"}},
     "field 'f': o.json: expected dtype float64, found text 'x'"),
    (field(file="o.json", key="a", dtype="int64"), {"o.json": {"a": 1.5}},
     "field 'f': o.json: expected dtype int64, found float64"),
    (field(file="o.json", key="a"), {"o.json": b'{"a": NaN}'},
     "field 'f': o.json: expected a finite value, found nan"),
    (field(file="o.json", key="a"), {"o.json": b'{"a": 1'},
     "field 'f': o.json: cannot be read: Expecting ',' delimiter: line 1 column 8 (char 7)"),
    (field(file="o.json"), {"o.json": b""}, "field 'f': o.json: cannot be read: the file is empty"),
    (field(file="o.json", kind="series", shape=(2,)), {"o.json": [[1], [1, 2]]},
     "field 'f': o.json: expected shape (2,), found lists of unequal length"),
    (field(file="o.npy", shape=(64, 64, 4)), {"o.npy": npy(np.zeros((64, 64)))},
     "field 'f': o.npy: expected shape (64, 64, 4), found (64, 64)"),
    (field(file="o.npz", key="k"), {"o.npz": npz(a=1.0, b=2.0)},
     "field 'f': o.npz: expected key 'k', found a, b"),
    (field(file="o.npz", key="k"), {"o.npz": b"PK\x03\x04 not really"}, "field 'f': o.npz: cannot be read: "),
    (field(file="o.csv", key="c"), {"o.csv": b"a,b\n1,2\n"},
     "field 'f': o.csv: expected column 'c', found a, b"),
    (field(file="o.csv", key="a"), {"o.csv": b"a,b\n1,2\n3,4\n"},
     "field 'f': o.csv: expected one row for a scalar, found 2"),
    (field(file="o.csv", key="a"), {"o.csv": b"a,b,a\n1,2,3\n"},
     "field 'f': o.csv: expected one column 'a', found 2 with this title"),
    (field(file="o.csv", key="b", kind="series", shape=(2,)), {"o.csv": b"a,b\n1,2\n,\n3,4\n"},
     "field 'f': o.csv: expected float64, found text ''"),
    (field(file="o.csv", key="a", kind="series", shape=(2,)), {"o.csv": b'a\n1\n""\n3\n'},
     "field 'f': o.csv: expected float64, found text ''"),
    (field(file="o.csv", key="a"), {"o.csv": b"a,b\noops,2\n"},
     "field 'f': o.csv: expected float64, found text 'oops'"),
    (field(file="o.h5", key="nope"), {"o.h5": hdf5(d=1.0)},
     "field 'f': o.h5: expected a dataset 'nope', found d"),
    (field(file="o.h5", key="d"), {"o.h5": b"junk"}, "field 'f': o.h5: cannot be read: "),
    (field(file="sim.out", regex=r"E = (\S+)"), {"sim.out": b"nothing"},
     r"field 'f': sim.out: expected a match of 'E = (\S+)', found none"),
    (field(file="o.dat"), {"o.dat": b"1"}, "field 'f': o.dat: files of type '.dat' need a regex"),
]  # fmt: skip


class TestFiles:
    @pytest.mark.parametrize(("wanted", "files", "value"), GOOD)
    def test_a_field_is_read_from_every_kind_of_file(self, tmp_path, wanted, files, value):
        study = make_cmd_study(tmp_path, {0: files}, [wanted])
        assert study.collect(0, 1) == {}
        with merlin.open_shards(study.finish()) as ens:
            found = ens["f"][0]
        assert found == value if isinstance(value, str) else np.array_equal(found, value)

    @pytest.mark.parametrize(("wanted", "files", "cause"), BAD)
    def test_a_bad_file_fails_its_sample_with_field_file_and_finding(self, tmp_path, wanted, files, cause):
        study = make_cmd_study(tmp_path, {0: files}, [wanted])
        assert study.collect(0, 1)[0].startswith(cause)

    def test_what_is_no_file_is_called_what_it_is(self, tmp_path):
        study = make_cmd_study(tmp_path, {t: {} for t in range(3)}, [field(file="o.json")])
        first, second, third = (
            study.workspace.task_dir(study.sources[0], task) / "o.json" for task in range(3)
        )
        first.mkdir(parents=True)
        os.mkfifo(second)
        third.symlink_to("nowhere")
        found = ("a directory", "what is no regular file", "a link that leads nowhere")
        causes = {
            task: f"field 'f': expected a file 'o.json', found {what}" for task, what in enumerate(found)
        }
        assert study.collect(0, 3) == causes

    def test_one_bad_sample_costs_one_sample(self, tmp_path):
        files = {t: {"o.json": {"e": t}} for t in range(10)}
        files[4] = {"o.json": b"{"}
        files[6] = {}
        study = make_cmd_study(tmp_path, files, [field("e", file="o.json", key="e")])
        assert set(study.collect(0, 10)) == {4, 6}
        with merlin.open_shards(study.finish()) as ens:
            assert ens["e"][:].tolist() == [0, 1, 2, 3, 5, 7, 8, 9]

    def test_a_file_with_many_fields_is_named_in_the_cause_of_the_right_one(self, tmp_path):
        fields = [field("a", file="o.json", key="a"), field("b", file="o.json", key="b")]
        study = make_cmd_study(tmp_path, {0: {"o.json": {"a": 1}}}, fields)
        assert study.collect(0, 1) == {0: "field 'b': o.json: expected key 'b', found keys a"}


def test_the_fields_of_the_test_study_cover_every_simple_kind():
    assert {f.kind for f in FIELDS} >= {"scalar", "series", "image", "text"}
