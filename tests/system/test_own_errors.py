"""Bugs of our own inside worker processes end a study soon and with their cause, and cost no worker after worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_observer import RecordingObserver
from small_plans import step
from study_on_disk import make_workspace, processes_of

from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import RunSummary
from merlin.ledger.replay import replay
from merlin.plan.plan import StepKind
from merlin.workspace.directory import Workspace

FUNCTION = "def run(inputs, context):\n    return {'y': inputs['X']}\n"


def run_with(bug: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> tuple[RunSummary, list[str]]:
    """Run the study with workers that execute `bug` at their start; the kinds of events in its ledger."""
    folder = workspace.path.parent / "bug"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(bug)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    summary = run_embedded(workspace, RunOptions(workers=2), RecordingObserver())
    assert processes_of(workspace) == []
    return summary, [event.kind for event in replay(workspace.ledger_dir, workspace.plan).events()]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "model.py").write_text(FUNCTION)
    return make_workspace(tmp_path, step("sim", 300, kind=StepKind.FUNCTION, function="model:run", canary=10))


COLLECT = """
import merlin.shards.writing.collect as collect
def broken(*_):
    raise TypeError("nobody thought of this")
collect.save_outputs = broken
"""


def test_outputs_that_cannot_be_collected_fail_and_the_canary_stops_the_study(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, events = run_with(COLLECT, workspace, monkeypatch)
    assert summary.stop_reason.startswith("canary: ")
    assert "internal error: TypeError: nobody thought of this" in summary.stop_reason
    assert (summary.ok, summary.failed > 0) == (0, True)
    assert "worker_lost" not in events
    logs = "".join(path.read_text() for path in (workspace.info / "logs").iterdir())
    assert "Traceback" in logs and "in broken" in logs


LEDGER = """
import merlin.ledger.writer as writer
def broken(*_):
    raise TypeError("nobody thought of this")
writer.LedgerWriter.append = broken
"""


def test_a_bug_that_no_task_can_be_blamed_for_stops_the_study(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, events = run_with(LEDGER, workspace, monkeypatch)
    assert "internal error: TypeError: nobody thought of this" in summary.stop_reason
    assert summary.missing == summary.planned == 300
    assert events.count("worker_lost") <= 2
