"""What Maestro's sample specs do, which no archive on the package index holds, in specs of our own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from upstream_example import Example

SPECS = Path(__file__).parent / "specs"


@pytest.fixture
def specs(tmp_path: Path) -> Example:
    return Example.copy_of(SPECS, tmp_path / "specs")


@pytest.fixture
def repository(specs: Example) -> Path:
    """`sim.git`, whose tag v1 holds a program and a Makefile that must be edited."""
    folder = specs.folder / "sim.git"
    folder.mkdir()
    (folder / "Makefile").write_text("CXX = $(MPICXX)\nSERCXX = g++\n")
    (folder / "sim").write_text('#!/bin/sh\necho "size $2 iterations $4"\n')
    (folder / "sim").chmod(0o755)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"], ["tag", "v1"]):
        who = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return folder


def test_a_study_clones_edits_builds_and_runs_a_code_and_does_so_twice(
    specs: Example, repository: Path
) -> None:
    assert repository.is_dir()
    for time in ("first", "second"):
        specs.run("build_and_run.yaml")
        workspaces = specs.workspaces("sample_output/sim")
        assert len(workspaces) == (1 if time == "first" else 2)
        _check_build_and_run(workspaces[-1])


def _check_build_and_run(workspace: Path) -> None:
    (built,) = workspace.rglob("built")
    assert built.read_text() == "CXX = $(SERCXX)\nSERCXX = g++\n"
    logs = {p.name: p.read_text() for p in workspace.glob("run-sim/*/*.log")}
    assert logs == {
        f"SIZE.{size}.ITER.{n}.log": f"size {size} iterations {n}\n" for size in (10, 20) for n in (1, 2)
    }
    assert len((workspace / "post-process/all.log").read_text().splitlines()) == 4
    sizes = {
        p.parent.name: p.read_text().split("\n")[0] for p in workspace.glob("post-process-size/*/size.log")
    }
    assert sizes == {"SIZE.10": "SIZE = 10", "SIZE.20": "SIZE = 20"}


def test_a_label_that_nobody_uses_is_at_most_a_warning(specs: Example) -> None:
    specs.run("unused_label.yaml")
    (workspace,) = specs.workspaces("sample_output/hello")
    assert (workspace / "bye/bye.txt").read_text() == "Bye, World!\n"


def test_every_form_of_the_launcher_runs_on_one_machine(specs: Example) -> None:
    specs.run("launcher_forms.yaml")
    (workspace,) = specs.workspaces("sample_output/launcher")
    said = {p.stem: p.read_text().split() for p in workspace.rglob("*.out")}
    assert said == {"legacy": ["one", "two"], "whole": ["one"], "named": ["one", "two", "three"]}


def test_a_parameter_generator_gets_its_arguments_and_the_environment(specs: Example) -> None:
    specs.run("generated.yaml", "--pgen", "itertools_pgen.py", "--pargs", "smax:20")
    (workspace,) = specs.workspaces("sample_output/generated")
    said = {p.parent.name: p.read_text() for p in workspace.glob("run/*/*.out")}
    combinations = [(10, 100), (10, 200), (20, 100), (20, 200)]
    assert said == {
        f"ITER.{n}.SIZE.{size}.TRIAL.{trial}": f"{trial} {size} {n} from 10\n"
        for trial, (size, n) in enumerate(combinations)
    }


def test_a_relative_path_of_a_dependency_is_made_absolute(specs: Example) -> None:
    specs.run("tools_beside.yaml")
    (workspace,) = specs.workspaces("sample_output/tools")
    assert (workspace / "measure/measured.txt").read_text() == "measured 42\n"
