"""Imports: what comes out is a data set like any other, and an import of an export is the data set again."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from export_data import BAD, GAPS, NUM, RAGGED, Made, assert_same, make_kinds, make_values, save_npz

from merlin.base.document.findings import Findings
from merlin.errors import NotADataSetError, ShardError, SpecError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.export.base import ExportOptions
from merlin.shards.export.run import export
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.importing import write
from merlin.shards.importing.infer import infer_schema
from merlin.shards.importing.run import import_data
from merlin.shards.proving.verify import verify
from merlin.shards.reading.planned import absent_values, planned_rows
from merlin.spec.import_schema import parse_import_schema


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> Made:
    return make_kinds(tmp_path_factory.mktemp("kinds"))


def schema(text: str):
    return parse_import_schema(text, Findings("schema.yaml"))


def import_(sources, text: str, out, **more):
    return import_data(sources, schema(text), out, **more)


def test_every_value_is_there_and_the_data_set_is_intact(kinds):
    assert verify(kinds.path).ok
    with open_shards(kinds.path) as ens:
        np.testing.assert_array_equal(ens.row, kinds.rows)
        for name, column in kinds.values.items():
            path = name if "/" in name else ens.fields[name].path
            for i, expected in enumerate(column):
                found = ens.column_at(path)[i]
                if not path.startswith("fields"):
                    assert found == expected
                else:
                    assert_same(found, expected)
        assert ens.fields["image"].channels == ("soft", "hard") and ens.fields["view"].layout == "chw"
        assert ens.fields["view"].statistics.num_channels == 3
        assert set(ens["mesh"][0]) == {"nodes", "edges", "targets"}


def test_names_with_a_percent_sign_are_names_like_any_other(tmp_path):
    (tmp_path / "a.csv").write_text("eff %,%b,100%%\n1,2,3\n4,5,6\n")
    text = "fields: {'eff %': {dtype: float64}, '%b': {dtype: float64}, '100%%': {dtype: float64}}"
    import_([tmp_path / "a.csv"], text, tmp_path / "out")
    assert verify(tmp_path / "out").ok
    expected = {"eff %": [1, 4], "%b": [2, 5], "100%%": [3, 6]}
    with open_shards(tmp_path / "out") as ens:
        assert {name: ens[name][:].tolist() for name in expected} == expected
    with h5py.File(tmp_path / "out/ensemble.h5") as file:
        assert {name: file[f"fields/{name}"][:].tolist() for name in expected} == expected


def test_counts_add_up_and_say_why_samples_are_left_out(kinds):
    data = read_manifest(kinds.path)
    assert (data.counts.planned, data.counts.ok) == (NUM + len(GAPS), NUM - len(BAD))
    assert (data.counts.failed, data.counts.missing) == (len(BAD), len(GAPS)) and data.counts.reconciled
    assert {group.cause for group in data.failures} == {
        "fields energy: expected a finite value, found nan", "fields energy: expected a finite value, found inf"
    }  # fmt: skip


@pytest.mark.parametrize("to", ["npz", "parquet"])
def test_an_import_of_an_export_has_the_same_content(kinds, tmp_path, to):
    told = export(kinds.path, tmp_path / "out", ExportOptions(format=to, samples_per_file=13))
    files = [tmp_path / "out" / entry["file"] for entry in told["files"]]
    text = infer_schema(files) + "samples_per_shard: 16\n"
    again = import_(files, text, tmp_path / "again")
    assert again.num_rows == len(kinds.rows) and verify(tmp_path / "again").ok
    before = read_manifest(kinds.path)
    digests = {s.content_digest for s in before.shards}
    assert {
        s.content_digest for s in again.shards
    } == digests and again.content_digest == before.content_digest
    kept = ("name", "kind", "dtype", "shape", "units", "description", "layout", "channels", "ragged", "graph")
    for field, other in zip(
        sorted(before.fields, key=lambda f: f.name), sorted(again.fields, key=lambda f: f.name), strict=True
    ):
        assert [getattr(field, name) for name in kept] == [getattr(other, name) for name in kept]


def test_an_import_of_the_shards_themselves_has_the_same_content(kinds, tmp_path):
    before = read_manifest(kinds.path)
    files = [kinds.path / shard.file for shard in before.shards]
    again = import_(files, infer_schema(files) + "samples_per_shard: 16\n", tmp_path)
    assert again.content_digest == before.content_digest


def test_an_import_of_lbann_bundles_has_the_same_samples(kinds, tmp_path):
    fields = ("energy", "history", "image", "note")
    told = export(
        kinds.path, tmp_path / "out", ExportOptions(format="lbann", fields=fields, samples_per_file=30)
    )
    files = [tmp_path / "out" / entry["file"] for entry in told["files"]]
    text = infer_schema(files)
    assert "samples: groups" in text and "success: performance/success" in text
    again = import_(files, f"{text}bad_values: drop\n", tmp_path / "again")
    assert (again.counts.ok, again.counts.failed) == (len(kinds.rows), len(BAD))
    with open_shards(tmp_path / "again") as ens:
        np.testing.assert_array_equal(ens["energy"][:], kinds.values["energy"])
        np.testing.assert_array_equal(ens["image"][:].reshape(-1, 6, 5, 2), kinds.values["image"])
        assert list(ens["note"][:]) == kinds.values["note"]
        np.testing.assert_array_equal(ens.inputs["x"][:], kinds.values["inputs/x"])


def test_files_of_several_kinds_belong_together_row_by_row(tmp_path):
    images = np.random.default_rng(1).random((5, 4, 4)).astype("f4")
    np.save(tmp_path / "images_0.npy", images[:2])
    np.save(tmp_path / "images_1.npy", images[2:])
    (tmp_path / "runs.csv").write_text("x,e\n" + "".join(f"{i / 4},{i}\n" for i in range(5)))
    files = [tmp_path / "runs.csv", tmp_path / "images_0.npy", tmp_path / "images_1.npy"]
    data = import_(
        files, "inputs: [x]\nfields: {e: {dtype: float64}, image: {file: images*.npy}}", tmp_path / "out"
    )
    assert data.counts.ok == 5 and verify(tmp_path / "out").ok
    with open_shards(tmp_path / "out") as ens:
        np.testing.assert_array_equal(ens["image"][:], images)
        assert ens["e"][:].tolist() == [0, 1, 2, 3, 4] and ens.inputs["x"][3] == 0.75


def test_flat_arrays_and_lists_get_the_shape_that_is_said(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    flat = np.arange(24.0).reshape(2, 12)
    parquet.write_table(pa.table({"a": pa.array(flat.tolist())}), tmp_path / "a.parquet")
    np.savez(tmp_path / "b.npz", b=flat)
    import_([tmp_path / "a.parquet"], "fields: {a: {shape: [3, 4]}}", tmp_path / "one")
    import_([tmp_path / "b.npz"], "fields: {b: {shape: [3, 4]}}", tmp_path / "two")
    for name, field in (("one", "a"), ("two", "b")):
        with open_shards(tmp_path / name) as ens:
            np.testing.assert_array_equal(ens[field][:], flat.reshape(2, 3, 4))
    parquet.write_table(pa.table({"a": pa.array([[1.0, 2.0], [1.0]])}), tmp_path / "a.parquet")
    with pytest.raises(ShardError, match=r"a\.parquet: row 1, 'a': expected 2 values, found 1"):
        import_([tmp_path / "a.parquet"], "fields: {a: {shape: [2]}}", tmp_path / "three")


def test_a_bad_value_ends_the_import_with_its_place(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2.5\n2,nan\n3,n/a\n")
    with pytest.raises(
        ShardError, match=r"a\.csv:3:3: row 1, 'y': expected a finite value, found nan \(and in 1 more"
    ):
        import_([tmp_path / "a.csv"], "fields: {x: , y: {dtype: float64}}", tmp_path / "out")
    np.savez(tmp_path / "b.npz", n=np.array([1, 300, -1]))
    with pytest.raises(ShardError, match=r"b\.npz: row 1, 'n': expected uint8 values, found 300"):
        import_([tmp_path / "b.npz"], "fields: {n: {dtype: uint8}}", tmp_path / "out2")
    assert not list(tmp_path.glob("out*/manifest.json")) and not list(tmp_path.glob("out*/shard_*"))


@pytest.mark.parametrize(
    ("dtype", "beyond"), [("int64", 2**63), ("uint64", 2**64), ("int32", 2**63), ("uint64", -1)]
)
def test_an_integer_that_does_not_fit_leaves_the_others_exact(tmp_path, dtype, beyond):
    large = 2**53 + 1 if dtype != "int32" else 5
    (tmp_path / "a.csv").write_text(f"a\n1\n{beyond}\n{large}\n")
    text = f"bad_values: drop\nfields: {{a: {{dtype: {dtype}}}}}"
    data = import_([tmp_path / "a.csv"], text, tmp_path / "out")
    assert (
        data.failures[0].cause == f"fields a: expected {dtype} values, found {beyond}, which is out of range"
    )
    with open_shards(tmp_path / "out") as ens:
        assert ens["a"][:].tolist() == [1, large]
    with pytest.raises(ShardError, match=rf"a\.csv:3:1: .*found {beyond}, which is out of range"):
        import_([tmp_path / "a.csv"], f"fields: {{a: {{dtype: {dtype}}}}}", tmp_path / "again")


def test_values_that_are_not_finite_are_kept_where_the_field_says_so(tmp_path):
    np.savez(tmp_path / "a.npz", y=[1.0, np.nan, np.inf])
    import_([tmp_path / "a.npz"], "fields: {y: {finite: false}}", tmp_path / "out")
    with open_shards(tmp_path / "out") as ens:
        np.testing.assert_array_equal(ens["y"][:], [1.0, np.nan, np.inf])
        assert ens.fields["y"].statistics.count == (1,)


@pytest.mark.parametrize("to", ["npz", "parquet", "shards"])
def test_what_files_say_of_a_field_is_taken_over(tmp_path, to):
    np.savez(tmp_path / "a.npz", y=[1.0, np.nan], image=np.ones((2, 3, 4, 4)), **{"h.values": [1.0, np.inf, 2.0]},
             **{"h.offsets": [0, 2, 3]})  # fmt: skip
    fields = (
        "{y: {finite: false}, h: {finite: false, units: m}, "
        "image: {layout: chw, channels: [r, g, b], axes: [colour, y, x]}}"
    )
    before = import_([tmp_path / "a.npz"], f"fields: {fields}", tmp_path / "data")
    files = [tmp_path / "data" / shard.file for shard in before.shards]
    if to != "shards":
        told = export(tmp_path / "data", tmp_path / "out", ExportOptions(format=to))
        files = [tmp_path / "out" / entry["file"] for entry in told["files"]]
    again = import_(files, infer_schema(files), tmp_path / "again")
    assert again.content_digest == before.content_digest
    kept = ("name", "kind", "units", "finite", "axes", "layout", "channels")
    known = {field.name: field for field in again.fields}
    for field in before.fields:
        assert all(getattr(known[field.name], name) == getattr(field, name) for name in kept)


def test_what_a_file_says_is_not_taken_over_where_it_does_not_fit(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros((3, 4))
        file["a"].attrs.update(
            {"kind": "image", "layout": "hwc", "axes": '["y", "x"]', "finite": "maybe", "units": [1, 2]}
        )
    field = import_([tmp_path / "a.h5"], infer_schema([tmp_path / "a.h5"]), tmp_path / "out").fields[0]
    assert (field.kind, field.layout, field.axes, field.finite) == ("series", "", (), True)


def test_another_schema_may_follow_an_import_that_wrote_nothing(tmp_path):
    np.savez(tmp_path / "a.npz", y=[1.0, np.nan])
    with pytest.raises(ShardError, match=r"found nan; mend it, keep it with finite: false in a schema, or"):
        import_([tmp_path / "a.npz"], "fields: {y: }", tmp_path / "out")
    assert import_([tmp_path / "a.npz"], "fields: {y: {finite: false}}", tmp_path / "out").counts.ok == 2


def test_a_killed_import_goes_on_and_ends_in_the_same_data_set(kinds, tmp_path, monkeypatch):
    rows, values = make_values()
    save_npz(tmp_path / "kinds.npz", rows, values)
    from export_data import SCHEMA

    original, written = write.store_shard, []

    def stops(place, *rest):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(place.shard)
        return original(place, *rest)

    monkeypatch.setattr(write, "store_shard", stops)
    with pytest.raises(KeyboardInterrupt):
        import_([tmp_path / "kinds.npz"], SCHEMA, tmp_path / "out")
    assert written == [0, 1] and not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(NotADataSetError, match="its import has not finished; give the same command again"):
        verify(tmp_path / "out")
    (tmp_path / "out" / "shard_00001.h5").write_bytes(b"damaged since")
    monkeypatch.setattr(
        write, "store_shard", lambda place, *rest: written.append(place.shard) or original(place, *rest)
    )
    data = import_([tmp_path / "kinds.npz"], SCHEMA, tmp_path / "out")
    before = read_manifest(kinds.path)
    assert written == [0, 1, 1, 2, 3] and data.content_digest == before.content_digest
    assert data.counts == before.counts and len(data.failures) == len(before.failures)
    assert not (tmp_path / "out" / ".import").exists() and verify(tmp_path / "out").ok
    del written[:]
    assert import_([tmp_path / "kinds.npz"], SCHEMA, tmp_path / "out").content_digest == data.content_digest
    assert written == []  # there is nothing left to do


def test_other_files_or_another_schema_are_another_import(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.arange(5.0))
    import_([tmp_path / "a.npz"], "fields: {y: }", tmp_path / "out")
    with pytest.raises(UsageError, match=r"holds another data set; .*--overwrite"):
        import_([tmp_path / "a.npz"], "fields: {y: {units: J}}", tmp_path / "out")
    data = import_([tmp_path / "a.npz"], "fields: {y: {units: J}}", tmp_path / "out", overwrite=True)
    assert data.fields[0].units == "J"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        import_([tmp_path / "a.npz"], "fields: {y: }", tmp_path / "mine", overwrite=True)


def test_a_data_set_stays_until_the_one_that_replaces_it_is_complete(tmp_path, monkeypatch):
    out, a, b = tmp_path / "out", tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(a, y=np.arange(5.0))
    np.savez(b, y=[6.0, np.nan])
    before = import_([a], "fields: {y: }\nsamples_per_shard: 2", out)
    with pytest.raises(ShardError, match="found nan"):
        import_([b], "fields: {y: }", out, overwrite=True)
    (out / "thesis.tex").write_text("precious")
    text = "fields: {y: {finite: false}}"
    with pytest.raises(UsageError, match=r"thesis\.tex is not of the data set"):
        import_([b], text, out, overwrite=True)
    assert verify(out).ok and read_manifest(out) == before and not (out / ".import").exists()
    (out / "thesis.tex").unlink()

    replace = type(out).replace

    def stops(path, target):
        if path.name == "shard_00000.h5" and path.parent.parent.name == ".import":
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(out), "replace", stops)
        import_([b], text, out, overwrite=True)
    assert import_([b], text, out, overwrite=True).counts.ok == 2
    assert verify(out).ok
    assert sorted(path.name for path in out.iterdir()) == [
        "ensemble.h5",
        "manifest.json",
        "shard_00000.h5",
        "shard_00000.json",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fields: {q: }", r"fields\.q: no file has 'q'; .*a\.npz has y, x, t, i.*key:"),
        ("inputs: [q]\nfields: {y: }", r"inputs\.q: no file has 'q'"),
        ("inputs: [z]\nfields: {y: }", r"inputs\.z holds complex numbers; name it among the fields"),
        ("fields: {y: {file: b*}}", r"fields\.y: no file is called b\*; there are: a\.npz"),
        ("fields: {y: , x: }", "do not agree on the number of samples: 4 in 'fields/y', 6 in 'fields/x'"),
        ("fields: {y: {shape: [3]}}", r"fields\.y: expected shape \[3\], found \[\]"),
        ('fields: {y: {shape: ["*"]}}', r"fields\.y: expected any number of items"),
        ("fields: {y: {dtype: int32}}", r"fields\.y: float64 in the files does not become int32"),
        ("fields: {t: {kind: scalar}}", r"fields\.t holds text; say kind: text"),
        ("fields: {y: }\nsample_id: y", "sample_id: expected a whole number for each of the 4 samples"),
        ("fields: {i: }\nsample_id: i", "sample id 7 after 9; sample ids ascend"),
        ("fields: {y: }\nsample_id: far\nsamples_per_shard: 2", "most shards would be empty"),
    ],
)
def test_a_schema_that_does_not_fit_the_files(tmp_path, text, message):
    np.savez(
        tmp_path / "a.npz", y=np.arange(4.0), x=np.arange(6.0), t=np.array(["a"] * 4), i=[5, 9, 7, 8],
        far=[0, 10, 10**9, 10**12], z=[1j, 2, 3, 4],
    )  # fmt: skip
    with pytest.raises((UsageError, ShardError), match=message):
        import_([tmp_path / "a.npz"], text, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "place", "message"),
    [
        ("a: {kind: image, key: img, layout: hwc}", (2, 38), "the layout hwc has 3 axes, its shape has 2"),
        ("a: {kind: scalar, key: img}", (2, 3), "field a is of kind scalar, and its shape has 2 axes"),
        ("a: {kind: image, key: x}", (2, 3), "field a is of kind image, and its shape has 0 axes"),
        (
            "a: {kind: image, key: x, shape: [1]}",
            (2, 35),
            "field a is of kind image, and its shape has 1 axes",
        ),
        ("a: {key: img, channels: [a, b]}", (2, 27), "names 2 channels, but its shape has no axis for them"),
        ("a: {key: rgb, channels: [a, b]}", (2, 27), "names 2 channels, but its shape has 3"),
        ("a: {key: img, axes: [a, b, c]}", (2, 23), "field a names 3 axes, but its shape has 2"),
        ("a: {key: img, kind: ragged}", (2, 3), 'is ragged, so its shape has to begin with "*"'),
        ("a: {key: words}", (2, 3), "field a is of kind text, and its shape has 1 axes"),
        ("a: {kind: graph, members: {nodes: {key: img}}}", (2, 30), 'a.nodes: its shape has to be ["*"] or'),
    ],
)
def test_what_a_field_is_said_to_be_has_to_fit_the_shape_in_the_files(tmp_path, field, place, message):
    words = np.array([["a", "b"]] * 3)
    np.savez(
        tmp_path / "a.npz", img=np.zeros((3, 8, 8)), rgb=np.zeros((3, 8, 8, 3)), x=np.zeros(3), words=words
    )
    with pytest.raises(SpecError) as found:
        import_([tmp_path / "a.npz"], f"fields:\n  {field}", tmp_path / "out")
    (only,) = found.value.diagnostics
    assert message in only.message and (only.file, only.line, only.col) == ("schema.yaml", *place)
    assert "shape" in field or "in the files a sample has the shape [" in only.hint
    assert not (tmp_path / "out").exists()


def test_the_samples_that_a_file_calls_failed_are_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, ok in enumerate((1, 0, 1)):
            file[f"s{i}/in/x"], file[f"s{i}/out/img"], file[f"s{i}/ok"] = float(i), np.ones((4, 4)), ok
    text = "samples: groups\nsuccess: ok\nfields: {x: {key: in/x}, img: {key: out/img}}"
    data = import_([tmp_path / "a.h5"], text, tmp_path / "out")
    assert (data.counts.ok, data.counts.failed) == (2, 1) and data.failures[0].cause == "ok is 0"
    with open_shards(tmp_path / "out") as ens:
        assert ens.sample_id.tolist() == [0, 2] == ens["x"][:].tolist()
    inferred = infer_schema([tmp_path / "a.h5"])
    assert "samples: groups\n# success:" in inferred
    assert import_([tmp_path / "a.h5"], inferred, tmp_path / "again").counts.ok == 3


@pytest.mark.parametrize(
    ("field", "kept", "cause"),
    [
        ("dtype: float64", [1, 1.5, 2.75, 300, 4.5], "expected float64, found 'abc'"),
        ("dtype: uint8", [1], "expected uint8, found float64"),
        ("kind: text", ["1", "1.5", "2.75", "abc", "300", "4.5"], None),
    ],
)
def test_samples_in_groups_may_have_values_of_several_types(tmp_path, field, kept, cause):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, value in enumerate((1, 1.5, 2.75, "abc", np.int16(300), "4.5")):
            file[f"s{i}/x"] = value
    text = f"samples: groups\nbad_values: drop\nfields: {{x: {{{field}}}}}"
    data = import_([tmp_path / "a.h5"], text, tmp_path / "out")
    assert not cause or f"fields x: {cause}" in {group.cause for group in data.failures}
    with open_shards(tmp_path / "out") as ens:
        assert list(ens["x"][:]) == kept


def test_large_whole_numbers_in_groups_stay_what_they_are(tmp_path):
    values = (np.int64(2**60 + 1), np.uint64(5), np.uint64(2**63))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, value in enumerate(values):
            file[f"s{i}/x"] = value
    data = import_([tmp_path / "a.h5"], "samples: groups\nbad_values: drop\nfields: {x: }", tmp_path / "out")
    assert [group.cause for group in data.failures] == [f"fields x: {2**63} is out of the range of int64"]
    with open_shards(tmp_path / "out") as ens:
        assert ens["x"][:].tolist() == [2**60 + 1, 5]


def test_numbers_become_text_where_text_is_wanted(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([0.1, 2], "f4"), y=[1, 2])
    np.savez(tmp_path / "b.npz", x=["a", "b"], y=[3, 4])
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["y"] = [1, 2]
    import_(
        [tmp_path / "a.npz", tmp_path / "b.npz"], "inputs: [x]\nfields: {y: {kind: text}}", tmp_path / "one"
    )
    with open_shards(tmp_path / "one") as ens:
        assert list(ens.inputs["x"][:]) == ["0.1", "2.0", "a", "b"] and list(ens["y"][:]) == list("1234")
    import_([tmp_path / "c.h5"], "fields: {y: {kind: text}}", tmp_path / "two")
    with open_shards(tmp_path / "two") as ens:
        assert list(ens["y"][:]) == ["1", "2"]


@pytest.mark.parametrize("suffix", ["npz", "h5"])
@pytest.mark.parametrize(
    ("dtype", "kept", "why"),
    [
        ("float64", [1, 2.5, -3], "expected float64, found 'x'"),
        ("int8", [1, -3], "expected int8, found '2.5'"),
        ("bool", [True], "expected bool, found '2.5'"),
    ],
)
def test_text_becomes_numbers_where_these_are_wanted(tmp_path, suffix, dtype, kept, why):
    texts = np.array(["1", "2.5", "x", "-3", "9" * 400 if dtype == "int8" else ""])
    path = tmp_path / f"a.{suffix}"
    if suffix == "npz":
        cuts = np.array([0, 1, 1, 5, 5, 5])
        np.savez(path, **{"y": texts, "r.values": np.array(["4", "5", "z", "6", "7"]), "r.offsets": cuts})
    else:
        with h5py.File(path, "w") as file:
            file["y"] = texts.astype(object)
    text = f"fields: {{y: {{dtype: {dtype}}}}}\n"
    with pytest.raises(ShardError, match=why):
        import_([path], text, tmp_path / "out")
    data = import_([path], f"{text}bad_values: drop\n", tmp_path / "out")
    assert data.counts.ok == len(kept)
    with open_shards(tmp_path / "out") as ens:
        assert ens["y"][:].tolist() == kept
    if suffix == "npz":
        ragged = "bad_values: drop\nfields: {r: {kind: ragged, shape: ['*'], dtype: float64}}"
        import_([path], ragged, tmp_path / "ragged")
        with open_shards(tmp_path / "ragged") as ens:
            assert [ens["r"][i].tolist() for i in range(4)] == [[4], [], [], []]


def test_ids_that_begin_late_are_kept(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.arange(4.0), id=[5000, 5001, 5003, 5004])
    data = import_(
        [tmp_path / "a.npz"], "fields: {y: }\nsample_id: id\nsamples_per_shard: 3", tmp_path / "out"
    )
    assert (data.counts.planned, data.counts.missing) == (5, 1) and verify(tmp_path / "out").ok
    with open_shards(tmp_path / "out") as ens:
        assert ens.sample_id.tolist() == [5000, 5001, 5003, 5004] and ens.row.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("rows", "ids", "sources"),
    [
        ([0, 2, 3, 5, 7], [0, 2, 3, 1, 3], [(0, 0, 4), (4, 0, 4)]),
        ([6, 7, 9], [1, 2, 4], [(0, 0, 5), (5, 0, 5)]),  # of the second combination alone
        ([0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 2], [(0, 0, 2), (2, 0, 3), (5, 2, 1)]),  # of an extended study
        ([0, 1, 2], [0, 0, 0], [(0, 0, 1), (1, 0, 1), (2, 0, 1)]),
        ([5000, 5001], [0, 0], [(0, 0, 1), (1, 0, 1)]),
        ([0, 1], [70, 71], [(0, 70, 2)]),
        ([], [], [(0, 0, 0)]),
    ],
)
def test_ids_may_begin_again_where_the_rows_are_known(tmp_path, rows, ids, sources):
    rows, ids = np.array(rows, np.int64), np.array(ids, np.int64)
    np.savez(tmp_path / "a.npz", y=ids + 0.5, row=rows, sample_id=ids)
    text = "fields: {y: }\nrow: row\nsample_id: sample_id"
    data = import_([tmp_path / "a.npz"], text, tmp_path / "out")
    assert [(s.first_row, s.first_sample, s.num_tasks) for s in data.sources] == sources
    assert data.counts.reconciled and data.counts.ok == len(rows) and verify(tmp_path / "out").ok
    assert sum(s.counts.missing for s in data.sources) == data.counts.missing
    with open_shards(tmp_path / "out") as ens:
        np.testing.assert_array_equal(ens.sample_id, ids)
        np.testing.assert_array_equal(ens.row, rows - (5000 if 5000 in rows else 0))


@pytest.mark.parametrize(
    ("rows", "ids", "message"),
    [
        ([0, 2, 1], [0, 1, 2], r"row 2, 'row': row 1 after 2; rows ascend from 0 on"),
        (
            [0, 1, 2],
            [0, 2, 3],
            r"row 1, 'sample_id': sample id 2 after 0; from row to row ids count on, or begin",
        ),
        ([0, 1, 2], [-1, 0, 1], r"row 0, 'sample_id': sample id -1;"),
        ([0, 10**6, 10**9], [0, 1, 2], r"row: 3 samples have numbers from 0 to 1000000000; most shards"),
    ],
)
def test_rows_and_ids_that_cannot_be(tmp_path, rows, ids, message):
    np.savez(tmp_path / "a.npz", y=np.zeros(3), row=rows, sample_id=ids)
    with pytest.raises((ShardError, UsageError), match=message):
        import_([tmp_path / "a.npz"], "fields: {y: }\nrow: row\nsample_id: sample_id", tmp_path / "out")


@pytest.mark.parametrize("to", ["npz", "parquet", "shards"])
def test_an_import_of_a_study_with_parameters_has_the_same_content(tmp_path, to):
    rows = np.setdiff1d(np.arange(40), [3, 19, 20])
    np.savez(
        tmp_path / "a.npz", y=np.where(rows == 25, np.nan, rows), P=rows // 20, row=rows, sample_id=rows % 20
    )
    text = "parameters: [P]\nfields: {y: }\nrow: row\nsample_id: sample_id\nsamples_per_shard: 16\n"
    before = import_([tmp_path / "a.npz"], f"{text}bad_values: drop", tmp_path / "data")
    assert [(group.source, group.num) for group in before.failures] == [("import/1", 1)]
    files = [tmp_path / "data" / shard.file for shard in before.shards]
    if to != "shards":
        told = export(tmp_path / "data", tmp_path / "out", ExportOptions(format=to, samples_per_file=15))
        files = [tmp_path / "out" / entry["file"] for entry in told["files"]]
    again = import_(files, infer_schema(files) + "samples_per_shard: 16\n", tmp_path / "again")
    assert again.content_digest == before.content_digest and verify(tmp_path / "again").ok


def test_the_parameters_of_missing_samples_are_not_known(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(2), P=[1, 2], sample_id=[0, 3])
    data = import_(
        [tmp_path / "a.npz"], "parameters: [P]\nfields: {y: }\nsample_id: sample_id", tmp_path / "out"
    )
    where, found = absent_values(data, planned_rows(data), {"P": "parameters/P"})
    assert (len(where), found) == (2, {})


def test_a_column_called_row_in_other_files_numbers_nothing(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(3), row=[4, 4, 2], sample_id=[0, 1, 2])
    assert schema(infer_schema([tmp_path / "a.npz"])).row is None


def test_no_samples_are_an_empty_data_set(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(0), image=np.zeros((0, 4, 4), "f4"))
    data = import_([tmp_path / "a.npz"], "fields: {y: , image: }", tmp_path / "out")
    assert data.counts.planned == 0 and data.num_rows == 0 and verify(tmp_path / "out").ok


def test_a_compressed_import_is_read_back(tmp_path):
    values = np.round(np.random.default_rng(2).random((50, 16, 16)), 2).astype("f4")
    np.savez_compressed(tmp_path / "a.npz", image=values)
    data = import_(
        [tmp_path / "a.npz"], "fields: {image: }\ncompression: zstd\nsamples_per_shard: 20", tmp_path / "out"
    )
    assert data.fields[0].compression == "zstd" and verify(tmp_path / "out").ok
    with open_shards(tmp_path / "out") as ens:
        np.testing.assert_array_equal(ens["image"][:], values)


def test_inference_leaves_out_what_cannot_be_a_column_and_says_so(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"], file["image"] = np.arange(3.0), np.zeros((3, 8, 8, 2))
        file["config"] = 5
        file["when"] = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
    text = infer_schema([tmp_path / "a.h5"])
    assert "# left out:" in text and "'when' holds" in text and "config" not in text
    parsed = schema(text)
    assert parsed.fields["image"].kind == "image" and parsed.fields["y"].kind == "scalar"


def test_names_that_yaml_takes_for_something_else_survive_inference(tmp_path):
    names = ["yes", "n", "1", "a b", "(0.0, 0.0)", "ä:b", "null"]
    np.savez(tmp_path / "a.npz", **{name: np.arange(3.0) for name in names})
    parsed = schema(infer_schema([tmp_path / "a.npz"]))
    assert list(parsed.fields) == names
    import_([tmp_path / "a.npz"], infer_schema([tmp_path / "a.npz"]), tmp_path / "out")
    with open_shards(tmp_path / "out") as ens:
        assert ens["(0.0, 0.0)"][2] == 2.0


def test_what_an_export_wrote_down_is_in_the_inferred_schema(kinds, tmp_path):
    told = export(kinds.path, tmp_path, ExportOptions(format="npz"))
    text = infer_schema([tmp_path / told["files"][0]["file"]])
    parsed = schema(text)
    assert list(parsed.inputs) == ["x", "energy", "material"] and list(parsed.parameters) == ["LEVEL"]
    assert parsed.fields["energy"].units == "J" and parsed.fields["mesh"].kind == "graph"
    assert set(parsed.fields["mesh"].members) == {"nodes", "edges", "targets"}
    assert parsed.sample_id is not None and parsed.sample_id.key == "sample_id"
    assert all(parsed.fields[name].shape[0] is None for name in RAGGED if "." not in name)
    assert json.loads((tmp_path / "export.json").read_text())["num_samples"] == len(kinds.rows)


def test_graphs_whose_members_do_not_fit_together_are_bad_values(tmp_path):
    graph = {
        "nodes.values": np.arange(5.0)[:, None], "nodes.offsets": [0, 2, 5],
        "edges.values": np.array([[0, 1], [1, 0], [0, 3]]), "edges.offsets": [0, 2, 3],
    }  # fmt: skip
    np.savez(tmp_path / "a.npz", **graph)
    text = "fields:\n  g:\n    kind: graph\n    members: {nodes: {key: nodes}, edges: {key: edges}}\n"
    with pytest.raises(ShardError, match=r"a\.npz: row 1.*an edge leads to node 3, and there are 3"):
        import_([tmp_path / "a.npz"], text, tmp_path / "out")
    data = import_([tmp_path / "a.npz"], f"{text}bad_values: drop", tmp_path / "out2")
    assert (data.counts.ok, data.counts.failed) == (1, 1) and "edge leads to node 3" in data.failures[0].cause


def test_numbers_of_other_machines_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.arange(4).astype(">f4"), n=np.arange(4).astype(">i2"))
    data = import_([tmp_path / "a.npz"], "fields: {y: , n: }", tmp_path / "out")
    assert [f.dtype for f in data.fields] == ["<f4", "<i2"]
    with open_shards(tmp_path / "out") as ens:
        assert ens["y"][:].tolist() == [0, 1, 2, 3] == ens["n"][:].tolist()
