from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from merlin.cli.commands.queue_info import append_dump
from merlin.errors import UsageError
from merlin.execution.distributed.queues import QueueInfo


def info(depth: int, consumers: int) -> QueueInfo:
    return QueueInfo(depth=depth, consumers=consumers)


def test_json_gets_an_entry_per_moment(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    append_dump(path, {"[merlin]_a": info(3, 1)}, moment="2026-01-01 00:00:00")
    append_dump(path, {"[merlin]_a": info(2, 1)}, moment="2026-01-01 00:00:10")
    assert json.loads(path.read_text()) == {
        "2026-01-01 00:00:00": {"[merlin]_a": {"tasks": 3, "consumers": 1}},
        "2026-01-01 00:00:10": {"[merlin]_a": {"tasks": 2, "consumers": 1}},
    }


def test_csv_gets_a_row_per_moment_and_columns_for_new_queues(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    append_dump(path, {"a": info(3, 1)}, moment="1")
    append_dump(path, {"a": info(2, 1), "b": info(5, 0)}, moment="2")
    rows = list(csv.DictReader(path.open()))
    assert [row["a:tasks"] for row in rows] == ["3", "2"]
    assert [row["b:tasks"] for row in rows] == ["", "5"]
    assert [row["time"] for row in rows] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "text"), [("q.json", b"{"), ("q.json", b"[]"), ("q.json", b"\xff"), ("q.csv", b"a\n\xff\n")]
)
def test_a_file_that_is_no_dump_is_named_and_stays_as_it_is(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(UsageError, match="is no file of --dump"):
        append_dump(path, {"a": info(3, 1)})
    assert path.read_bytes() == text
