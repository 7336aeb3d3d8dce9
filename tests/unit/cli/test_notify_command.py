"""`merlin notify`: whom a study tells of what, and a message that tries it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from in_process import merlin

from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.spec.load import load_spec
from merlin.workspace.prepare import prepare_study

SPEC = """\
description: {name: demo, description: d}
study: [{name: sim, run: {cmd: "true"}}]
notify:
- {when: end, cmd: 'echo "$MERLIN_EVENT $MERLIN_WORKSPACE" >> $(SPECROOT)/told'}
"""
BROKEN = "- {when: stall, webhook: $MERLIN_NO_SUCH_HOOK}\n"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC)
    return path


def test_a_spec_is_tried_before_it_runs(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merlin("notify", spec, "--test") == 0
    assert (spec.parent / "told").read_text() == "test \n"
    assert capsys.readouterr().out.endswith(": delivered\n")


def test_a_way_whose_package_is_missing_is_named(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    spec.write_text(SPEC + "- {when: end, apprise: $HOOK}\n")
    assert merlin("notify", spec) == 0
    assert "notifying by apprise needs apprise; install it with" in capsys.readouterr().err


def test_what_cannot_be_delivered_is_an_exit_code(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(SPEC + BROKEN)
    assert merlin("notify", spec, "--test", "--json") == 1
    first, second = json.loads(capsys.readouterr().out)["entries"]
    assert (first["channel"], first["error"]) == ("cmd", "")
    assert "MERLIN_NO_SUCH_HOOK is not set" in second["error"]


def test_a_workspace_shows_what_was_told(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = prepare_study(load_spec(spec))
    assert merlin("notify", workspace.path) == 0
    assert "nothing yet" in capsys.readouterr().out
    run_embedded(workspace, RunOptions(workers=1), Observer())
    assert (spec.parent / "told").read_text() == f"finished {workspace.path}\n"
    assert merlin("notify", workspace.path, "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert [(told["event"], told["error"]) for told in entry["told"]] == [("finished", "")]
    assert entry["when"] == ["finished", "failed", "stopped"]


def test_a_spec_that_tells_nobody_says_so(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(SPEC.partition("notify:")[0])
    assert merlin("notify", spec) == 0
    assert merlin("notify", spec, "--test") == 0
    assert capsys.readouterr().out.count("nobody is told") == 2
