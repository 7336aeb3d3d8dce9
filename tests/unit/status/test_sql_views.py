from __future__ import annotations

from datetime import datetime

import pytest
from small_plans import step
from status_study import OK, add, chunk, fill, make_workspace
from study_on_disk import write_study

from merlin.errors import UsageError
from merlin.status.sql import query


@pytest.fixture
def workspace(tmp_path):
    made = make_workspace(tmp_path / "w")
    fill(made)
    return made


def test_tasks_have_all_planned_tasks_missing_ones_too(workspace):
    table = query(workspace, "select outcome, count(*) from tasks group by outcome order by 2 desc")
    assert table.rows == [("ok", 27), ("missing", 25), ("skipped", 5), ("failed", 4)]


def test_tasks_are_joined_with_parameters_and_sample_columns(workspace):
    table = query(workspace, "select * from tasks where instance = 'sim/P.1' and task = 3")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["step"], row["label"], row["sample_id"], row["outcome"], row["exit_code"]) == (
        "sim", "P.1", 3, "failed", 3,
    )  # fmt: skip
    assert (row["P"], row["X0"]) == (1, 6.0)
    assert row["sample_step"] == 7.0  # the samples have a column "step", too
    assert (row["worker"], row["host"], row["attempt"], row["queue"]) == ("w0", "node1", 1, "hot")
    assert row["started"] == datetime(1970, 1, 1, 0, 16, 43)
    assert row["seconds"] == 0.5


def test_what_has_not_happened_is_null(workspace):
    table = query(
        workspace, "select sample_id, exit_code, seconds, started, worker, X0 from tasks where step='end'"
    )
    assert table.rows == [(None,) * 6]


def test_times_with_a_zone_are_answers(workspace):
    (row,) = query(workspace, "select now() as t, max(started) at time zone 'UTC' as u from tasks").rows
    assert row[0].tzinfo is not None


def test_every_view_answers(workspace):
    def rows(sql):
        return query(workspace, sql).rows

    assert rows("select step, planned, ok, failed, skipped, missing from instances where P = 2") == [
        ("sim", 20, 10, 0, 0, 10)
    ]
    assert rows("select count(*), max(X0) from samples") == [(20, 38.0)]
    assert rows("select step, task, exit_class, signature from failures order by step, task") == [
        ("post", 5, "crash", ""),
        ("sim", 3, "exit code 3", "ValueError: bad <n>"),
        ("sim", 4, "exit code 3", "ValueError: bad <n>"),
        ("sim", 9, "timeout", ""),
    ]
    assert rows(
        "select kind, sum(hi - lo), count(distinct segment) from records group by kind order by kind"
    ) == [
        ("chunk", 32, 2),
        ("range", 6, 1),
    ]
    assert rows("select kind, data->>'reason' from events order by time") == [
        ("run_started", None),
        ("run_stopped", "interrupted"),
    ]


def test_every_view_answers_about_a_study_that_was_never_run(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    for view, num in {
        "tasks": 61,
        "instances": 4,
        "samples": 20,
        "failures": 0,
        "records": 0,
        "events": 0,
    }.items():
        assert query(workspace, f"select count(*) from {view}").rows == [(num,)]


def test_a_seed_of_64_bits_is_a_number(tmp_path):
    study = write_study(
        tmp_path / "w",
        *(step(f"sim/{k}", 1, step="sim", params={"SEED": k}, per_sample=False) for k in (3, 2**64 - 1)),
    )
    assert query(study, "select max(SEED) from instances").rows == [(2**64 - 1,)]


def test_without_the_samples_file_every_other_column_answers(workspace):
    (workspace.info / "samples.npy").unlink()
    table = query(workspace, "select count(*), count(sample_id) from tasks")
    assert table.rows == [(61, 60)] and "samples.npy" in table.note
    assert query(workspace, "select count(*) from failures").note == ""
    with pytest.raises(UsageError, match=r"samples\.npy"):
        query(workspace, "select avg(X0) from tasks")


def test_views_can_be_joined_and_listed(workspace):
    sql = "select avg(s.X0) from failures f join samples s using (sample_id) where f.step = 'sim'"
    assert query(workspace, sql).rows == [(pytest.approx(2 * 16 / 3),)]
    names = {
        row[0] for row in query(workspace, "select view_name from duckdb_views() where not internal").rows
    }
    assert names >= {"tasks", "instances", "samples", "failures", "records", "events"}


def test_the_latest_record_of_a_task_counts(workspace):
    add(workspace, chunk("sim/P.1", 3, [OK], attempt=1, started=2000.0), worker="w9", session="run2")
    sql = "select outcome, exit_code, worker from tasks where instance = 'sim/P.1' and task = 3"
    assert query(workspace, sql).rows == [("ok", 0, "w9")]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/hostname'",
        "copy (select 1) to '{out}'",
        "attach '{out}' as other",
        "set enable_external_access = true",
        "install httpfs",
    ],
)
def test_a_query_can_neither_read_nor_write_files(workspace, tmp_path, sql):
    out = tmp_path / "out"
    with pytest.raises(UsageError):
        query(workspace, sql.format(out=out))
    assert not out.exists()


def test_a_wrong_query_is_a_usage_error_with_the_databases_words(workspace):
    with pytest.raises(UsageError, match="syntax error"):
        query(workspace, "selec 1")
    with pytest.raises(UsageError, match="outcom"):
        query(workspace, "select outcom from tasks")
    with pytest.raises(UsageError, match=r"no view task; did you mean 'tasks'\? views: events, failures, "):
        query(workspace, "select * from task join samples using (sample_id)")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("drop view tasks", "can only be read"),
        ("create table x as select 1", "can only be read"),
        ("insert into tasks values (1)", "can only be read"),
        ("select 1; delete from tasks", "one query at a time"),
        ("", "empty"),
        ("-- nothing", "empty"),
    ],
)
def test_what_is_no_question_is_refused(workspace, sql, words):
    with pytest.raises(UsageError, match=words):
        query(workspace, sql)


@pytest.mark.parametrize(
    "sql",
    ["describe tasks", "explain select 1", "from tasks limit 1", "pivot tasks on outcome using count(*)"],
)
def test_every_way_to_ask_is_allowed(workspace, sql):
    assert query(workspace, sql).rows
