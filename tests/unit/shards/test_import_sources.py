"""The files an import reads: what they say they hold, and what is read from them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from msgspec.structs import replace

from merlin.errors import ShardError, UsageError
from merlin.shards.format.segments import Ragged
from merlin.shards.importing.infer import infer_schema
from merlin.shards.importing.sources import open_source


def opened(path, samples="rows", success=None):
    return open_source(path, samples, success)


def read(source, key, lo, hi):
    return source.read(key, lo, hi, source.facts(key))


def rows_of(ragged: Ragged) -> list:
    return [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)]


def test_npy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(24, dtype=np.float32).reshape(6, 2, 2))
    source = opened(tmp_path / "a.npy")
    facts = source.facts("anything")
    assert (facts.num, facts.dtype, facts.shape, source.names()) == (6, np.float32, (2, 2), ["a"])
    assert read(source, "a", 2, 4)[1, 0, 0] == 12


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_in_any_order(tmp_path, save):
    values = np.arange(1000.0).reshape(100, 10)
    save(tmp_path / "a.npz", v=values, t=np.array([f"ä{i}" for i in range(100)]), s=np.array(5))
    source = opened(tmp_path / "a.npz")
    for lo, hi in ((0, 10), (40, 60), (10, 20), (99, 100), (5, 5), (0, 100), (20, 30)):
        np.testing.assert_array_equal(read(source, "v", lo, hi), values[lo:hi])
    assert read(source, "t", 3, 5).tolist() == ["ä3", "ä4"] and source.facts("t").is_text
    with pytest.raises(ShardError, match="'s' is a single value"):
        source.facts("s")
    source.close()


def test_members_of_an_npz_are_read_in_turns(tmp_path):
    names = ("a", "b", "c")
    truth = {name: i + np.arange(60_000.0).reshape(300, 200) for i, name in enumerate(names)}
    np.savez(tmp_path / "a.npz", **truth)
    source = opened(tmp_path / "a.npz")
    for row in range(5, 298, 7):
        for name in names:
            np.testing.assert_array_equal(read(source, name, row, row + 2), truth[name][row : row + 2])
    source.close()


def test_npz_ragged(tmp_path):
    np.savez(tmp_path / "a.npz", **{"h.values": np.arange(12.0).reshape(6, 2), "h.offsets": [0, 1, 1, 4, 6]})
    source = opened(tmp_path / "a.npz")
    facts = source.facts("h")
    assert (facts.num, facts.shape, facts.ragged, source.names()) == (4, (2,), True, ["h"])
    assert rows_of(read(source, "h", 1, 4)) == [[], [[2, 3], [4, 5], [6, 7]], [[8, 9], [10, 11]]]
    facts = source.facts("h.values", "h.offsets")
    assert rows_of(source.read("h.values", 0, 1, facts, "h.offsets")) == [[[0, 1]]]


@pytest.mark.parametrize("offsets", [[1, 3, 5], [0, 3, 4], [0, 3, 6], [0, 6, 5]])
def test_offsets_lead_from_the_first_item_to_the_last(tmp_path, offsets):
    np.savez(tmp_path / "a.npz", **{"x.values": np.arange(5.0), "x.offsets": offsets})
    source = opened(tmp_path / "a.npz")
    with pytest.raises(ShardError, match=r"'x\.offsets' do not ascend from 0 to 5, the number of items"):
        for row in range(2):
            read(source, "x", row, row + 1)


def test_arrays_of_python_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", o=np.array([{}, None], dtype=object))
    with pytest.raises(ShardError, match="Python objects"):
        opened(tmp_path / "a.npz").facts("o")
    np.save(tmp_path / "o.npy", np.array([{}, None], dtype=object))
    with pytest.raises(ShardError, match=r"o\.npy: not a readable"):
        opened(tmp_path / "o.npy")


def test_arrays_in_fortran_order_say_how_to_save_them(tmp_path):
    np.savez(tmp_path / "a.npz", f=np.asfortranarray(np.ones((3, 4))))
    with pytest.raises(ShardError, match="ascontiguousarray"):
        opened(tmp_path / "a.npz").facts("f")


def test_hdf5_rows(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/v"] = np.arange(20).reshape(5, 4)
        file["g/v"].attrs["units"] = "J"
        file["t"] = ["a", "b", "ü", "d", "e"]
        file["h/values"], file["h/offsets"] = np.arange(6.0), [0, 2, 2, 3, 6, 6]
        for name, dtype in (("w", np.float32), ("wide", np.float64)):
            vlen = file.create_dataset(name, (5,), h5py.vlen_dtype(dtype))
            for i in range(5):
                vlen[i] = np.arange(i)
        file["single"] = 3
    source = opened(tmp_path / "a.h5")
    assert set(source.names()) == {"g/v", "t", "w", "wide", "h"}
    assert source.about("g/v") == {"units": "J"}
    np.testing.assert_array_equal(read(source, "g/v", 1, 3), [[4, 5, 6, 7], [8, 9, 10, 11]])
    assert read(source, "t", 2, 4).tolist() == ["ü", "d"]
    assert rows_of(read(source, "h", 0, 5)) == [[0, 1], [], [2], [3, 4, 5], []]
    for name in ("w", "wide"):
        assert source.facts(name).ragged and rows_of(read(source, name, 1, 4)) == [[0], [0, 1], [0, 1, 2]]
    with pytest.raises(ShardError, match="'single' is a single value"):
        source.facts("single")
    with pytest.raises(ShardError, match="'x' is no data set; there are: g/v"):
        source.facts("x")


def test_hdf5_groups(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, good in enumerate((1, 0, 1)):
            group = file.create_group(f"{i:03d}")
            group["performance/success"] = [good]
            if good:
                group["in/x"], group["out/image"], group["note"] = [i + 0.5], np.arange(6.0), f"n{i}"
    source = opened(tmp_path / "a.h5", "groups", "performance/success")
    assert source.names() == ["in/x", "note", "out/image"]
    assert (source.facts("in/x").shape, source.facts("out/image").shape) == ((), (6,))
    assert read(source, "in/x", 0, 3).tolist() == [0.5, 0.0, 2.5] and read(source, "note", 0, 1)[0] == "n0"
    assert source.failures(0, 3) == {1: "performance/success is 0"}
    assert source.problems("in/x", 0, 3, source.facts("in/x")) == {1: "there is none"}
    assert source.place("in/x", 1).endswith("a.h5: sample '001', 'in/x'")


def test_groups_without_the_data_set_of_success(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s0/x"], file["s1/x"], file["s1/ok"] = 1.0, 2.0, 1
        file["note"] = "no sample"
    assert opened(tmp_path / "a.h5", "groups", "ok").failures(0, 2) == {0: "there is no ok"}
    with pytest.raises(UsageError, match=r"success: no sample of .*a\.h5 has a data set 'okay'"):
        opened(tmp_path / "a.h5", "groups", "okay")


def test_text_of_groups_in_every_form(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s0/t"], file["s1/t"], file["s2/t"] = "ä", ["ä"], np.array([b"a", b"b"])
    assert read(opened(tmp_path / "a.h5", "groups"), "t", 0, 3).tolist() == ["ä", "ä", "ab"]


CSV = 'x,y,name\n1.5,2,"a, b"\n,3,c\n\n2.5,4,d\n'


def test_csv_with_titles(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    source = opened(tmp_path / "a.csv")
    assert source.names() == ["x", "y", "name"]
    assert [source.facts(k).dtype.kind for k in "xy"] == ["f", "i"] and source.facts("name").is_text
    np.testing.assert_array_equal(read(source, "x", 0, 3), [1.5, np.nan, 2.5])
    assert read(source, "y", 1, 3).tolist() == [3, 4] and read(source, "name", 0, 1)[0] == "a, b"
    assert read(source, "y", 0, 1).tolist() == [2]  # back to the start
    assert source.place("y", 2) == f"{tmp_path / 'a.csv'}:5:5: row 2, 'y'"


def test_csv_without_titles_and_series_of_columns(tmp_path):
    (tmp_path / "a.tab").write_text("1\t2\t3\n4\t5\t6\n")
    source = opened(tmp_path / "a.tab")
    assert source.names() == ["0", "1", "2"] and read(source, "1", 0, 2).tolist() == [2, 5]
    (tmp_path / "b.csv").write_text("t,p0,p1\n9,1,2\n9,3,4\n")
    source = opened(tmp_path / "b.csv")
    assert source.facts("p*").shape == (2,) and read(source, "p*", 0, 2).tolist() == [[1, 2], [3, 4]]


def test_a_first_row_that_may_be_titles_or_values_is_refused_for_columns_by_number(tmp_path):
    for name, text in (("a.csv", "0.1,run 0\n0.2,run 1\n"), ("b.csv", "0.1,n/a\n0.2,5\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=rf"{name}: the first row holds numbers and text"):
            opened(tmp_path / name).facts("0")
    (tmp_path / "c.csv").write_text("0,1,y\n3,4,5\n")  # as pandas writes columns without names
    assert read(opened(tmp_path / "c.csv"), "1", 0, 1).tolist() == [4]
    (tmp_path / "d.csv").write_text("x,y\n3,4\n")
    assert read(opened(tmp_path / "d.csv"), "1", 0, 1).tolist() == [4]


def test_rows_of_tables_as_other_programs_write_them(tmp_path):
    (tmp_path / "a.tsv").write_text('x\tname\n1\t"a\tb ""c"""\n \n2\t#1 new\n3\t"two\nlines"\n')
    source = opened(tmp_path / "a.tsv")
    assert read(source, "x", 0, 3).tolist() == [1, 2, 3]
    assert list(read(source, "name", 0, 3)) == ['a\tb "c"', "#1 new", "two\nlines"]
    assert source.place("name", 2) == f"{tmp_path / 'a.tsv'}:5:3: row 2, 'name'"
    (tmp_path / "b.csv").write_bytes(b"x,y\r1,2\r3,4\r")
    assert read(opened(tmp_path / "b.csv"), "y", 0, 2).tolist() == [2, 4]
    (tmp_path / "c.csv").write_text('x,y\n1,"2\n3,4\n')
    with pytest.raises(ShardError, match=r"c\.csv:2: a quote is not closed"):
        opened(tmp_path / "c.csv")


