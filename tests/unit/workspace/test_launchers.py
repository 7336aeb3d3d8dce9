"""A study starts its programs by its scheduler where that is, and by this machine's launcher where it is not."""

import pytest

from merlin.batch.contract import LaunchRequest
from merlin.spec.load import load_spec
from merlin.workspace.checking import check_study
from merlin.workspace.launchers import possible_launchers
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only

SPEC = """
description: {name: mpi, description: d}
batch: {type: slurm, bank: physics, launch_args: --of-workers}
study:
  - name: sim
    description: d
    run:
      procs: 4
      nodes: 2
      slurm: --mpi=pmix
      cmd: $(LAUNCHER) ./sim
  - name: here
    description: d
    run: {procs: 2, cmd: $(LAUNCHER) ./post, batch: {type: local}}
  - name: nested
    description: d
    run: {procs: 2, cmd: $(LAUNCHER) ./post, batch: {launch_pre: "time", launch_args: --label}}
"""
MPICH = """
[ "$*" = --version ] && echo "HYDRA build details:" && exit
[ "$*" = "-np 2 true" ]
"""


@pytest.fixture
def commands_of(tmp_path, monkeypatch):
    """The commands that are planned where only these programs are on the PATH."""

    def plan(text=SPEC, programs=None, **environment):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, script in (programs or {}).items():
            (folder / name).write_text(f"#!/bin/sh\n{script}")
            (folder / name).chmod(0o755)
        for name in ("SLURM_JOB_ID", "FLUX_URI", "FLUX_JOB_ID", "LSB_JOBID", "PBS_JOBID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"PATH": str(folder), **environment}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "s.yaml").write_text(text)
        return [one.command for one in plan_only(load_spec(tmp_path / "s.yaml")).instances]

    return plan


def test_on_a_laptop_nothing_is_left_of_the_scheduler(commands_of, tmp_path):
    assert commands_of() == [" ./sim", " ./post", " ./post"]
    _, found = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert [(d.severity, d.code) for d in found] == [("warning", "no-launcher")] * 3


def test_mpirun_of_this_machine_plays_the_scheduler_that_is_not_there(commands_of):
    found = commands_of(programs={"mpirun": MPICH})
    assert found == ["mpirun -np 4 ./sim", "mpirun -np 2 ./post", "mpirun -np 2 ./post"]


@pytest.mark.parametrize("where", [{"programs": {"srun": "exec false"}}, {"SLURM_JOB_ID": "12"}])
def test_where_the_scheduler_is_it_starts_the_programs(commands_of, tmp_path, where):
    slurm, local, nested = commands_of(**where)
    assert slurm == "srun -n 4 -N 2 --mpi=pmix ./sim"
    assert local == " ./post"
    assert nested == "time srun -n 2 --label ./post"
    _, found = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert ["'here'" in d.message for d in found] == [True]


def test_a_job_of_another_scheduler_is_not_ours(commands_of):
    assert commands_of(LSB_JOBID="12", LSB_HOSTS="a b") == [" ./sim", " ./post", " ./post"]


def test_words_that_no_launcher_takes_are_an_error_with_a_place(tmp_path, commands_of):
    text = SPEC.replace("slurm: --mpi=pmix", "slurm: $(P)") + (
        'global.parameters: {P: {values: ["\\a"], label: P.%%}}\n'
    )
    commands_of(SPEC, SLURM_JOB_ID="12")
    (tmp_path / "s.yaml").write_text(text)
    _, found = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    (error,) = [d for d in found if d.severity == "error"]
    assert (error.code, error.line) == ("launcher", 11)
    assert "step 'sim'" in error.message


def test_an_extension_finds_the_launchers_of_its_study_on_any_machine():
    asked = LaunchRequest(procs="2", resources={"batch.type": "slurm"})
    lines = {one.line(asked) for one in possible_launchers()}
    assert {"", "mpirun -np 2", "mpirun --oversubscribe -np 2", "srun -n 2"} <= lines
