"""How merlin workers autoscale tells its decisions."""

from __future__ import annotations

import json

from merlin.batch.autoscale import End, Finish, Submit, Wait
from merlin.cli.autoscaling import tell
from merlin.execution.distributed.autoscaler_loop import Decision


def test_decisions_are_told_in_words() -> None:
    told: list[str] = []
    for move in (
        Submit(reason="a probe", num_nodes=1, walltime_s=3600.0, job="7"),
        Wait(reason="2 nodes would take 53 s"),
        End(reason="idle", job="7"),
        Finish(reason="the work is done"),
        Finish(reason="no job starts", is_failure=True),
    ):
        tell(Decision(0.0, move), say=told.append, as_json=False)
    assert [line.partition(" ")[2] for line in told] == [
        "submitted job 7: 1 node for 01:00:00; a probe",
        "waiting: 2 nodes would take 53 s",
        "ended job 7: idle",
        "finished: the work is done",
        "gave up: no job starts",
    ]


def test_with_json_each_decision_is_a_line() -> None:
    told: list[str] = []
    tell(Decision(1.5, Wait(reason="x")), say=told.append, as_json=True)
    assert [json.loads(line) for line in told] == [{"time": 1.5, "move": "wait", "reason": "x"}]
