"""Samples files of every format: values, their text, and what is refused."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import SamplesError
from merlin.workspace.new_samples import write_rows
from merlin.workspace.reading_progress import reading_watched
from merlin.workspace.same_samples import digest
from merlin.workspace.samples import check_samples, open_samples, save_samples
from merlin.workspace.samples_table import JoinedRows, SamplesTable

LABELS = ("X0", "X1")


def write(path, text):
    path.write_text(text)
    return path


def findings(path, labels=LABELS):
    with pytest.raises(SamplesError) as caught:
        check_samples(open_samples(path, labels))
    return caught.value.diagnostics


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".tab", ".parquet"])
def test_saved_samples_come_back_from_every_format(tmp_path, suffix):
    array = np.random.default_rng(0).normal(size=(257, 2))
    save_samples(tmp_path / f"s{suffix}", array, LABELS)
    table = open_samples(tmp_path / f"s{suffix}", LABELS)
    check_samples(table)
    assert isinstance(table, SamplesTable)
    assert (table.num, table.labels, table.numeric) == (257, LABELS, True)
    assert np.array_equal(table.rows(100, 150)["X1"], array[100:150, 1])
    assert table.text_rows(3, 4) == [(str(array[3, 0]), str(array[3, 1]))]
    assert [p.name for p in tmp_path.iterdir()] == [f"s{suffix}"]


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".tab", ".parquet"])
def test_some_rows_are_picked_from_every_format_and_from_joined_ones(tmp_path, suffix):
    array = np.random.default_rng(0).normal(size=(257, 2))
    save_samples(tmp_path / f"s{suffix}", array, LABELS)
    table = open_samples(tmp_path / f"s{suffix}", LABELS)
    joined = JoinedRows([(table, 5, 100), (table, 0, 257)])
    for rows in ([], [0, 3, 94, 95, 256]):
        assert np.array_equal(table.picked(np.array(rows, int))["X1"], array[rows, 1])
        expected = np.concatenate([array[5:100], array])[rows, 0]
        assert np.array_equal(joined.picked(np.array(rows, int))["X0"], expected)


@pytest.mark.parametrize("name", ["s0.npy", "s*.npy", "s0.csv", "s0.parquet"])
def test_reading_all_samples_says_how_far_it_is(tmp_path, name):
    for i, num in enumerate((70_000, 10)):
        save_samples(tmp_path / f"s{i}{Path(name).suffix}", np.ones((num, 2)), LABELS)
    table = open_samples(tmp_path / name, LABELS)
    seen = []
    with reading_watched(lambda done, total: seen.append((done, total))):
        check_samples(table)
    ends = [65536, 70_000, 70_010] if "*" in name else [65536, 70_000]
    assert seen[: len(ends)] == [(end, table.num) for end in ends]
    seen.clear()
    with reading_watched(lambda done, total: seen.append((done, total))):
        digest(table, 66_000)
    digest(table, 66_000)
    assert seen == [(65536, 66_000), (66_000, 66_000)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel does not say what is in memory")
@pytest.mark.parametrize("read", [check_samples, lambda table: digest(table, table.num)])
def test_samples_that_were_read_do_not_stay_in_memory(tmp_path, read):
    save_samples(tmp_path / "s.npy", np.ones((200_000, 2)), LABELS)
    table = open_samples(tmp_path / "s.npy", LABELS)
    read(table)
    _, _, mapped = Path("/proc/self/smaps").read_text().partition(str(tmp_path / "s.npy"))
    assert int(mapped.split("Rss:")[1].split()[0]) <= 64  # kB of 3,125


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_an_empty_range_has_no_rows(tmp_path, suffix):
    save_samples(tmp_path / f"s{suffix}", np.ones((3, 2)), LABELS)
    table = open_samples(tmp_path / f"s{suffix}", LABELS)
    assert table.text_rows(1, 1) == []
    assert {len(column) for column in table.rows(3, 3).values()} == {0}


def test_numpy_values_are_written_as_numpy_prints_them(tmp_path):
    np.save(tmp_path / "d.npy", np.array([[0.1, 1e-5], [1e16, 3.0]]))
    np.save(tmp_path / "f.npy", np.array([[0.1, 2]], dtype=np.float32))
    np.save(tmp_path / "i.npy", np.array([[1, 2]]))
    np.save(tmp_path / "u.npy", np.array([["a b", "ü"]]))
    assert open_samples(tmp_path / "d.npy", LABELS).text_rows(0, 2) == [("0.1", "1e-05"), ("1e+16", "3.0")]
    assert open_samples(tmp_path / "f.npy", LABELS).text_rows(0, 1) == [("0.1", "2.0")]
    assert open_samples(tmp_path / "i.npy", LABELS).text_rows(0, 1) == [("1", "2")]
    text = open_samples(tmp_path / "u.npy", LABELS)
    assert (text.text_rows(0, 1), text.numeric) == ([("a b", "ü")], False)


def test_text_values_are_written_as_they_stand_in_the_file(tmp_path):
    table = open_samples(write(tmp_path / "s.csv", "0.10,Dr. No\n1e-3, x\n"), LABELS)
    check_samples(table)
    assert table.text_rows(0, 2) == [("0.10", "Dr. No"), ("1e-3", " x")]
    assert table.numeric is False
    assert table.rows(0, 2)["X0"].tolist() == [0.1, 0.001]
    assert table.rows(0, 2)["X1"].tolist() == ["Dr. No", " x"]


def test_blanks_around_numbers_do_not_get_into_commands(tmp_path):
    samples = open_samples(write(tmp_path / "s.csv", "1, 2\n3 , 4.50 # said\n"), LABELS)
    assert samples.text_rows(0, 2) == [("1", "2"), ("3", "4.50")]
    samples = open_samples(write(tmp_path / "s.csv", "1, a b\n3, 4\n"), LABELS)
    assert samples.text_rows(0, 2) == [("1", " a b"), ("3", "4")]


@pytest.mark.parametrize(("value", "places"), [("", [(2, 3)]), ('""', [])])
def test_a_value_that_is_missing_among_text_is_an_error_unless_it_is_quoted(tmp_path, value, places):
    samples = open_samples(write(tmp_path / "s.csv", f"1,a\n2,{value}\n3,c\n"), LABELS)
    found = samples.findings(5)
    assert [(d.code, d.line, d.col) for d in found] == [("samples-empty-value", *place) for place in places]


def test_comments_empty_lines_and_a_header_are_not_samples(tmp_path):
    text = "# made by hand\nX0, X1\n\n1,2\r\n   \n  # more\n3,4 # why\n5,6"
    table = open_samples(write(tmp_path / "s.csv", text), LABELS)
    assert table.text_rows(0, table.num) == [("1", "2"), ("3", "4"), ("5", "6")]
    assert table.rows(0, 3)["X1"].tolist() == [2, 4, 6]


def test_tabs_and_blanks_separate_the_columns_of_a_tab_file(tmp_path):
    table = open_samples(write(tmp_path / "s.tab", "1\t2\n3   4\n"), LABELS)
    assert table.text_rows(0, 2) == [("1", "2"), ("3", "4")]


def test_a_file_of_excel_is_read(tmp_path):
    text = '\ufeff"X0","X1"\r\n"4","a, b"\r\n5,"#1 ""new"""\r\n\r\n6,"two\r\nlines" # why\r\n7,2" pipe\r\n'
    table = open_samples(write(tmp_path / "s.csv", text), LABELS)
    check_samples(table)
    values = ["a, b", '#1 "new"', "two\r\nlines", '2" pipe']
    assert table.rows(0, 4)["X0"].tolist() == [4, 5, 6, 7]
    assert [x1 for _, x1 in table.text_rows(0, 4)] == values
    for lo in range(4):
        assert [x1 for _, x1 in table.text_rows(lo, 4)] == values[lo:]


