"""`merlin shards query` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from commands import WarmProcess, run_merlin

FUNCTION = """
def simulate(inputs, context):
    if (inputs["x"] >= 27).any():
        raise RuntimeError("too much")
    return {"yield": inputs["x"] ** 2, "order": inputs["x"] % 2, "note": [f"run {int(x)}" for x in inputs["x"]]}
"""

SPEC = """
description: {name: asked, description: thirty samples}
study:
  - name: simulate
    run: {function: "squares:simulate"}
  - name: collect
    run:
      depends: [simulate]
      aggregate:
        samples_per_shard: 8
        valid: "yield != 16"
        fields: {yield: {}, order: {}, note: {kind: text}}
merlin:
  samples: {file: samples.csv, column_labels: [x]}
"""


def query(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_merlin("shards", "query", *map(str, words))
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asked")
    (root / "squares.py").write_text(FUNCTION)
    (root / "asked.yaml").write_text(SPEC)
    (root / "samples.csv").write_text("".join(f"{i}\n" for i in range(30)))
    run_merlin("run", "--local", "asked.yaml", cwd=root)
    (made,) = (path.parent for path in root.glob("*/merlin_info"))
    return made


def test_the_samples_for_which_an_expression_is_true_are_listed(workspace: Path, tmp_path: Path) -> None:
    found = json.loads(query(workspace, "yield > 600 and order = 0", "--json").stdout)
    assert [row["sample_id"] for row in found] == [26]
    assert found[0]["note"] == "run 26" and found[0]["x"] == 26.0 and found[0]["yield"] == 676.0
    shown = query(workspace / "collect", "yield > 1").stdout
    assert "24 samples of 26, the first 20 shown" in shown
    columns = "row, sample_id, split, x, yield, order, note"
    same = query(workspace, f"select {columns} where x = 21", "--sql", "--csv").stdout
    (tmp_path / "question").write_text("yield > 400 and x < 22\n")
    with (tmp_path / "question").open("rb") as stdin, (tmp_path / "answer").open("wb") as stdout:
        argv = ["shards", "query", str(workspace), "-", "--csv"]
        asked = WarmProcess("merlin", argv, env=os.environ, input=stdin.fileno(), output=stdout.fileno())
    assert asked.wait(120) == 0, (tmp_path / "answer").read_text()
    assert (tmp_path / "answer").read_text() == same
    assert same.splitlines()[0] == columns.replace(" ", "") and same.count("\n") == 2


def test_what_is_not_in_the_data_set_can_be_asked_for(workspace: Path) -> None:
    sql = "select outcome, cause, count(*) as num, min(x) as first group by all order by num desc, first"
    found = json.loads(query(workspace, sql, "--sql", "--json").stdout)
    assert sum(row["num"] for row in found) == 30
    by_outcome = {row["outcome"]: row for row in found}
    assert by_outcome["ok"]["num"] == 26
    assert by_outcome["filtered"] == {"outcome": "filtered", "cause": "yield != 16", "num": 1, "first": 4.0}
    assert by_outcome["failed"]["num"] == 3 and "too much" in by_outcome["failed"]["cause"]
    assert by_outcome["failed"]["first"] == 27.0


def test_answers_are_written_to_files(workspace: Path, tmp_path: Path) -> None:
    done = query(workspace, "yield > 400", "--out", tmp_path / "ids.txt", "--limit", 3)
    assert (tmp_path / "ids.txt").read_text() == "21\n22\n23\n"
    assert done.stdout == "" and "3 rows" in done.stderr
    query(workspace, "yield > 400", "--out", tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 6
    assert (
        "written as .csv, .parquet, .txt" in query(workspace, "true", "-o", tmp_path / "x.doc", code=2).stderr
    )


def test_a_mistake_is_one_line_and_exit_code_2(workspace: Path) -> None:
    for words, told in (
        (("yeild > 3",), "did you mean 'yield'?"),
        (("yield >",), "syntax error"),
        (("drop view rows", "--sql"), "a data set can only be read"),
        (("true", "--json", "--csv"), "take one"),
    ):
        stderr = query(workspace, *words, code=2).stderr
        assert told in stderr and "Traceback" not in stderr
    query(workspace / "merlin_info", "true", code=2)
