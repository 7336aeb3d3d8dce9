"""What merlin workers autoscale makes of its options, and how it keeps its decisions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from merlin.batch.autoscale import Finish, Submit, Wait
from merlin.cli.autoscaling import MAX_PAUSE_S, Diary, pause_s
from merlin.cli.output import print_line


@pytest.mark.parametrize(("round_s", "expected"), [(0.0, 2.0), (0.5, 10.0), (60.0, MAX_PAUSE_S)])
def test_a_slow_server_delays_the_next_round_by_seconds_and_not_by_minutes(
    round_s: float, expected: float
) -> None:
    assert pause_s(round_s, is_hurried=False) == pytest.approx(expected)


def test_the_answer_of_a_probe_and_the_end_of_the_work_are_seen_soon() -> None:
    assert pause_s(0.02, is_hurried=True) == pytest.approx(0.2)
    assert pause_s(0.5, is_hurried=True) == pytest.approx(2.0)
    assert pause_s(60.0, is_hurried=True) == pytest.approx(MAX_PAUSE_S)


def test_every_decision_is_kept_and_a_wait_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = Diary(tmp_path / "autoscale.jsonl", print_line, as_json=False)
    diary.note(Submit(reason="a probe", num_nodes=1, walltime_s=3600.0, job="7"))
    for seconds in (53, 51, 49):
        diary.note(Wait(reason=f"2 nodes would take {seconds} s"))
    diary.note(Finish(reason="the work is done"))
    lines = [json.loads(line) for line in (tmp_path / "autoscale.jsonl").read_text().splitlines()]
    assert [line["move"] for line in lines] == ["submit", "wait", "finish"]
    assert lines[0]["job"] == "7"
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in told] == [
        "submitted job 7: 1 node for 01:00:00; a probe",
        "waiting: 2 nodes would take 53 s",
        "finished: the work is done",
    ]


def test_with_json_each_decision_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diary = Diary(tmp_path / "autoscale.jsonl", print_line, as_json=True)
    diary.note(Wait(reason="x"))
    assert json.loads(capsys.readouterr().out)["reason"] == "x"
