"""A run on one machine tells people what becomes of it, and neither waits for that nor fails with it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from recording_observer import RecordingObserver
from small_plans import step
from study_on_disk import end_of, make_workspace, start_warm_run
from waiting import wait_until

from merlin.errors import ExecutionError
from merlin.execution import embedded
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.notices import tell_of_stop
from merlin.ledger.replay import replay
from merlin.plan.notify_rule import NotifyRule
from merlin.status.live import is_live
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import Workspace

TWO = RunOptions(workers=2)
ENDS = ("finished", "failed", "stopped")


def appends(file: Path, *when: str, **more: Any) -> NotifyRule:
    return NotifyRule(when=when, channel="cmd", to=(f"printf '%s\\n' \"$(cat)\" >> {file}",), **more)


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def events(workspace: Workspace) -> list[tuple[str, str]]:
    found = replay(workspace.ledger_dir, workspace.plan).events()
    return [(e.data["event"], e.data["error"]) for e in found if e.kind == "notified"]


def test_a_run_tells_how_it_has_ended_and_what_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "told"
    workspace = make_workspace(
        tmp_path,
        step("sim", 10, command="test $(MERLIN_SAMPLE_ID) -gt 2 || { echo bad luck >&2; exit 3; }"),
        notify=(appends(file, *ENDS), appends(file, "failures", above=0.1)),
    )
    observer = RecordingObserver()
    run_embedded(workspace, TWO, observer)
    by_event = {facts["event"]: facts for facts in told(file)}
    assert set(by_event) == {"failed", "failures"}
    assert (by_event["failed"]["ok"], by_event["failed"]["failed"]) == (7, 3)
    assert "sim: 3 tasks failed: exit code 3" in by_event["failed"]["text"]
    assert sorted(events(workspace)) == [("failed", ""), ("failures", "")]
    assert observer.summary is not None
    assert observer.notes == []
    run_embedded(workspace, TWO, RecordingObserver())
    assert [facts["event"] for facts in told(file)].count("failures") == 1, "the restart did not repeat it"


def test_a_message_that_cannot_be_sent_is_noted_and_the_study_is_what_it_was(tmp_path: Path) -> None:
    rule = NotifyRule(when=ENDS, channel="webhook", to=("$MERLIN_NO_SUCH_HOOK",))
    workspace = make_workspace(tmp_path, step("sim", 3, command="true"), notify=(rule,))
    notes: dict[str, bool] = {}

    class Observer(RecordingObserver):
        def note(self, text: str) -> None:
            notes[text] = is_live(workspace)

    summary = run_embedded(workspace, TWO, Observer())
    assert summary.is_success
    ((note, was_live),) = notes.items()
    assert not was_live, "who is told may use the workspace, and sees that the study has ended"
    assert note.startswith("nobody was told by webhook (finished): the environment variable MERLIN_NO_SUCH")
    ((event, error),) = events(workspace)
    assert (event, error[:38]) == ("finished", "the environment variable MERLIN_NO_SUCH"[:38])
    assert take_snapshot(workspace).state == "finished"


def test_a_run_that_broke_has_failed_although_people_were_told_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "told"
    workspace = make_workspace(
        tmp_path, step("sim", 4, command="true"), notify=(appends(file, "failed", "stopped"),)
    )

    def breaks(*_: object) -> None:
        raise ExecutionError("the sky fell")

    monkeypatch.setattr(embedded._Run, "_hand_out", breaks)
    with pytest.raises(ExecutionError):
        run_embedded(workspace, TWO, RecordingObserver())
    ((facts),) = told(file)
    assert (facts["event"], facts["reason"]) == ("failed", "ExecutionError: the sky fell")
    assert take_snapshot(workspace).state == "failed"


def test_a_stall_is_told_while_the_study_stalls(tmp_path: Path) -> None:
    file, gate = tmp_path / "told", tmp_path / "gate"
    workspace = make_workspace(
        tmp_path,
        step("sim", 1, command=f"until test -e {gate}; do sleep 0.01; done"),
        notify=(appends(file, "stall", after_s=0.05),),
    )
    run = start_warm_run(workspace, workers=1)
    wait_until(lambda: events(workspace), run)
    gate.touch()
    assert end_of(run)["ok"] == 1
    assert [facts["event"] for facts in told(file)] == ["stall"]


def test_a_run_that_is_interrupted_tells_that_it_has_stopped(tmp_path: Path) -> None:
    file, begun = tmp_path / "told", tmp_path / "begun"
    workspace = make_workspace(
        tmp_path, step("sim", 2, command=f"touch {begun}; sleep 600"), notify=(appends(file, *ENDS),)
    )
    run = start_warm_run(workspace, workers=1)
    wait_until(begun.exists, run)
    os.kill(run.pid, signal.SIGINT)
    assert end_of(run)["stop_reason"] == "interrupted"
    ((facts),) = told(file)
    assert (facts["event"], facts["reason"], facts["missing"]) == ("stopped", "interrupted", 2)


def test_a_study_that_a_command_has_cancelled_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "told"
    workspace = make_workspace(tmp_path, step("sim", 2, command="true"), notify=(appends(file, *ENDS),))
    for _ in range(2):
        tell_of_stop(workspace, "cancelled", pytest.fail)
    ((facts),) = told(file)
    assert (facts["event"], facts["reason"], facts["missing"]) == ("stopped", "cancelled", 2)


def test_without_rules_nothing_is_read_sent_or_written(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, step("sim", 2, command="true"))
    run_embedded(workspace, TWO, RecordingObserver())
    tell_of_stop(workspace, "cancelled", pytest.fail)
    assert events(workspace) == []