def test_bad_cells_are_reported_with_line_and_column(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,n/a\n4,\n")
    source = opened(tmp_path / "a.csv")
    facts = source.facts("x")  # int64
    assert source.problems("y", 0, 3, facts) == {
        1: "expected int64, found 'n/a'", 2: "expected int64, the value is missing"
    }  # fmt: skip
    assert source.place("y", 1) == f"{tmp_path / 'a.csv'}:3:3: row 1, 'y'"


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_row_of_empty_cells_is_a_row(tmp_path, suffix):
    text = 'a,b\n1,2\n\n,\n"",""\n3,4\n'
    (tmp_path / f"a{suffix}").write_text(text.replace(",", "," if suffix == ".csv" else "\t"))
    source = opened(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(read(source, "a", 0, 4), [1, np.nan, np.nan, 3])
    integers = replace(source.facts("b"), dtype=np.dtype(np.int64))
    missing = "expected int64, the value is missing"
    assert source.problems("b", 0, 4, integers) == {1: missing, 2: missing}
    assert source.place("b", 1) == f"{tmp_path / 'a'}{suffix}:4:2: row 1, 'b'"


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_column_whose_name_another_one_has_is_an_error(tmp_path, name):
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    parquet.write_table(pa.table([[1], [2], [3]], names=["a", "b", "a"]), tmp_path / "a.parquet")
    source = opened(tmp_path / name)
    assert source.facts("b").num == 1
    with pytest.raises(ShardError, match=rf"{name}: 2 columns have the name 'a'"):
        source.facts("a")
    assert infer_schema([tmp_path / name]).count("columns have the name 'a'") == 1


def test_a_row_of_another_length_is_an_error_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(ShardError, match=r"a\.csv:3: expected 2 values, found 1"):
        opened(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("\n\n")
    with pytest.raises(ShardError, match="the file is empty"):
        opened(tmp_path / "b.csv")


def test_parquet(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(6, 2, 2))
    table = pa.table(
        {
            "x": pa.array([1, None, 3, 4, 5, 6], pa.float64()),
            "n": pa.array([1, None, 3, 4, 5, 6], pa.int32()),
            "t": pa.array(["a", "b", "c", None, "e", "f"]).dictionary_encode(),
            "l": pa.array([[1.0], [], [2, 3], None, [4], [5]], pa.list_(pa.float32())),
            "p": pa.array([[[1, 2]], [], [[3, 4], [5, 6]], [], [], []], pa.list_(pa.list_(pa.int64(), 2))),
            "f": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 10]], pa.list_(pa.int16(), 2)),
            "m": tensor,
            "b": pa.array([True, False] * 3),
            "when": pa.array([0] * 6, pa.timestamp("s")),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    source = opened(tmp_path / "a.parquet")
    np.testing.assert_array_equal(read(source, "x", 0, 3), [1, np.nan, 3])
    assert read(source, "n", 3, 6).tolist() == [4, 5, 6] and read(source, "b", 0, 2).tolist() == [True, False]
    assert source.problems("n", 0, 6, source.facts("n")) == {1: "the value is missing"}
    assert source.problems("t", 2, 6, source.facts("t")) == {3: "the value is missing"}
    assert read(source, "t", 0, 5).tolist() == ["a", "b", "c", "", "e"]
    assert source.facts("l").ragged and rows_of(read(source, "l", 2, 6)) == [[2, 3], [], [4], [5]]
    assert source.facts("p").shape == (2,) and rows_of(read(source, "p", 0, 3)) == [
        [[1, 2]],
        [],
        [[3, 4], [5, 6]],
    ]
    assert read(source, "f", 0, 3).tolist() == [[1, 2], [0, 0], [3, 4]]
    assert source.facts("m").shape == (2, 2) and read(source, "m", 3, 6)[0, 0, 0] == 12
    with pytest.raises(ShardError, match="'when' holds timestamp"):
        source.facts("when")


def test_a_null_inside_of_a_list_is_a_bad_value_unless_it_can_be_nan(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    pairs = pa.list_(pa.int64(), 2)
    table = pa.table(
        {
            "i": pa.array([[1, 2], [], None, [3, None], [4]], pa.list_(pa.int64())),
            "b": pa.array([[True], [None], [], None, [False]], pa.list_(pa.bool_())),
            "x": pa.array([[1], [None], [], None, [2]], pa.list_(pa.float64())),
            "p": pa.array([[[1, 2], None], [], None, [[3, None]], [[5, 6], [7, 8]]], pa.list_(pairs)),
            "f": pa.array([[1, 2], None, [3, None], [5, 6], [7, 8]], pairs),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    source = opened(tmp_path / "a.parquet")
    row, item = "the value is missing", "one of its values is missing"
    expected = {
        "i": {2: row, 3: item}, "b": {1: item, 3: row}, "x": {3: row}, "p": {0: item, 2: row, 3: item},
        "f": {1: row, 2: item},
    }  # fmt: skip
    for key, problems in expected.items():
        assert source.problems(key, 0, 5, source.facts(key)) == problems
    assert source.problems("i", 1, 4, source.facts("i")) == {2: row, 3: item}


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.h5", "a.parquet"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / name).write_bytes(b"not this kind of file")
    with pytest.raises(ShardError, match=f"{name}: not a readable"):
        opened(tmp_path / name)


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "a.xls").write_text("")
    with pytest.raises(UsageError, match=r"files to import end in \.npy, \.npz"):
        opened(tmp_path / "a.xls")
    with pytest.raises(UsageError, match="no such file"):
        opened(tmp_path / "none.csv")