def test_a_byte_order_mark_is_no_part_of_a_number(tmp_path):
    table = open_samples(write(tmp_path / "s.csv", "\ufeff1,2\n3,4\n"), LABELS)
    assert table.rows(0, 2)["X0"].tolist() == [1, 3]


def test_quotes_hold_blanks_together_in_a_tab_file(tmp_path):
    table = open_samples(write(tmp_path / "s.tab", '"X0" "X1"\n1\t"a  # b"\n 2 c # d\n'), LABELS)
    assert table.text_rows(0, 2) == [("1", "a  # b"), ("2", "c")]


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"))] * 2), min_size=1
    ).filter(lambda rows: rows[0] != ("X0", "X1"))
)
def test_whatever_the_csv_module_quotes_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("quoted") / "s.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    table = open_samples(path, LABELS)
    assert table.text_rows(0, table.num) == rows


@pytest.mark.parametrize("suffix", [".csv", ".tab"])
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"))] * 2), min_size=1
    )
)
def test_text_comes_back_from_a_file_of_new_rows(tmp_path_factory, suffix, rows):
    folder = tmp_path_factory.mktemp("written")
    np.save(folder / "old.npy", np.array([("a", "b"), *rows]))
    write_rows(folder / f"new{suffix}", open_samples(folder / "old.npy", LABELS), 0)
    table = open_samples(folder / f"new{suffix}", LABELS)
    assert table.text_rows(1, table.num) == [(a.rstrip("\0"), b.rstrip("\0")) for a, b in rows]


