"""Questions to a data set: expressions, SQL over every planned row, sample ids, tables."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from commands import run_merlin
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_data import FAILED, FILTERED, MISSING, NUM, PRESENT, SKIPPED, make_reading_study
from shard_study import make_study, values_of

import merlin
from merlin.errors import MissingExtraError, UsageError
from merlin.plan.plan import PlannedField
from merlin.plan.plan_io import write_plan
from merlin.shards.format.splits import split_indices
from merlin.shards.reading.query import table_of

IDS = np.array(PRESENT)
ENERGY = values_of(IDS)["energy"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_reading_study(tmp_path_factory.mktemp("query") / "w")


@pytest.fixture(scope="module")
def ens(study):
    with merlin.open_shards(study.finish()) as ensemble:
        yield ensemble


# expressions


@settings(max_examples=repeats(20, 400), deadline=None)
@given(bound=st.integers(-5, 60), low=st.integers(-5, 120))
def test_an_expression_selects_what_numpy_selects(ens, bound, low):
    found = ens.query(f"count < {bound} and x > {low}")
    mask = (bound > IDS) & (low < 2 * IDS)
    assert found.sample_id.tolist() == IDS[mask].tolist()
    np.testing.assert_array_equal(found["energy"][:], ENERGY[mask])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sample_id in (3, 1, 9)", [1, 3, 9]),
        ("row = 7 or index = 0", [1, 7]),
        ("note like '%k 4_' and count != 47", [40, 41, 42, 43, 45, 46, 48, 49]),
        ("note = 'täsk 6' -- a remark", [6]),
        ("count between 10 and 12", [10, 11, 12]),
        ("outcome = 'failed'", []),
        ("task < 3 and source = 'sim'", [1, 2]),
        ("attempt = 2", []),
        ("x is null", []),
        ('"X" = 8', [4]),
    ],
)
def test_expressions_know_every_column(ens, expression, expected):
    assert ens.query(expression).sample_id.tolist() == expected


def test_splits_can_be_asked_for(ens):
    member = split_indices(IDS, {"train": 0.8, "validation": 0.1, "test": 0.1}, 0)
    assert ens.query("split = 'test'").sample_id.tolist() == IDS[member == 2].tolist()
    np.testing.assert_array_equal(ens.query("split = 'train'").positions, ens.splits["train"])


def test_selections_compose(ens):
    twice = ens.query("count >= 10").query("count < 20").take([3, 0]).query("true")
    assert twice.sample_id.tolist() == [13, 10]
    assert ens.take(slice(None, None, -1)).query("count < 4").sample_id.tolist() == [3, 2, 1]
    assert pickle.loads(pickle.dumps(twice)).select([10]).positions.tolist() == [IDS.tolist().index(10)]
    assert "2 of 43 samples" in repr(twice)
    assert not twice.is_whole and ens.is_whole


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("enrgy > 3", r"no column 'enrgy' in .*collect; did you mean 'energy'\?"),
        ("zzzzzzzz > 3", r"no column 'zzzzzzzz' in .*collect; there are: row, sample_id, split"),
        ("energy >", "the query cannot be answered: Parser Error: syntax error"),
        ("energy > 'high'", "the query cannot be answered: Conversion Error"),
        ("", "the expression is empty"),
        ("energy > 3); drop view rows; select (1", "one query at a time; these are 3"),
        ("image > 3", "'image' in .* has 6×5×2 values for each sample"),
    ],
)
def test_a_bad_expression_says_what_is_wrong(ens, expression, words):
    with pytest.raises(UsageError, match=words) as caught:
        ens.query(expression)
    assert "LINE" not in str(caught.value)


# values that SQL or JSON does not have


@pytest.fixture(scope="module")
def unusual(tmp_path_factory):
    fields = (
        PlannedField(name="energy", finite=False),
        PlannedField(name="Wave", dtype="complex128"),
        PlannedField(name="end", dtype="complex64"),
    )
    study = make_study(tmp_path_factory.mktemp("unusual") / "w", num=5, fields=fields)
    energy = np.array([1.0, np.nan, np.inf, -np.inf, 3.0])
    study.collect(
        0, 5, outputs={"energy": energy, "Wave": energy[[0, 0, 4, 4, 4]] * 1j, "end": np.ones(5, "c8")}
    )
    return study.finish()


def test_complex_numbers_are_left_out_of_sql(unusual, tmp_path):
    pytest.importorskip("pyarrow")
    with merlin.open_shards(unusual) as ens:
        found = ens.query("energy > 2")
        assert found.sample_id.tolist() == [2, 4]
        assert table_of(found).columns[-1] == "energy"
        table_of(found).write(tmp_path / "a.parquet")
        assert not {"Wave", "end"} & set(ens.query_table("select *").columns)
        for expression, name in (("wave > 1", "wave"), ("end is not null", "end")):
            with pytest.raises(
                UsageError, match=f"'{name}' in .* holds complex numbers, which SQL does not have"
            ):
                ens.query(expression)
        assert ens.take(abs(ens["Wave"][:]) > 2).sample_id.tolist() == [2, 3, 4]
        assert ens.to_pandas()["Wave"][0] == 1j


def test_nan_is_null_in_sql_and_infinity_is_not(unusual):
    with merlin.open_shards(unusual) as ens:
        assert ens.query("energy > 2").sample_id.tolist() == [2, 4]
        assert ens.query("energy is null").sample_id.tolist() == [1]
        assert ens.query_table("select count(energy), max(energy)").rows == [(4, float("inf"))]


def test_the_command_writes_infinity_and_null(unusual):
    sql = "select energy, [energy, 'nan'::double] as pair order by row"
    done = run_merlin("shards", "query", unusual, sql, "--sql", "--json")
    rows = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [row["energy"] for row in rows] == [1.0, None, "inf", "-inf", 3.0]
    assert rows[2]["pair"] == ["inf", "nan"]
    done = run_merlin("shards", "query", unusual, "select energy order by row", "--sql", "--csv")
    assert done.stdout.splitlines()[1:] == ["1.0", '""', "inf", "-inf", "3.0"]


# names


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    names = ("order", "yield", "Group", "select", "row", "a-b", "x", "dot.ted", "end", "θ", "Δt")
    fields = tuple(PlannedField(name=name) for name in names if "." not in name)
    study = make_study(tmp_path_factory.mktemp("names") / "w", num=10, fields=fields)
    study.collect(0, 10, outputs={field.name: np.arange(10.0) + i for i, field in enumerate(fields)})
    with merlin.open_shards(study.finish()) as ensemble:
        yield ensemble


@pytest.mark.parametrize(
    ("expression", "num"),
    [
        ("order > 5", 4),
        ("yield > 5", 5),
        ("group > 5 and order > 7", 2),
        ("select < 5 and select is not null", 2),
        ("end > 7 or case when end > 7 then true else false end", None),
        ("rows.order > 5", 4),
        ('"a-b" > 7', 7),
        ('"order" > 5', 4),
        ("field_x > 8", 7),
        ("INPUT_X > 8", 5),
        ("field_row > 8", 5),
        ("row > 8", 1),
        ("order /* order > 3 */ > 5 and 'order' != 'group'", 4),
        ("θ > 15 and rows.Δt > 16", 2),
    ],
)
def test_names_that_are_words_of_sql_need_no_quotes(awkward, expression, num):
    if num is None:
        with pytest.raises(UsageError, match="cannot be answered"):  # END is needed for CASE here
            awkward.query(expression)
    else:
        assert len(awkward.query(expression)) == num


def test_a_name_of_an_input_and_a_field_means_neither(awkward):
    words = "'X' is ambiguous in .*collect: write input_x or field_x"
    for ask in (awkward.query, lambda text: awkward.query_table(f"select {text}")):
        with pytest.raises(UsageError, match=words):
            ask("X > 8")
    with pytest.raises(UsageError, match=words):
        awkward.to_pandas(["X"])
    frame = awkward.to_pandas(["input_x", "field_x"])
    assert frame["input_x"].tolist() == awkward.inputs["x"][:].tolist()
    assert frame["field_x"].tolist() == awkward["x"][:].tolist()


def test_a_name_of_one_column_alone_means_that_column(tmp_path):
    fields = (PlannedField(name="x", dtype="complex128"), PlannedField(name="field_x"))
    study = make_study(tmp_path / "w", num=10, fields=fields)
    study.collect(0, 10, outputs={"x": np.arange(10) * 1j, "field_x": np.arange(10.0)})
    with merlin.open_shards(study.finish()) as ens:
        assert len(ens.query("field_x > 6")) == 3 and len(ens.query("input_x > 6")) == 6
        with pytest.raises(UsageError, match=r"'x' is ambiguous in .*collect: write input_x$"):
            ens.query("x > 1")
        with pytest.raises(UsageError, match=r"holds complex numbers.* from the array ens\['x'\]\[:\]"):
            ens.query("field_field_x > 1")
        assert ens.to_pandas(["field_field_x"])["field_field_x"].tolist() == ens["x"][:].tolist()


def test_so_they_do_in_queries(awkward):
    found = awkward.query_table("select order, group from rows where yield > 5 order by group desc limit 2")
    assert found.columns == ("order", "Group") and found.rows == [(9.0, 11.0), (8.0, 10.0)]
    assert awkward.query_table("select count(*) n, min(order) group by group > 5 order by n").rows == [
        (4, 0.0),
        (6, 4.0),
    ]


# SQL


@pytest.mark.parametrize(
    "sql",
    [
        "select outcome, count(*) as n from rows group by all order by all",
        "select outcome, count(*) as n group by all order by all;",
        "SELECT outcome, count(*) AS n GROUP BY outcome ORDER BY outcome",
        "from rows select outcome, count(*) as n group by all order by all",
        "with t as (select outcome from rows) select outcome, count(*) as n from t group by all order by all",
    ],
)
def test_every_planned_row_can_be_asked_about(ens, sql):
    found = ens.query_table(sql)
    assert found.columns == ("outcome", "n")
    assert dict(found.rows) == {"ok": 43, "failed": 2, "filtered": 1, "skipped": 1, "missing": 3}


def test_absent_rows_have_a_cause_and_no_values(ens):
    found = ens.query_table(
        "select sample_id, outcome, cause, index, energy, note where outcome != 'ok' order by row"
    )
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows.keys() == {*FAILED, *FILTERED, *MISSING, *SKIPPED}
    assert rows[5] == ("failed", "trouble 1", None, None, None)
    assert rows[44] == ("filtered", "count != 44", None, None, None)
    assert rows[0] == ("missing", None, None, None, None)
    there = ens.query_table("select sample_id, energy, note, index where outcome = 'ok' order by row").rows
    assert there == [
        (i, e, f"täsk {i}", k) for k, (i, e) in enumerate(zip(PRESENT, ENERGY.tolist(), strict=True))
    ]


def test_inputs_of_absent_rows_are_read_from_the_workspace(study, ens):
    sql = "select sample_id, x from rows where outcome != 'ok' order by 1"
    assert {x for _, x in ens.query_table(sql).rows} == {None}
    write_plan(study.workspace.path / "merlin_info" / "plan.json", study.workspace.plan)
    absent = sorted([*FAILED, *FILTERED, *MISSING, *SKIPPED])
    assert ens.query_table(sql).rows == [(i, 2.0 * i) for i in absent]
    assert ens.query_table("select sum(x) from rows").rows == [(float(NUM * (NUM - 1)),)]


def test_a_star_means_every_column(ens):
    found = ens.query_table("select * from rows limit 1")
    expected = ["row", "sample_id", "split", "index", "source", "task", "outcome", "cause"]
    assert list(found.columns) == [*expected, "x", "y", "energy", "count", "note", "attempt"]
    assert [row[0] for row in ens.query_table("describe rows").rows] == list(found.columns)


@pytest.mark.parametrize(
    "sql",
    [
        "select distinct on (split) * from rows",
        "select distinct on (split) * x from rows",
        "select all * from rows",
        "select -- a remark\n * from rows",
        "select e'it\\'s', * from rows where note != 'x'",
        "select x from rows union all by name from rows",
        "select x, (select count(t) from (from rows) t) from rows",
        "with t as (select x from rows) from rows select *",
        "with t as (from rows) select t from t",
        "select count(*) from rows a natural join rows b",
        "select count(*) from (pivot rows on split using sum(x))",
        "select count(*) from query('select energy from rows')",
        "select #9 from rows",
        "select r from rows r",
        'select "r" from main.rows as R',
        "select r from r: rows",
        "select r from (rows) r",
        "select a.x2 from rows a(x1, x2)",
        "select b from rows a, rows b where a.row = b.row",
        "select to_json(rows) from rows",
        "select list(rows order by row) from rows",
        "select first(r order by x) from rows r",
    ],
)
def test_queries_about_whole_rows_have_every_column(ens, sql, monkeypatch):
    found = ens.query_table(sql)
    monkeypatch.setattr("merlin.shards.reading.query.mentioned", lambda sql, names, view: list(names))
    expected = ens.query_table(sql)
    assert found.columns == expected.columns and sorted(map(repr, found.rows)) == sorted(
        map(repr, expected.rows)
    )


def test_a_selection_answers_for_its_own_rows(ens):
    found = ens.select([9, 3]).query_table("select sample_id, energy, index from rows")
    assert found.rows == [(9, 1e6 + 4.5, 0), (3, 1e6 + 1.5, 1)]


def test_parameters_are_columns_of_absent_rows_too(tmp_path):
    study = make_study(tmp_path / "w", num=6, params=({"N": 1, "MODE": "a"}, {"N": 2, "MODE": "b"}))
    study.not_run = {(1, 2), (1, 3)}
    study.collect_all()
    ens = merlin.open_shards(study.finish())
    found = ens.query_table("select N, mode, outcome, count(*) group by all order by all").rows
    assert found == [(1, "a", "ok", 6), (2, "b", "missing", 2), (2, "b", "ok", 4)]
    assert ens.query("N = 2 and MODE = 'b'").sample_id.tolist() == [0, 1, 4, 5]
    assert ens.query("source = 'sim/P1' and task = 1").row.tolist() == [7]
    assert ens.select([1, 0]).row.tolist() == [1, 7, 0, 6]
    assert ens.to_pandas()["MODE"].tolist() == ["a"] * 6 + ["b"] * 4


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select 1; select 2", "one query at a time; these are 2"),
        ("drop view rows", "this would be a DROP statement; a data set can only be read"),
        ("explain analyze create table mine as select 1", "this would be a CREATE statement"),
        ("copy rows to 'stolen.csv'", "this would be a COPY statement"),
        ("select * from samples", "Table with name samples does not exist! The one view is 'rows'"),
        ("select * from read_csv('/etc/passwd')", "file system operations are disabled"),
        ("select nrgy from rows", r"no column 'nrgy' in .*did you mean 'energy'\?"),
        ("", 'the query is empty; try "select [*] from rows limit 10"'),
    ],
)
def test_a_bad_query_says_what_is_wrong(ens, sql, words):
    with pytest.raises(UsageError, match=words):
        ens.query_table(sql)


# sample ids


def test_samples_are_selected_by_id_in_the_order_given(ens):
    found = ens.select([49, 1, 20, 1])
    assert found.sample_id.tolist() == [49, 1, 20, 1]
    np.testing.assert_array_equal(found["image"][:, 0, 0, 0], [49, 1, 20, 1])
    assert len(ens.select([])) == 0
    assert ens.select(np.array([3], np.uint8)).sample_id.tolist() == [3]


def test_ids_that_are_not_there_are_named_with_their_outcome(ens):
    with pytest.raises(
        UsageError, match=r"no samples 5 \(failed\), 44 \(filtered\), 0 \(missing\), 77 \(never planned\)"
    ):
        ens.select([1, 5, 44, 0, 77])
    with pytest.raises(UsageError, match=r"no sample 3 \(not in this selection\)"):
        ens.select([1, 2]).select([3])
    with pytest.raises(UsageError, match=r"and 30 more"):
        ens.select(range(100, 140))
    for wrong in ([0.5], [[1]], ["a"]):
        with pytest.raises(UsageError, match="sample ids are a list of integers"):
            ens.select(wrong)


# tables


def test_a_data_frame_has_a_row_for_each_sample(ens):
    frame = ens.to_pandas()
    assert list(frame.columns) == ["row", "sample_id", "split", "x", "y", "energy", "count", "note"]
    assert frame["sample_id"].tolist() == PRESENT and frame["note"].tolist() == [f"täsk {i}" for i in PRESENT]
    np.testing.assert_array_equal(frame["energy"], ENERGY)
    assert frame["count"].dtype == np.int32
    assert (frame.groupby("split", observed=False).size() == [len(ens.splits[n]) for n in ens.splits]).all()
    assert list(ens.to_pandas(["energy", "split", "attempt"]).columns) == ["energy", "split", "attempt"]
    assert ens.select([9, 3]).to_pandas()["energy"].tolist() == [1e6 + 4.5, 1e6 + 1.5]
    with pytest.raises(UsageError, match=r"no column 'enregy' in .*did you mean 'energy'"):
        ens.to_pandas(["enregy"])


def test_without_pandas_the_extra_is_named(ens, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"\[pandas\]"):
        ens.to_pandas()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    study = make_study(
        tmp_path_factory.mktemp("large") / "w", num=3, fields=(PlannedField(name="big", dtype="uint64"),)
    )
    study.not_run = {(0, 2)}
    study.collect(0, 2, outputs={"big": np.array([2**60 + 1, 2**64 - 1], np.uint64)})
    with merlin.open_shards(study.finish()) as ensemble:
        yield ensemble


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select big order by row limit 2", [2**60 + 1, 2**64 - 1]),
        ("select big order by row", [2**60 + 1, 2**64 - 1, None]),
        ("select big where row != 1 order by row", [2**60 + 1, None]),
        ("select -big::hugeint where row < 2 order by row", [-(2**60) - 1, -(2**64) + 1]),
        ("select sum(big)", [2**60 + 2**64]),
        ("select big::hugeint * 4 order by row", [2**62 + 4, 2**66 - 4, None]),
    ],
)
def test_large_numbers_are_written_and_framed_as_they_are(large, tmp_path, sql, expected):
    parquet = pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    answer = large.query_table(sql)
    frame = [None if pandas.isna(value) else int(value) for value in answer.to_pandas().iloc[:, 0]]
    answer.write(tmp_path / "a.parquet")
    stored = parquet.read_table(tmp_path / "a.parquet").column(0).to_pylist()
    assert frame == stored == [row[0] for row in answer.rows] == expected


def test_what_parquet_has_no_type_for_is_refused(large, tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(UsageError, match=r"column 'most' cannot be written as .parquet; ask for cast"):
        large.query_table("select [big] as most order by row desc").write(tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_an_answer_is_written_as_csv_parquet_or_ids(ens, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    answer = table_of(ens.query("count > 40"), 3)
    assert len(answer) == 3
    for name in ("a.csv", "a.parquet", "a.txt"):
        answer.write(tmp_path / name)
    assert (tmp_path / "a.txt").read_text() == "41\n42\n43\n"
    for frame in (pandas.read_csv(tmp_path / "a.csv"), pandas.read_parquet(tmp_path / "a.parquet")):
        assert frame["sample_id"].tolist() == [41, 42, 43]
        assert frame["note"].tolist() == ["täsk 41", "täsk 42", "täsk 43"]
    with pytest.raises(UsageError, match=r"\.csv, \.parquet, \.txt"):
        answer.write(tmp_path / "a.xlsx")
    with pytest.raises(UsageError, match="no column sample_id"):
        ens.query_table("select energy").write(tmp_path / "b.txt")
    assert not list(tmp_path.glob("b.*"))
    assert json.loads(ens.query_table("select max(1) as a").to_pandas().to_json()) == {"a": {"0": 1}}
