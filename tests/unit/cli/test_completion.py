"""What the shells complete; the answers are those of click's protocol, a script of ours puts them on the line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from merlin.cli.completing.shells import _open_option, register
from merlin.cli.completing.values import steps_of
from merlin.cli.main import cli, main
from merlin.config.study_places import remember_folder

SPEC = """
description: {name: demo, description: d}
env: {variables: {name: no_step}}
study:
  - name: sim   # the first
    description: "name: neither"
    run: {cmd: "true"}
  - {name: "post", description: d, run: {cmd: "true", depends: [sim]}}
  - description: d
    name: 'train'
    run:
      cmd: |
        name=x
merlin:
  resources: {workers: {simw: {steps: [sim]}}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(SPEC)
    for stamp in ("20260102-030405", "20260203-040506"):
        info = tmp_path / f"demo_{stamp}/merlin_info"
        info.mkdir(parents=True)
        (info / "plan.json").write_text(
            json.dumps({"instances": [{"step": "sim"}, {"step": "sim"}, {"step": "end"}]})
        )
    (tmp_path / "other dir").mkdir()
    return tmp_path


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def ask(line: str) -> list[str]:
        """What could be the last word of the line; after a blank, a new one."""
        monkeypatch.setenv("_MERLIN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
        with pytest.raises(SystemExit):
            main([])
        found = (each.partition(",") for each in capsys.readouterr().out.splitlines() if each)
        return [value for _, _, value in found]

    return ask


def test_studies_are_completed_workspaces_first_and_the_newest_before_the_others(
    here: Path, complete
) -> None:
    newest_first = ["demo_20260203-040506", "demo_20260102-030405"]
    assert complete("merlin status ") == [*newest_first, "demo.yaml", "other dir"]
    assert complete("merlin status demo_20260102") == ["demo_20260102-030405"]
    assert complete("merlin plan d") == ["demo.yaml"]
    assert complete("merlin status ./demo.") == ["./demo.yaml"]


def test_where_there_is_no_study_those_of_other_directories_are_offered(
    here: Path, complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_folder(here, os.environ)
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    assert complete("merlin restart ") == [
        str(here / "demo_20260203-040506"),
        str(here / "demo_20260102-030405"),
    ]


def test_steps_are_those_of_the_study_on_the_line_one_after_another(here: Path, complete) -> None:
    assert complete("merlin monitor demo.yaml --steps ") == ["sim", "post", "train"]
    assert complete("merlin monitor demo.yaml --steps sim p") == ["post"]
    assert complete("merlin monitor demo_20260102-030405 --steps ") == ["sim", "end"]
    assert complete("merlin monitor --steps ") == []
    assert "demo.yaml" in complete("merlin monitor --steps sim ")


def test_options_are_completed_after_words_of_another(here: Path, complete) -> None:
    assert complete("merlin monitor demo.yaml --steps sim --js") == ["--json"]
    assert complete("merlin workers sub") == ["submit"]


def test_an_option_is_open_until_the_next_one() -> None:
    register()
    assert _open_option(cli, ["monitor", "w", "--steps", "a", "b"]) == "--steps"
    assert _open_option(cli, ["monitor", "w", "--steps", "a", "--json"]) == ""
    assert _open_option(cli, ["monitor", "--steps", "a"]) == ""
    assert _open_option(cli, ["workers", "submit", "w", "--steps", "a"]) == "--steps"
    assert _open_option(cli, ["status", "w"]) == ""


def test_a_study_that_cannot_be_read_has_no_steps(here: Path) -> None:
    (here / "demo.yaml").write_text("study: 3")
    assert steps_of(here / "demo.yaml") == []
    (here / "demo_20260102-030405/merlin_info/plan.json").write_text("{")
    assert steps_of(here / "demo_20260102-030405") == []
    assert steps_of(here / "nothing.yaml") == []


def test_the_script_for_bash_puts_the_answers_on_the_line(here: Path) -> None:
    program = here / "bin/merlin"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m merlin.cli "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={program.parent}:$PATH
        eval "$(merlin completion bash)"
        compopt() {{ :; }}
        COMP_WORDS=(merlin status o) COMP_CWORD=2
        _merlin_completion merlin
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "other dir\n", done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_what_the_shells_understand(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", shell])
    script = capsys.readouterr().out
    assert f"_MERLIN_COMPLETE={shell}_complete" in script
    assert "%(" not in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_completing_loads_nothing_heavy(here: Path) -> None:
    script = (
        "import sys; sys.argv = ['merlin']; from merlin.cli.main import main\n"
        "try: main()\nfinally: print(*sys.modules)"
    )
    environment = {
        **os.environ,
        "_MERLIN_COMPLETE": "bash_complete",
        "COMP_WORDS": "merlin monitor demo_20260102-030405 --steps ",
        "COMP_CWORD": "4",
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "numpy",
        "yaml",
        "msgspec",
        "pydantic",
        "rich",
        "redis",
        "asyncio",
        "textual",
        "merlin.plan",
    }
