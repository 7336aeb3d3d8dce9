from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from merlin import __version__
from merlin.cli import main as command_line
from merlin.errors import Diagnostic, SpecError, UsageError, WorkspaceError


def exit_code(*argv: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(argv)
    return caught.value.code


def test_every_command_of_the_table_can_be_loaded_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in command_line.COMMANDS:
        assert exit_code(name, "--help") == 0
        assert "Usage: merlin" in capsys.readouterr().out


def commands_of(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command, *words, name)
        elif command is not None:
            yield " ".join([*words, name]), command


def test_every_command_whose_output_is_for_people_has_one_for_programs() -> None:
    found = dict(commands_of(command_line.cli))
    without = {name for name, command in found.items() if all("--json" not in p.opts for p in command.params)}
    assert len(found) > 40 and without == {"metrics", "schema", "completion"}


def test_no_arguments_show_the_help_with_every_command_and_exit_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code() == 1
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in command_line.COMMANDS)


def test_version_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_a_mistyped_command_gets_a_hint_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("statsu", "x") == 2
    assert "Did you mean 'status'" in capsys.readouterr().err


def test_a_pattern_that_is_several_workspaces_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "merlin_info").mkdir(parents=True)
    assert exit_code("status", str(tmp_path / "a"), str(tmp_path / "b")) == 2
    assert "these are 2 workspaces; name one of them" in capsys.readouterr().err
    assert exit_code("status", str(tmp_path / "a"), "more") == 2
    assert "workspaces" not in capsys.readouterr().err


def test_the_level_may_be_given_as_upstream_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("-lvl", "debug", "info") == 0
    assert exit_code("--level", "WARNING", "info") == 0
    assert exit_code("-lvl", "loud", "info") == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkspaceError("no plan"), 1),
        (UsageError("both"), 2),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 1),
    ],
)
def test_errors_become_their_exit_code_without_a_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(as_json: bool) -> None:
        raise error

    monkeypatch.setattr(command_line, "_drop_stdout", lambda: None)
    monkeypatch.setattr(import_module("merlin.cli.commands.info").info, "callback", fail)
    assert exit_code("info") == code
    assert "Traceback" not in capsys.readouterr().err


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(as_json: bool) -> None:
        raise WorkspaceError("no plan")

    monkeypatch.setattr(import_module("merlin.cli.commands.info").info, "callback", fail)
    assert exit_code("-lvl", "DEBUG", "info") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_spec_error_prints_every_diagnostic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Diagnostic("a.yaml", 3, 5, "unknown key 'stp'", hint="did you mean 'step'?"),
        Diagnostic("a.yaml", 9, 1, "x"),
    ]

    def fail(as_json: bool) -> None:
        raise SpecError(found)

    monkeypatch.setattr(import_module("merlin.cli.commands.info").info, "callback", fail)
    assert exit_code("info") == 2
    err = capsys.readouterr().err
    assert "a.yaml:3:5: error: unknown key 'stp'\n    did you mean 'step'?" in err
    assert "2 errors" in err


def test_with_json_an_error_is_a_document_on_stdout_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec_error = SpecError([Diagnostic("a.yaml", 3, 5, "unknown key 'stp'")])
    for error, code in ((WorkspaceError("no plan"), 1), (spec_error, 2)):

        def fail(as_json: bool, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(import_module("merlin.cli.commands.info").info, "callback", fail)
        assert exit_code("info", "--json") == code
        told = capsys.readouterr()
        document = json.loads(told.out)
        assert (document["error"], document["exit_code"]) == (str(error), code)
        assert str(error) in told.err
    assert document["diagnostics"][0]["line"] == 3
    assert exit_code("status", str(tmp_path / "none"), "--json") == 2
    assert "none" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("number", "note", "told"),
    [
        (13, "", "Permission denied: /away/report.html"),
        (27, "", "File too large: /away/report.html; allow larger files (ulimit -f unlimited)"),
        (28, "go on", "No space left on device: /away/report.html; go on"),
    ],
)
def test_a_file_that_cannot_be_written_is_called_what_the_user_called_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, note: str, told: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        error = OSError(number, os.strerror(number), "/away/report.html.0a1b2c3d.tmp")
        if note:
            error.add_note(note)
        raise error

    monkeypatch.setattr(command_line.cli, "main", fail)
    assert exit_code("info") == 1
    assert capsys.readouterr().err == f"merlin: error: {told} (-lvl DEBUG shows more)\n"


def test_an_unforeseen_error_says_where_its_traceback_is_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(as_json: bool) -> None:
        raise TypeError("surprise")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(import_module("merlin.cli.commands.info").info, "callback", fail)
    assert exit_code("info") == 1
    (saved,) = tmp_path.glob("merlin-error-*.txt")
    assert str(saved) in capsys.readouterr().err
    assert "TypeError: surprise" in saved.read_text()


@pytest.mark.parametrize("module", ["merlin", "merlin.cli"])
def test_a_reader_that_leaves_early_is_no_error(module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", module, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, 1)


@pytest.mark.parametrize(("words", "less"), [(["status", "--help"], 10), (["plan", "--help"], 0)])
def test_commands_that_look_at_studies_let_those_that_compute_go_first(
    tmp_path: Path, words: list[str], less: int
) -> None:
    code = "import atexit, os; atexit.register(lambda: print('niceness', os.nice(0)))\n"
    code += f"import sys; sys.argv[1:] = {words}\nfrom merlin.cli.main import command; command()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"niceness {min(19, os.nice(0) + less)}"


def test_the_shell_completes_commands_and_options() -> None:
    environment = {
        **os.environ,
        "_MERLIN_COMPLETE": "bash_complete",
        "COMP_WORDS": "merlin sta",
        "COMP_CWORD": "1",
    }
    script = "import sys; sys.argv = ['merlin']; from merlin.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,status"]
    environment |= {"COMP_WORDS": "merlin plan --me", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,--mermaid"]
