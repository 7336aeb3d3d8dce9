"""A matrix that is named as an input becomes columns z0, z1, …, from whatever kind of file."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd
import pytest

from merlin.base.document.findings import Findings
from merlin.errors import ShardError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.importing import matrix
from merlin.shards.importing.run import import_data
from merlin.shards.proving.verify import verify
from merlin.spec.import_schema import parse_import_schema

NUM = 25


def import_(sources, text: str, out, **more):
    return import_data(sources, parse_import_schema(text, Findings("schema.yaml")), out, **more)


def write(path, z: np.ndarray):
    y = z.sum(axis=1)
    match path.suffix:
        case ".npz":
            np.savez_compressed(path, z=z, y=y)
        case ".h5":
            with h5py.File(path, "w") as file:
                file["z"], file["y"] = z, y
        case ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(z)
            parquet.write_table(pa.table({"z": tensor, "y": y}), path, row_group_size=4)
        case ".csv":
            columns = {f"p_{i}": column for i, column in enumerate(z.T)}
            pd.DataFrame({"y": y, **columns}).to_csv(path, index=False)
    return path


def write_texts(path, texts: np.ndarray):
    if path.suffix == ".npz":
        np.savez(path, y=texts)
    else:
        with h5py.File(path, "w") as file:
            file["y"] = texts
    return path


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".parquet", ".csv"])
def test_a_matrix_of_inputs_becomes_a_column_for_each_of_its_numbers(tmp_path, suffix):
    z = np.random.default_rng(0).random((NUM, 8))
    files = [
        write(tmp_path / f"a{suffix}", z[:11]),
        write(tmp_path / f"b{suffix}", z[11:]),
    ]
    key = "{key: p_*}" if suffix == ".csv" else ""
    import_(files, f"inputs: {{z: {key}}}\nfields: {{y: }}\nsamples_per_shard: 7", tmp_path / "out")
    assert verify(tmp_path / "out").ok
    with open_shards(tmp_path / "out") as ens:
        assert list(ens.inputs) == [f"z{i}" for i in range(8)]
        found = np.stack([ens.inputs[f"z{i}"][:] for i in range(8)], axis=1)
        np.testing.assert_allclose(found, z, rtol=1e-15)
        np.testing.assert_allclose(ens["y"][:], z.sum(axis=1))


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize(
    ("texts", "dtype", "good"),
    [
        (["True", "False", "0", "1", "maybe"], "bool", [True, False, False, True]),
        (["1", "2.5", "x"], "float64", [1, 2.5]),
        ([["1", "2"], ["3", "x"], ["5", "6"]], "int32", [[1, 2], [5, 6]]),
    ],
)
def test_text_of_a_fixed_length_is_read_as_numbers(tmp_path, suffix, texts, dtype, good):
    file = write_texts(tmp_path / f"a{suffix}", np.array(texts).astype("S"))
    import_([file], f"bad_values: drop\nfields: {{y: {{dtype: {dtype}}}}}", tmp_path / "out")
    with open_shards(tmp_path / "out") as ens:
        assert ens["y"][:].tolist() == good


def test_columns_that_begin_with_whole_numbers_may_go_on_with_others(tmp_path):
    (tmp_path / "a.csv").write_text("y,p0,p1\n" + "1,2,3\n" * 1000 + "1,2.5,3\n")
    import_([tmp_path / "a.csv"], "inputs: {z: {key: p*}}\nfields: {y: }", tmp_path / "out")
    with open_shards(tmp_path / "out") as ens:
        assert ens.inputs["z0"][998:].tolist() == [2, 2, 2.5]


def test_a_matrix_is_unpacked_once_for_all_of_its_columns(tmp_path, monkeypatch):
    from merlin.shards.importing.arrays import NpzFile

    read, original = [], NpzFile.read

    def noted(self, key, lo, hi, *more):
        read.append((key, lo, hi))
        return original(self, key, lo, hi, *more)

    monkeypatch.setattr(NpzFile, "read", noted)
    write(tmp_path / "a.npz", np.arange(80.0).reshape(20, 4))
    import_([tmp_path / "a.npz"], "inputs: [z]\nfields: {y: }\nsamples_per_shard: 5", tmp_path / "out")
    assert [entry for entry in read if entry[0] == "z"] == [("z", lo, lo + 5) for lo in range(0, 20, 5)]


def test_rows_that_are_too_large_to_be_kept_are_read_for_each_column(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "KEPT_BYTES", 4 * 8 * 3)
    z = np.arange(80.0).reshape(20, 4)
    write(tmp_path / "a.npz", z)
    import_([tmp_path / "a.npz"], "inputs: [z]\nfields: {y: }\nsamples_per_shard: 9", tmp_path / "out")
    with open_shards(tmp_path / "out") as ens:
        np.testing.assert_array_equal(np.stack([ens.inputs[f"z{i}"][:] for i in range(4)], axis=1), z)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs: [z, z1]\nfields: {y: }", "two columns would be called 'z1'"),
        ("inputs: [z]\nparameters: [z1]\nfields: {y: }", "two columns would be called 'z1'"),
        (
            "inputs: [image]\nfields: {y: }",
            r"inputs\.image: .*found shape \(3, 2\); name it among the fields",
        ),
        ("inputs: [wide]\nfields: {y: }", r"inputs\.wide: a sample has 1,001 numbers"),
        ("inputs: [words]\nfields: {y: }", r"inputs\.words: a sample has texts"),
    ],
)
def test_what_cannot_become_columns_is_refused(tmp_path, text, message):
    np.savez(
        tmp_path / "a.npz", y=np.arange(4.0), z=np.zeros((4, 3)), z1=np.zeros(4), image=np.zeros((4, 3, 2)),
        wide=np.zeros((4, 1001)), words=np.full((4, 2), "a"),
    )  # fmt: skip
    with pytest.raises(UsageError, match=message):
        import_([tmp_path / "a.npz"], text, tmp_path / "out")


def test_a_bad_number_of_a_matrix_is_told_with_its_place(tmp_path):
    z = np.ones((6, 3))
    z[4, 1] = np.nan
    write(tmp_path / "a.npz", z)
    with pytest.raises(ShardError, match=r"row 4, 'z', number 1"):
        import_([tmp_path / "a.npz"], "inputs: [z]\nfields: {y: {finite: false}}", tmp_path / "out")
