"""The real command where its surroundings are poor: closed or full outputs, old terminals, odd paths."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = """
description: {name: small, description: none}
study:
  - name: a
    run: {cmd: "echo $(SPECROOT) > seen; true"}
  - name: b
    run: {cmd: "cat $(a.workspace)/seen", depends: [a]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder, ünïcode"
    folder.mkdir()
    path = folder / "my spec.yaml"
    path.write_text(
        SPEC.replace("$(SPECROOT)", "'$(SPECROOT)'").replace("$(a.workspace)/seen", "'$(a.workspace)/seen'")
    )
    return path


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    merlin = f"{shlex.quote(sys.executable)} -m merlin.cli"
    return subprocess.run(
        ["/bin/bash", "-c", command.replace("merlin", merlin, 1)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
    )


def test_paths_may_hold_blanks_and_any_letters(spec, tmp_path):
    done = shell(f"merlin run {shlex.quote(str(spec))} --output 'o ut'", tmp_path)
    assert done.returncode == 0, done.stderr
    (out,) = (tmp_path / "o ut").glob("small_*/b/b.out")
    assert out.read_text() == f"{spec.parent}\n"


def test_the_output_may_lie_in_the_home_directory_and_is_no_file(spec, tmp_path):
    # after `=` the shell itself fills nothing in
    done = shell(f"merlin run {shlex.quote(str(spec))} --output=~/out", tmp_path, HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home/out").glob("small_*"))
    (tmp_path / "file").touch()
    for output, why in (("file", "File exists; name another place"), ("~nobody-here/x", "is not known here")):
        done = shell(f"merlin run {shlex.quote(str(spec))} --output='{output}'", tmp_path)
        assert done.returncode != 0 and why in done.stderr.decode()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", ["plan", "validate", "run"])
def test_a_terminal_that_lacks_characters_shows_something_else(spec, encoding, command):
    done = shell(f"merlin {command} 'my spec.yaml'", spec.parent, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert b"small" in done.stdout + done.stderr


@pytest.mark.parametrize("poor", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "POSIX"}], ids=str)
def test_a_terminal_without_blocks_tells_what_is_ok_from_what_failed(spec, poor):
    spec.write_text(f"{spec.read_text()}  - name: c\n    run: {{cmd: 'false'}}\n")
    assert shell("merlin run 'my spec.yaml'", spec.parent).returncode == 1
    names = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **poor}
    told = shell("merlin status 'my spec.yaml'", spec.parent, **names)
    assert told.returncode == 0, told.stderr
    assert b"#" * 30 in told.stdout and b"X" * 30 in told.stdout
    if "LC_ALL" in poor:
        assert os.fsencode(spec.parent) in told.stdout
    for command in (f"cost {spec.name!r}", "list --root ."):
        told = shell(f"merlin {command}", spec.parent, **names)
        assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_no_harm(spec, streams):
    done = shell(f"merlin run 'my spec.yaml' {streams}", spec.parent)
    assert done.returncode == 0, done.stderr
    assert list(spec.parent.glob("small_*/b/MERLIN_FINISHED"))


def test_a_full_output_is_no_bug_of_ours(spec):
    for command in ("plan 'my spec.yaml'", "validate 'my spec.yaml' --json"):
        done = shell(f"merlin {command} > /dev/full", spec.parent)
        assert done.returncode == 1
        assert b"No space left on device" in done.stderr and b"bug" not in done.stderr


def test_a_reader_that_leaves_early_gets_no_traceback(spec):
    done = shell("merlin schema | head -1", spec.parent)
    assert done.stdout == b"{\n" and done.stderr == b""
