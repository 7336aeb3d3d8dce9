"""`merlin metrics`: printed once, or in a file that node_exporter reads."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import merlin
from small_plans import step
from study_on_disk import make_workspace
from waiting import wait_until

from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.workspace.directory import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = make_workspace(tmp_path, step("sim", 5, command="exit $(($(MERLIN_SAMPLE_ID) == 4 ? 3 : 0))"))
    run_embedded(made, RunOptions(workers=1), Observer())
    return made


def test_a_workspace_that_is_named_is_shown_in_detail(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merlin("metrics", workspace.path) == 0
    out = capsys.readouterr().out
    labels = f'step="sim",study="{workspace.path.name}"'
    assert f'merlin_step_tasks{{outcome="ok",{labels}}} 4.0\n' in out
    assert f'merlin_step_failures{{exit_class="exit code 3",{labels}}} 1.0\n' in out


def test_all_studies_of_a_directory_are_shown(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), ("--root", workspace.path.parent), (workspace.path.parent,)):
        assert merlin("metrics", *words) == 0
        assert 'merlin_studies{state="failed"} 1.0\n' in capsys.readouterr().out


def test_a_directory_without_studies_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merlin("metrics", tmp_path) == 2
    assert "is not the workspace of a study, and holds none" in capsys.readouterr().err


def test_a_file_for_node_exporter_is_written_for_everybody_to_read(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "merlin.prom"
    assert merlin("metrics", workspace.path, "--textfile", file) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert file.read_text().endswith("\n")
    assert [p.name for p in tmp_path.glob("merlin.prom*")] == ["merlin.prom"]


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--textfile", "merlin.txt"), "ends in .prom"), (("--every", "5"), "--every goes with --textfile")],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    workspace: Workspace, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merlin("metrics", *words) == 2
    assert message in capsys.readouterr().err


def test_the_file_is_written_again_and_again_until_ctrl_c(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "merlin.prom"
    words = [str(workspace.path), "--textfile", str(file), "--every", "1"]
    command = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", "metrics", *words], stderr=subprocess.PIPE, text=True
    )
    wait_until(file.exists, command)
    first = os.stat(file).st_ino
    wait_until(lambda: os.stat(file).st_ino != first, command)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "every 1 s" in err
