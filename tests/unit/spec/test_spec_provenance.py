"""Partial and expanded specs: valid YAML with the same content."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from merlin.base.document.tree import Entry
from merlin.spec.load import Spec, load_spec
from merlin.spec.provenance import dump

TEXT = """\
description: {name: $(NAME)_study, description: "two: words"}
env:
  variables: {NAME: demo, N: 10, OUT: $HOME/out, FLAG: true, START: 1:30:00}
user:
  base: &base
    cmd: |
      if [ -e done ]; then

        exit $(MERLIN_SUCCESS)
      fi
      echo $(NAME) $(X) $(P) $HOME ~ $(date)
study:
- name: sim
  run: {<<: *base, walltime: 01:30:00}
- name: after
  run:
    cmd: echo a: b
    depends: [sim_*]
global.parameters: {P: {values: [0.5, 1], label: P.%%}}
merlin:
  resources: {workers: {$(NAME)_w: {steps: [sim]}}}
  samples:
    generate: {cmd: make $(MERLIN_INFO) $(N)}
    file: $(MERLIN_INFO)/samples.npy
    column_labels: [X]
"""
COMMAND = """\
if [ -e done ]; then

  exit $(MERLIN_SUCCESS)
fi
echo $(NAME) $(X) $(P) $HOME ~ $(date)
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setenv("HOME", "/home/ada")
    path = tmp_path / "demo.yaml"
    path.write_text(TEXT)
    return load_spec(path, variables={"N": "30"})


def test_the_partial_spec_keeps_tokens_and_shows_overrides_and_defaults(spec: Spec) -> None:
    data = yaml.safe_load(spec.partial_yaml())
    assert list(data) == ["description", "batch", "env", "study", "global.parameters", "merlin", "user"]
    assert data["env"]["variables"]["N"] == 30
    assert data["description"]["name"] == "$(NAME)_study"
    assert data["batch"] == {"type": "local", "dry_run": False, "shell": "/bin/bash"}
    run = data["study"][0]["run"]
    assert run["cmd"] == COMMAND
    assert (run["task_queue"], run["max_retries"], run["shell"], run["walltime"]) == (
        "merlin",
        30,
        "/bin/bash",
        "01:30:00",
    )
    assert data["study"][1]["run"]["cmd"] == "echo a: b"
    assert data["merlin"]["resources"]["workers"] == {
        "$(NAME)_w": {"steps": ["sim"]},
        "default_worker": {"steps": ["after"]},
    }
    assert data["merlin"]["samples"]["level_max_dirs"] == 25


def test_commands_are_written_as_blocks_of_text(spec: Spec) -> None:
    assert (
        "      cmd: |\n        if [ -e done ]; then\n\n          exit $(MERLIN_SUCCESS)\n"
        in spec.partial_yaml()
    )


def test_the_expanded_spec_has_everything_filled_in(spec: Spec) -> None:
    data = yaml.safe_load(spec.expanded_yaml({"MERLIN_INFO": "/ws/merlin_info", "MERLIN_SUCCESS": 0}))
    assert data["description"]["name"] == "demo_study"
    assert data["env"]["variables"]["OUT"] == "/home/ada/out"
    assert data["merlin"]["samples"]["file"] == "/ws/merlin_info/samples.npy"
    assert data["merlin"]["samples"]["generate"]["cmd"] == "make /ws/merlin_info 30"
    assert "demo_w" in data["merlin"]["resources"]["workers"]
    assert data["study"][0]["run"]["cmd"].splitlines()[-1] == "echo demo $(X) $(P) $HOME ~ $(date)"
    assert "  exit 0" in data["study"][0]["run"]["cmd"]


@pytest.mark.parametrize("kind", ["partial", "expanded"])
def test_both_can_be_run_again_with_the_same_meaning(spec: Spec, tmp_path: Path, kind: str) -> None:
    again = tmp_path / "again.yaml"
    again.write_text(spec.partial_yaml() if kind == "partial" else spec.expanded_yaml())
    document = load_spec(again).document
    assert document.study == spec.document.study
    assert document.parameters == spec.document.parameters
    assert document.merlin == spec.document.merlin


def test_values_of_the_command_line_are_written_as_they_were_typed(tmp_path: Path) -> None:
    path, again = tmp_path / "demo.yaml", tmp_path / "again.yaml"
    names = {"A": "007", "B": "1.10", "C": "yes", "D": "12", "E": "2.5", "F": "true", "G": "True"}
    path.write_text(
        f"description: {{name: s}}\nstudy: [{{name: a, run: {{cmd: {' '.join(f'$({n})' for n in names)}}}}}]"
    )
    spec = load_spec(path, variables=names)
    for text in (spec.partial_yaml(), spec.expanded_yaml()):
        again.write_text(text)
        assert load_spec(again).document.study[0].run.cmd == "007 1.10 yes 12 2.5 true True"
    values = yaml.safe_load(spec.partial_yaml())["env"]["variables"]
    assert [values[name] for name in "DEF"] == [12, 2.5, True]


def test_the_digest_depends_on_content_only(spec: Spec, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.yaml"
    other.write_text("# a comment\n" + TEXT)
    assert load_spec(other, variables={"N": "30"}).digest == spec.digest
    assert load_spec(other, variables={"N": "31"}).digest != spec.digest


@given(st.text(alphabet="a#:-'\"|>%&* \t\n\\é\u2028$()", min_size=1))
def test_any_command_survives_being_written(command: str) -> None:
    run = Entry({"run": Entry({"cmd": Entry(command)})})
    written = dump(Entry({"study": Entry([run])}))
    assert yaml.safe_load(written)["study"][0]["run"]["cmd"] == command


def test_blanks_and_tabs_do_not_spoil_a_block_of_text() -> None:
    command = "if x; then \n\techo\n\nfi\n"
    run = Entry({"run": Entry({"cmd": Entry(command)})})
    assert "cmd: |\n" in dump(Entry({"study": Entry([run])}))
