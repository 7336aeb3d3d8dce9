"""What a run says at its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import merlin
from status_study import fill, make_workspace

from merlin.cli.execute import show_report
from merlin.execution.events import RunSummary
from merlin.shards.format.counts import Counts
from merlin.views.run_report import DataSetReport, RunReport, report_of


def report(**counts: int) -> RunReport:
    found = Counts(**{"planned": 20, "ok": 0, "failed": 0, "skipped": 0, "missing": 0} | counts)
    data_set = DataSetReport(
        path="/w/c",
        line="/w/c: …",
        rows=found.ok,
        samples=found,
        shards=1,
        size_bytes=1,
        fields=("y",),
        digest="",
    )
    return RunReport(
        workspace="/w", name="w", exit_code=0, seconds=1.0, stop_reason="", planned=22, ok=22, failed=0, skipped=0,
        missing=0, on_failed_input=0, steps=(), failures=(), data_sets=(data_set,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "is_told"),
    [({"filtered": 20}, True), ({"filtered": 19, "ok": 1}, False), ({"failed": 20}, False)],
)
def test_a_filter_that_lets_nothing_pass_is_told(
    counts: dict[str, int], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show_report(report(**counts))
    assert ("its filter (valid) let no sample pass" in capsys.readouterr().out) == is_told


def test_a_watch_of_chosen_steps_reports_on_these_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    assert merlin("monitor", workspace.path, "--steps", "post", "--json") == 130
    found = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in found["steps"]] == ["post"]
    assert found["planned"] == found["steps"][0]["planned"] == 20
    assert {group["step"] for group in found["failures"]} == {"post"}


def test_the_failures_that_are_told_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("merlin.views.run_report.MAX_GROUPS", 1)
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    merlin("monitor", workspace.path)
    told = capsys.readouterr().out
    parts = re.findall(r"^(?:\w+: (\d+) tasks? failed:|and (\d+) other failed)", told, re.MULTILINE)
    (failed,) = re.findall(r"^tasks: .* failed (\d+) ", told, re.MULTILINE)
    assert "other failed" in told and sum(int(a or b) for a, b in parts) == int(failed)
    merlin("failures", workspace.path)
    assert "message  killed" not in capsys.readouterr().out  # the cause says so


@pytest.mark.parametrize(("missing", "reason"), [(0, ""), (1, "interrupted")])
def test_a_signal_that_comes_when_all_is_done_has_stopped_nothing(
    tmp_path: Path, missing: int, reason: str
) -> None:
    workspace = make_workspace(tmp_path / "w")
    summary = RunSummary(
        planned=2,
        ok=2 - missing,
        failed=0,
        skipped=0,
        missing=missing,
        stop_reason="interrupted",
        seconds=1.0,
        per_step={},
    )
    assert report_of(workspace, summary).stop_reason == reason


EARLY = """
import signal
from pathlib import Path
from merlin.cli.execute import resumable
with resumable(Path("w")):
    signal.raise_signal({number})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_run_begins_says_how_to_go_on(number: int) -> None:
    code = f"import signal; signal.signal({number:d}, signal.SIG_DFL)" + EARLY.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-number, "resume with: merlin restart w\n")
