"""Every spec of upstream's wheel: what becomes of it, and why.

Neither merlin's source archives nor maestrowf's archives on the package index hold more specs than this wheel;
`test_maestro_idioms.py` has what Maestro's samples do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import run_merlin
from upstream_example import Example

pytestmark = pytest.mark.network

RUN_BY_OTHER_TESTS = {
    "workflows/feature_demo/feature_demo.yaml",
    "workflows/hello/hello.yaml",
    "workflows/hello/hello_samples.yaml",
    "workflows/iterative_demo/iterative_demo.yaml",
    "workflows/null_spec/null_chain.yaml",
    "workflows/null_spec/null_spec.yaml",
    "workflows/remote_feature_demo/remote_feature_demo.yaml",
    "workflows/restart/restart.yaml",
    "workflows/restart_delay/restart_delay.yaml",
    "workflows/simple_chain/simple_chain.yaml",
}
RUN_HERE = {
    "dev_workflows/minimum_format.yaml",
    "dev_workflows/multiple_workers.yaml",
    "dev_workflows/restart.yaml",
    "dev_workflows/restart_shell.yaml",
}
# their scripts are written, and not run
DRY = {
    "workflows/flux/flux_local.yaml": "mpicc",
    "workflows/flux/flux_par.yaml": "mpicc and Flux",
    "workflows/flux/flux_par_restart.yaml": "mpicc and Flux",
    "workflows/flux/paper.yaml": "mpicc and Flux",
    "workflows/lsf/lsf_par.yaml": "mpicc and LSF",
    "workflows/lsf/lsf_par_srun.yaml": "mpicc and LSF",
    "workflows/slurm/slurm_par.yaml": "mpicc and Slurm",
    "workflows/slurm/slurm_par_restart.yaml": "mpicc and Slurm",
    "workflows/openfoam_wf/openfoam_wf_docker_template.yaml": "OpenFOAM and docker",
    "workflows/openfoam_wf_no_docker/openfoam_wf_no_docker_template.yaml": "OpenFOAM",
    "workflows/openfoam_wf_singularity/openfoam_wf_singularity_template.yaml": "OpenFOAM and singularity",
    "workflows/optimization/optimization_basic.yaml": "a NumPy older than 1.24, for np.float",
}
# what upstream refuses, too, or wrote for its user to fill in
REFUSED = {
    "dev_workflows/bad_format1.yaml": "bad_key",
    "dev_workflows/bad_format11.yaml": "description is empty",
    "dev_workflows/bad_format2.yaml": "bad_key",
    "dev_workflows/bad_format3.yaml": "bad_key",
    "dev_workflows/bad_format4.yaml": "bad_key",
    "dev_workflows/bad_format5.yaml": "bad_key",
    "dev_workflows/bad_format6.yaml": "bad_key",
    "dev_workflows/bad_format7.yaml": "bad_key",
    "dev_workflows/bad_format8.yaml": "twice",
    "dev_workflows/bad_format9.yaml": "has no file",
    "dev_workflows/full_format.yaml": "is not a time",  # upstream takes any text for any key
    "dev_workflows/no_description.yaml": "no description",
    "dev_workflows/no_steps.yaml": "study in the spec is empty",
    "dev_workflows/no_study.yaml": "no study",
    "workflows/hello/my_hello.yaml": "nothing to run",
    "workflows/openfoam_wf/openfoam_wf.yaml": "is empty",
    "workflows/openfoam_wf_no_docker/openfoam_wf_no_docker.yaml": "is empty",
    "workflows/openfoam_wf_singularity/openfoam_wf_singularity.yaml": "is empty",
}
# in tests of their own, below
OTHERS = {"dev_workflows/bad_format10.yaml", "workflows/hpc_demo/hpc_demo.yaml"}


@pytest.fixture
def dev(upstream_examples: Path, tmp_path: Path) -> Example:
    return Example.copy_of(upstream_examples / "dev_workflows", tmp_path / "dev")


def test_no_spec_is_forgotten(upstream_examples: Path) -> None:
    found = {str(path.relative_to(upstream_examples)) for path in upstream_examples.rglob("*.yaml")}
    assert found == RUN_BY_OTHER_TESTS | RUN_HERE | set(DRY) | set(REFUSED) | OTHERS


@pytest.mark.parametrize("name", sorted(RUN_BY_OTHER_TESTS | RUN_HERE | set(DRY)))
def test_it_is_valid(upstream_examples: Path, tmp_path: Path, name: str) -> None:
    done = run_merlin("validate", upstream_examples / name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_it_is_refused_with_the_place(upstream_examples: Path, tmp_path: Path, name: str) -> None:
    done = run_merlin("validate", upstream_examples / name, cwd=tmp_path)
    assert done.returncode == 2
    errors = [line for line in (done.stdout + done.stderr).splitlines() if ": error: " in line]
    assert any(REFUSED[name] in line for line in errors), errors


@pytest.mark.parametrize("name", sorted(DRY))
def test_its_scripts_are_written(upstream_examples: Path, tmp_path: Path, name: str) -> None:
    demo = Example.copy_of((upstream_examples / name).parent, tmp_path / "demo")
    variables = ["OUTPUT_PATH=out"]
    if "N_SAMPLES" in (upstream_examples / name).read_text():
        variables.append("N_SAMPLES=3")
    demo.merlin("run", "--dry", "--local", Path(name).name, "--vars", *variables)
    (workspace,) = demo.workspaces("out")
    scripts = list(workspace.rglob("*.sh"))
    assert scripts
    left = [
        s.name for s in scripts if any(f"$({word}" in s.read_text() for word in ("V1", "MERLIN_", "SPEC"))
    ]
    assert left == []


def test_minimum_format_runs(dev: Example) -> None:
    dev.run("minimum_format.yaml")
    (workspace,) = dev.workspaces()
    assert (workspace / "step1/step1.out").read_text() == "test\n"


def test_multiple_workers_runs_each_step_after_the_one_before(dev: Example) -> None:
    dev.run("multiple_workers.yaml")
    (workspace,) = dev.workspaces()
    said = {p.name: p.read_text() for p in workspace.rglob("step*.out")}
    assert said == {
        "step_1_GREET.hello.WORLD.world.out": "hello, world!\n",
        "step_1_GREET.hola.WORLD.mundo.out": "hola, mundo!\n",
        "step_2.out": "step_2\n",
        "step_3.out": "stop workers\n",
        "step_4.out": "another step\n",
    }


def test_a_task_that_asks_too_often_to_be_restarted_has_failed_softly_and_those_after_it_run(
    dev: Example,
) -> None:
    done = dev.run("restart.yaml", "--json", check=False)
    assert done.returncode == 1  # ten tasks failed all the same
    (workspace,) = dev.workspaces("studies")
    assert len(np.load(workspace / "merlin_info/samples.npy")) == 10
    assert "max_retries is 3" in done.stdout
    check = workspace / "final_check_for_no_hard_fails/final_check_for_no_hard_fails.out"
    assert check.read_text() == "check complete :)\n"


def test_a_samples_file_that_is_no_column_of_numbers_is_refused_with_its_place(dev: Example) -> None:
    """Upstream refuses bad_format10 because its step has no description, which ours does not ask for."""
    done = dev.run("bad_format10.yaml", check=False)
    assert done.returncode == 2
    assert "samples.csv:1:1: error" in done.stderr


def test_hpc_demo_says_what_it_lacks_and_runs_with_it(upstream_examples: Path, tmp_path: Path) -> None:
    demo = Example.copy_of(upstream_examples / "workflows/hpc_demo", tmp_path / "hpc_demo")
    done = demo.run("hpc_demo.yaml", check=False)
    assert done.returncode == 2
    assert "hpc_demo.yaml:72:92: error: $(ITER) is not defined" in done.stderr
    demo.run("hpc_demo.yaml", "--vars", "ITER=1", "PYTHON=python3", "POST_NPROCS=2")
    (workspace,) = demo.workspaces("name_studies")
    assert (workspace / "post-process/iter_1_results.json").is_file()


def test_restart_shell_runs_again_in_the_interpreter_of_the_step(dev: Example) -> None:
    dev.run("restart_shell.yaml")
    (workspace,) = dev.workspaces("studies")
    for step in ("step1", "step2"):
        assert (workspace / step / "dirname").is_dir()
        assert (workspace / step / f"{step}.out").read_text().splitlines()[-1] == "if 2"
