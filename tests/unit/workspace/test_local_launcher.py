"""The launcher of this machine is tried out before a plan relies on it; stand-ins at the PATH play it."""

import os

import pytest

from merlin.spec.load import load_spec
from merlin.workspace import local_launcher as module
from merlin.workspace.checking import check_study
from merlin.workspace.local_launcher import local_launcher
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only

SPEC = """
description: {name: mpi, description: d}
study:
  - name: sim
    description: d
    run:
      procs: 4
      cmd: $(LAUNCHER) ./sim; $(LAUNCHER)[1,2] ./post
"""
AS_ROOT = "--allow-run-as-root --oversubscribe" if os.geteuid() == 0 else "--oversubscribe"

OPEN_MPI = f"""
[ "$*" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit
[ "$*" = "{AS_ROOT} -np 2 true" ] && exit
echo ------
echo "mpirun has detected an attempt to run as root."
exit 1
"""
OLD_OPEN_MPI = """
[ "$*" = --version ] && echo "mpirun (Open MPI) 1.0" && exit
[ "$*" = "-np 2 true" ]
"""
MPICH = """
[ "$*" = --version ] && echo "HYDRA build details:" && exit
[ "$*" = "-np 2 true" ]
"""
REFUSES = """
echo "------" >&2
echo "mpirun is not allowed on login nodes." >&2
exit 1
"""


@pytest.fixture
def spec_of(tmp_path, monkeypatch):
    """Write a spec; `mpirun` is the script of the only one on the PATH."""

    def make(text=SPEC, mpirun=None):
        folder = tmp_path / "bin"
        folder.mkdir()
        if mpirun is not None:
            (folder / "mpirun").write_text(f"#!/bin/sh\n{mpirun}")
            (folder / "mpirun").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        (tmp_path / "s.yaml").write_text(text)
        return load_spec(tmp_path / "s.yaml")

    return make


@pytest.mark.parametrize(
    ("mpirun", "command"),
    [(OPEN_MPI, f"mpirun {AS_ROOT}"), (OLD_OPEN_MPI, "mpirun"), (MPICH, "mpirun")],
)
def test_a_launcher_that_works_is_used_with_what_it_needs(spec_of, mpirun, command):
    spec = spec_of(mpirun=mpirun)
    assert plan_only(spec).instances[0].command == f"{command} -np 4 ./sim; {command} -np 2 ./post"
    plan, found = check_study(spec.path, {}, StudyOptions())
    assert plan is not None
    assert found == []


@pytest.mark.parametrize(
    ("mpirun", "why"),
    [(None, "there is no mpirun on the PATH"), (REFUSES, "mpirun is not allowed on login nodes")],
)
def test_without_one_programs_run_as_one_process_and_a_warning_says_so(spec_of, mpirun, why):
    spec = spec_of(mpirun=mpirun)
    assert plan_only(spec).instances[0].command == " ./sim;  ./post"
    plan, found = check_study(spec.path, {}, StudyOptions())
    assert plan is not None
    (warning,) = found
    assert (warning.severity, warning.code, warning.line) == ("warning", "no-launcher", 7)
    assert "'sim' asks for 4 processes and runs as one" in warning.message
    assert why in warning.message
    assert "procs: 1" in warning.hint


def test_a_launcher_that_does_not_answer_is_not_used(spec_of, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    spec_of(mpirun="exec /bin/sleep 600")
    found = local_launcher()
    assert found.command == ""
    assert "no answer within" in found.trouble


@pytest.mark.parametrize(
    "cmd",
    ["./sim", "$(LAUNCHER)[1p] ./sim", "MERLIN_PROCS=1\n          $(VLAUNCHER) ./sim"],
)
def test_a_step_that_asks_for_no_second_process_is_not_warned_of(spec_of, cmd):
    spec = spec_of(SPEC.replace("$(LAUNCHER) ./sim; $(LAUNCHER)[1,2] ./post", f"|\n          {cmd}"))
    assert check_study(spec.path, {}, StudyOptions())[1] == []


def test_processes_from_parameters_count(spec_of):
    text = SPEC.replace("$(LAUNCHER)[1,2]", "$(LAUNCHER)[1n, $(P)p]") + (
        "global.parameters: {P: {values: [1, 16], label: P.%%}}\n"
    )
    (warning,) = check_study(spec_of(text).path, {}, StudyOptions())[1]
    assert "asks for 16 processes" in warning.message


@pytest.mark.parametrize("allocation", ["", "4n", "2p, 3p", "x", "1,2,3", "2p,"])
def test_an_allocation_without_a_number_of_processes_is_an_error(tmp_path, allocation):
    (tmp_path / "s.yaml").write_text(SPEC.replace("[1,2]", f"[{allocation}]"))
    _, (finding,) = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert (finding.severity, finding.code, finding.line) == ("error", "launcher", 8)
    assert "$(LAUNCHER)[2n, 8p]" in finding.hint


def test_an_allocation_that_a_parameter_spoils_is_an_error(tmp_path):
    (tmp_path / "s.yaml").write_text(
        SPEC.replace("[1,2]", "[$(P)p]") + "global.parameters: {P: {values: [many], label: P.%%}}\n"
    )
    _, found = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert [(d.severity, d.code) for d in found] == [("error", "launcher")]
