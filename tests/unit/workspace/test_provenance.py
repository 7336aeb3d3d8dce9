"""Who began a study, how, and with what code."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest

from merlin.spec.load import load_spec
from merlin.workspace.prepare import prepare_study
from merlin.workspace.provenance import (
    NAME,
    Commit,
    Provenance,
    find_provenance,
    read_provenance,
    study_options_of,
)

SPEC = 'description: {name: hello, description: d}\nstudy: [{name: a, description: d, run: {cmd: "echo"}}]\n'


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "hello.yaml").write_text(SPEC)
    git(folder, "add", "hello.yaml")
    git(folder, "commit", "--quiet", "-m", "a spec")
    return folder


@pytest.mark.parametrize(
    "program", ["bin/merlin", "site-packages/merlin/__main__.py", "site-packages/merlin/cli/__main__.py"]
)
def test_a_study_knows_who_began_it_and_the_commit_of_its_spec(
    repository: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr("sys.argv", [f"/opt/venv/{program}", "run", "hello.yaml", "--vars", "NAME=a b"])
    study = prepare_study(load_spec("hello.yaml"))
    found = read_provenance(study.info)
    assert found.command == "merlin run hello.yaml --vars 'NAME=a b'"
    assert (found.directory, found.host) == (str(repository), socket.gethostname())
    assert found.user == pwd.getpwuid(os.geteuid()).pw_name
    assert found.spec_commit == Commit(id=git(repository, "rev-parse", "HEAD"))
    assert found.python and found.packages["numpy"]


def test_files_that_were_changed_after_the_commit_are_told(repository: Path) -> None:
    (repository / "new.py").write_text("")
    assert not find_provenance(repository).spec_commit.is_changed
    (repository / "hello.yaml").write_text(SPEC + "\n")
    commit = find_provenance(repository).spec_commit
    assert commit.is_changed and str(commit).endswith("with changes that are not committed")


def test_nothing_of_the_configuration_of_a_repository_is_run(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    assert find_provenance(repository).spec_commit.id
    assert not (tmp_path / "sprung").exists()


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert find_provenance(tmp_path).spec_commit == Commit()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_provenance(tmp_path).spec_commit == Commit()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "merlin-provenance", "version": 9}'])
def test_a_study_of_before_or_a_damaged_file_says_nothing(tmp_path: Path, text: str) -> None:
    assert read_provenance(tmp_path) == Provenance()
    (tmp_path / NAME).write_text(text)
    assert read_provenance(tmp_path) == Provenance()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("merlin run a.yaml", []),
        ("merlin run --vars N=2 'WORD=a b' a.yaml --local", ["--vars", "N=2", "WORD=a b"]),
        ("merlin run --vars=N=2 a.yaml", ["--vars=N=2"]),
        ("merlin run --pgen g.py a.yaml --pargs X:1 --pargs=Y:2", ["--pgen", "g.py", "--pargs", "X:1", "--pargs=Y:2"]),
        ("merlin run a.yaml --samplesfile s.csv --update study --yes", ["--samplesfile", "s.csv"]),
        ("python study.py", []),
    ],
)  # fmt: skip
def test_the_options_that_another_command_about_the_study_has_to_repeat(
    command: str, options: list[str]
) -> None:
    assert study_options_of(command) == options
