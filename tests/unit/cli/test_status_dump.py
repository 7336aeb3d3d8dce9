from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from merlin.cli.output import csv_text
from merlin.cli.status_dump import add_to_dump
from merlin.errors import UsageError


def test_each_call_adds_rows_with_their_time_to_a_table(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    add_to_dump(path, [{"step": "a", "ok": 1}, {"step": "b", "ok": None}], None, moment="2026-01-01 00:00:00")
    add_to_dump(path, [{"step": "a", "ok": 2}], None, moment="2026-01-01 00:00:10")
    add_to_dump(path, [], None)
    rows = list(csv.DictReader(path.open()))
    assert [(row["time_of_status"][-2:], row["step"], row["ok"]) for row in rows] == [
        ("00", "a", "1"), ("00", "b", ""), ("10", "a", "2"),
    ]  # fmt: skip


def test_a_table_without_rows_is_an_empty_file_to_which_rows_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    add_to_dump(path, [], None)
    assert path.read_text() == csv_text([]) == ""
    add_to_dump(path, [{"step": "a"}], None, moment="1")
    assert path.read_text() == "time_of_status,step\n1,a\n"


def test_each_call_adds_an_entry_to_an_object(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    add_to_dump(path, [], {"state": "running"}, moment="1")
    add_to_dump(path, [], lambda: {"state": "finished"}, moment="2")
    assert json.loads(path.read_text()) == {"1": {"state": "running"}, "2": {"state": "finished"}}


@pytest.mark.parametrize(("name", "text"), [("s.csv", "a,b\n1,2\n"), ("s.json", "[1]\n"), ("s.json", "{")])
def test_what_is_something_else_stays_as_it_is(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match="name another"):
        add_to_dump(path, [{"step": "a"}], {}, moment="1")
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]