def test_lines_may_end_as_old_programs_end_them(tmp_path):
    (tmp_path / "s.csv").write_bytes(b"X0,X1\r1,2\r3,4\r")
    table = open_samples(tmp_path / "s.csv", LABELS)
    check_samples(table)
    assert table.text_rows(0, 2) == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize(
    ("text", "line", "col", "code"),
    [
        ('1,2\n\n"3,4\n5,6\n', 3, 1, "samples-quote"),
        ('"1","2"\n"3",""\n', 2, 5, "samples-empty-value"),
        ('"a\nb","2"\n"c\nd","nan"\n', 4, 4, "samples-not-finite"),
        ('"a\nb","2"\n"c","3","4"\n', 3, 1, "samples-ragged"),
    ],
)
def test_findings_among_quotes_have_their_place(tmp_path, text, line, col, code):
    found = findings(write(tmp_path / "s.csv", text))
    assert [(d.line, d.col, d.code) for d in found] == [(line, col, code)]


def test_structured_arrays_are_read_by_field_name(tmp_path):
    np.save(tmp_path / "s.npy", np.array([(1, 2.5)], dtype=[("X1", "i4"), ("X0", "f8")]))
    table = open_samples(tmp_path / "s.npy", LABELS)
    assert table.text_rows(0, 1) == [("2.5", "1")]


def test_a_single_column_may_be_one_dimensional(tmp_path):
    np.save(tmp_path / "s.npy", np.arange(3))
    assert open_samples(tmp_path / "s.npy", ["X"]).text_rows(0, 3) == [("0",), ("1",), ("2",)]


def test_fortran_order_does_not_matter(tmp_path):
    np.save(tmp_path / "s.npy", np.asfortranarray([[1.0, 2.0], [3.0, np.nan]]))
    assert findings(tmp_path / "s.npy")[0].message == "row 1, column X1: nan is not finite"


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_a_pattern_joins_files_in_sorted_order(tmp_path_factory, parts, data):
    folder = tmp_path_factory.mktemp("glob")
    rows = np.arange(2.0 * sum(parts)).reshape(-1, 2)
    at = 0
    for index, num in enumerate(parts):
        np.save(folder / f"s_{index}.npy", rows[at : at + num])
        at += num
    table = open_samples(folder / "s_*.npy", LABELS)
    lo = data.draw(st.integers(0, table.num))
    hi = data.draw(st.integers(lo, table.num))
    assert np.array_equal(table.rows(lo, hi)["X0"], rows[lo:hi, 0])
    assert table.text_rows(lo, hi) == [(str(a), str(b)) for a, b in rows[lo:hi].tolist()]


