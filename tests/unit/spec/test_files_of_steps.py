"""The key `files` of a step: how it is written, expanded and refused."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from merlin.errors import Diagnostic
from merlin.spec.load import Spec, check_spec
from merlin.spec.schema import json_schema

SPEC = """\
description: {name: demo, description: d}
env: {variables: {FOLDER: in, LIST: "[a.py, b.py]"}}
study:
- name: one
  description: d
  run:
    cmd: echo
    %s
"""


def checked(tmp_path: Path, line: str) -> tuple[Spec | None, list[Diagnostic]]:
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC % line)
    return check_spec(path)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("files: [a.py, $(FOLDER)/*.txt]", ("a.py", "in/*.txt")),
        ("files: a.py", ("a.py",)),
        ("files: $(LIST)", ("a.py", "b.py")),
        ("files: [$(SPECROOT)/a.py, 1]", ("$(SPECROOT)/a.py", "1")),
        ("files: []", ()),
        ("files:", ()),
        ("nodes: 1", ()),
    ],
)
def test_it_is_a_list_of_paths_or_one_path(tmp_path: Path, line: str, files: tuple[str, ...]) -> None:
    spec, findings = checked(tmp_path, line)
    assert findings == [] and spec is not None
    assert spec.document.study[0].run.files == files
    assert "files" not in spec.document.study[0].run.resources
    jsonschema.validate(yaml.safe_load(SPEC % line), json_schema())


def test_home_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    spec, _ = checked(tmp_path, "files: [~/a.py, $HOME/b.py]")
    assert spec is not None and spec.document.study[0].run.files == ("/home/ann/a.py", "/home/ann/b.py")


def test_the_expanded_spec_shows_it_from_the_root_because_it_lies_elsewhere(tmp_path: Path) -> None:
    line = "files: [$(FOLDER)/a.py, $(SPECROOT)/b.py, /c.py, $(P)/d.py]"
    spec, _ = checked(tmp_path, f"{line}\nglobal.parameters: {{P: {{values: [1]}}}}")
    assert spec is not None
    run = yaml.safe_load(spec.expanded_yaml({"SPECROOT": "/specs"}))["study"][0]["run"]
    assert run["files"] == ["/specs/in/a.py", "/specs/b.py", "/c.py", "$(P)/d.py"]
    assert yaml.safe_load(spec.expanded_yaml())["study"][0]["run"]["files"][0] == "in/a.py"
    plain, _ = checked(tmp_path, "nodes: 1")
    assert plain is not None and "files" not in plain.expanded_yaml()


@pytest.mark.parametrize(
    ("line", "place", "message", "hint"),
    [
        ("fils: [a.py]", (8, 5), "unknown key 'fils'", "did you mean 'files'?"),
        ("files: {a: b}", (8, 12), "must be a list", ""),
        ("files: [a.py, '']", (8, 19), "must not be empty", ""),
        ("files: [a.py, [b.py]]", (8, 19), "must be text", ""),
        ("files: [$(NOTHING)/a.py]", (8, 13), "$(NOTHING) is not defined", ""),
        ("files: [$(MERLIN_SAMPLE_ID).py]", (8, 13), "differs from sample to sample", ""),
    ],
)
def test_slips_are_shown_in_their_place(
    tmp_path: Path, line: str, place: tuple[int, int], message: str, hint: str
) -> None:
    spec, findings = checked(tmp_path, line)
    assert spec is None
    found = [d for d in findings if message in d.message]
    assert found, [d.message for d in findings]
    assert (found[0].line, found[0].col) == place
    assert hint in found[0].hint


def test_a_step_where_it_stands_too_high_says_so(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC.replace("    %s", "  files: [a.py]"))
    (found,) = check_spec(path)[1]
    assert found.hint == "it belongs one level deeper, under run"