def test_a_missing_file_is_named(tmp_path):
    assert findings(tmp_path / "no.npy")[0].code == "samples-missing"
    assert findings(tmp_path / "no_*.npy")[0].code == "samples-missing"


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n", "X0,X1\n"])
def test_a_file_without_rows_is_empty(tmp_path, text):
    assert findings(write(tmp_path / "s.csv", text))[0].code == "samples-empty"


def test_an_empty_array_is_empty(tmp_path):
    np.save(tmp_path / "s.npy", np.empty((0, 2)))
    assert findings(tmp_path / "s.npy")[0].code == "samples-empty"


def test_ragged_lines_are_all_listed_with_their_numbers(tmp_path):
    found = findings(write(tmp_path / "s.csv", "# c\n1,2\n3\n\n4,5,6\n7,8\n"))
    assert [(d.line, d.message) for d in found] == [
        (3, "1 value, but 2 columns"),
        (5, "3 values, but 2 columns"),
    ]
    with pytest.raises(SamplesError):
        open_samples(tmp_path / "s.csv", LABELS).text_rows(0, 4)


def test_the_number_of_columns_must_be_that_of_the_labels(tmp_path):
    np.save(tmp_path / "s.npy", np.ones((4, 3)))
    assert findings(tmp_path / "s.npy")[0].message == "3 columns, but column_labels has 2"
    found = findings(write(tmp_path / "s.csv", "1,2,3\n4,5,6\n"))
    assert (found[0].line, found[0].code) == (1, "samples-columns")


def test_values_that_are_not_finite_are_listed_up_to_a_limit(tmp_path):
    array = np.ones((100, 2))
    array[5:60, 0] = np.inf
    np.save(tmp_path / "s.npy", array)
    found = findings(tmp_path / "s.npy")
    assert found[0].message == "row 5, column X0: inf is not finite"
    assert len(found) == 20
    text = findings(write(tmp_path / "s.csv", "1,2\n3,nan\n-inf,4\n"))
    assert [(d.line, d.text) for d in text] == [(2, "nan"), (3, "-inf")]


def test_a_person_may_be_called_nan(tmp_path):
    check_samples(open_samples(write(tmp_path / "s.csv", "Ann\nNan\n"), ["NAME"]))


def test_python_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "s.npy", np.array([[object(), 1]], dtype=object), allow_pickle=True)
    assert findings(tmp_path / "s.npy")[0].code == "samples-object"


@pytest.mark.parametrize("name", ["s.npy", "s.parquet"])
def test_a_damaged_file_is_an_error_of_the_file(tmp_path, name):
    assert findings(write(tmp_path / name, "not really"))[0].code == "samples-unreadable"


def test_an_archive_called_npy_is_an_error_of_the_file(tmp_path):
    np.savez(tmp_path / "s.npz", a=[1.0])
    data = (tmp_path / "s.npz").read_bytes()
    for content in (data, data[:40]):
        (tmp_path / "s.npy").write_bytes(content)
        assert findings(tmp_path / "s.npy")[0].code == "samples-unreadable"


def test_other_formats_are_refused_with_the_allowed_ones(tmp_path):
    found = findings(write(tmp_path / "s.xlsx", "1"))
    assert ".npy" in found[0].hint


@pytest.mark.parametrize("values", [["a", None], [True, None]])
def test_a_null_of_parquet_is_no_text(tmp_path, values):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"X0": values, "X1": [1, 2]}), tmp_path / "s.parquet")
    found = findings(tmp_path / "s.parquet")[0]
    assert (found.code, found.message) == ("samples-empty-value", "row 1, column X0: the value is missing")


def test_parquet_columns_are_found_by_name_over_row_groups(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"other": ["a"] * 10, "X1": list(range(10)), "X0": [i / 2 for i in range(10)]})
    parquet.write_table(table, tmp_path / "s.parquet", row_group_size=3)
    samples = open_samples(tmp_path / "s.parquet", LABELS)
    assert samples.rows(2, 8)["X1"].tolist() == [2, 3, 4, 5, 6, 7]
    assert samples.text_rows(9, 10) == [("4.5", "9")]
    assert samples.numeric
