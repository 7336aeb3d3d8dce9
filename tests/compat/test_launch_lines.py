"""$(LAUNCHER) and $(VLAUNCHER) become what upstream Merlin's and Maestro's own script adapters make of them.

The adapters are asked, not quoted. Only the order of flags may differ, which upstream itself does not keep.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from merlin.batch.registry import SCHEDULERS
from merlin.plan.expand import make_plan
from merlin.plan.launch import Launchers
from merlin.plan.parameters import combinations
from merlin.spec.load import load_spec

pytestmark = pytest.mark.network

VARIABLES = "MERLIN_NODES=2\nMERLIN_PROCS=4\nMERLIN_CORES=3\nMERLIN_GPUS=0\n"
LAUNCHERS = Launchers(schedulers=SCHEDULERS)

# scheduler, and the step's keys; "cmd" is `$(LAUNCHER) ./sim` where there is none
AS_UPSTREAM = [
    ("slurm", {"nodes": 2, "procs": 4}),
    ("slurm", {"procs": 4}),
    ("slurm", {"nodes": 2, "procs": 4, "cores per task": 3, "walltime": "1:30:00"}),
    ("slurm", {"nodes": 2, "procs": 4, "walltime": 90, "slurm": "--mpibind=off --mem=1G"}),
    ("slurm", {"nodes": 2, "procs": 4, "flux": "-o x", "lsf": "-g 1", "bind": "rs"}),
    ("slurm", {"nodes": 2, "procs": 4, "cmd": "time $(LAUNCHER)[1n, 2p] ./a"}),
    ("slurm", {"nodes": 2, "procs": 4, "cmd": "$(LAUNCHER)[2p] ./a"}),
    ("slurm", {"nodes": 2, "procs": 4, "cmd": "$(LAUNCHER)[1,2] ./a"}),
    ("slurm", {"nodes": 1, "procs": 1, "cmd": VARIABLES + "$(VLAUNCHER) ./sim"}),
    ("flux", {"nodes": 1, "procs": 4, "cores per task": 1}),
    ("flux", {"nodes": 2, "procs": 4, "gpus per task": 2, "walltime": "00:30:00"}),
    ("flux", {"procs": 4, "flux": "-o mpi=spectrum", "slurm": "--mem=1G"}),
    ("flux", {"nodes": 2, "procs": 4, "cmd": "$(LAUNCHER)[1n,2p] ./a"}),
    ("flux", {"nodes": 1, "procs": 1, "cmd": VARIABLES + "$(VLAUNCHER) ./sim"}),
    ("lsf", {"nodes": 2, "procs": 4}),
    ("lsf", {"procs": 4, "nodes": 1, "cores per task": 3, "gpus per task": 2}),
    (
        "lsf",
        {"nodes": 2, "procs": 4, "bind": "packed:2", "launch_distribution": "packed", "exit_on_error": "0"},
    ),
    ("lsf", {"nodes": 2, "procs": 8, "lsf": "--smpiargs=-gpu", "walltime": "10:00"}),
    ("lsf", {"nodes": 2, "procs": 4, "cmd": "$(LAUNCHER)[1n, 2p] ./a"}),
    ("lsf-srun", {"nodes": 2, "procs": 4, "cores per task": 2}),
]
AS_MAESTRO = [
    ("slurm", {"nodes": 2, "procs": 4, "cores per task": 3}),
    ("slurm", {"procs": 2, "nodes": 1, "cmd": "$(LAUNCHER)[1,1] ./a"}),
    ("flux", {"nodes": 2, "procs": 4, "cores per task": 3, "gpus": 2}),
    ("flux", {"nodes": 2, "procs": 4, "exclusive": {"launcher": True}, "cores per task": 3}),
    ("lsf", {"nodes": 2, "procs": 8, "tasks per rs": 4, "rs per node": 1, "cpus per rs": 10}),
    ("lsf", {"nodes": 2, "procs": 4, "rs per node": 2, "gpus": 1, "bind": "rs", "bind gpus": "mps"}),
]

# Where we differ on purpose: the step, our line, and why upstream's is another one
DIFFERENT = {
    "a walltime without a limit is no number": (
        ("flux", {"nodes": 2, "procs": 4, "walltime": "inf"}),
        "flux run -N 2 -n 4 ./sim",
    ),
    "nodes alone mean a process on each; upstream writes -n without a number": (
        ("slurm", {"nodes": 2}),
        "srun -n 2 -N 2 ./sim",
    ),
    "GPUs are asked for; upstream leaves them out": (
        ("slurm", {"nodes": 2, "procs": 4, "gpus per task": 1}),
        "srun -n 4 -N 2 --gpus-per-task=1 ./sim",
    ),
    "a reservation is asked for; upstream leaves it out": (
        ("slurm", {"procs": 4, "nodes": 1, "reservation": "night"}),
        "srun -n 4 -N 1 --reservation=night ./sim",
    ),
    "MERLIN_GPUS counts; upstream reads it and leaves it out": (
        ("flux", {"procs": 1, "nodes": 1, "cmd": VARIABLES + "MERLIN_GPUS=1\n$(VLAUNCHER) ./sim"}),
        "flux run -N ${MERLIN_NODES} -n ${MERLIN_PROCS} -c ${MERLIN_CORES} -g ${MERLIN_GPUS} ./sim",
    ),
    "each launcher of a script has its own numbers; Maestro takes all of them for one": (
        ("slurm", {"nodes": 2, "procs": 4, "cmd": "$(LAUNCHER)[1n,2p] ./a; $(LAUNCHER)[1n,1p] ./b"}),
        "srun -n 2 -N 1 ./a; srun -n 1 -N 1 ./b",
    ),
}


@pytest.fixture
def our_line(tmp_path: Path) -> Callable[[str, dict], str]:
    def line(scheduler: str, run: dict) -> str:
        """The last line of the command that is planned where the scheduler is."""
        spec = tmp_path / "s.yaml"
        step = {"name": "sim", "run": {"cmd": "$(LAUNCHER) ./sim", **run}}
        document = {"description": {"name": "s"}, "batch": {"type": scheduler}, "study": [step]}
        spec.write_text(yaml.safe_dump(document))
        loaded = load_spec(spec)
        plan = make_plan(
            loaded,
            workspace=tmp_path / "s_20261123-120000",
            num_samples=None,
            samples_file=None,
            combos=combinations(loaded.document),
            created="",
            study_id="s",
            launchers=LAUNCHERS,
        )
        return plan.instances[0].command.strip().splitlines()[-1]

    return line


@pytest.fixture(scope="session")
def lines_of_upstream(upstream_wheel: Path) -> list[str]:
    steps = [(scheduler, {"cmd": "$(LAUNCHER) ./sim", **run}) for scheduler, run in AS_UPSTREAM]
    command = [sys.executable, "-P", str(Path(__file__).with_name("adapter_lines.py"))]
    done = subprocess.run(
        command,
        input=json.dumps(steps),
        env={"PYTHONPATH": str(upstream_wheel), "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def line_of_maestro(scheduler: str, run: dict) -> str:
    """What Maestro's adapter makes of a step; that of Flux can be asked without a Flux through its interface."""
    from maestrowf.datastructures.core.study import StudyStep
    from maestrowf.interfaces.script import FluxFactory
    from maestrowf.interfaces.script.lsfscriptadapter import LSFScriptAdapter
    from maestrowf.interfaces.script.slurmscriptadapter import SlurmScriptAdapter

    step = StudyStep()
    step.run |= {"cmd": "$(LAUNCHER) ./sim", **copy.deepcopy(run)}
    if scheduler == "flux":
        asked = {**step.run, "exclusive": run.get("exclusive", {}).get("launcher", False)}
        nodes, procs = asked.pop("nodes"), asked.pop("procs")
        return f"{FluxFactory.get_interface('0.49.0').parallelize(procs, nodes, **asked)} ./sim"
    adapter = {"slurm": SlurmScriptAdapter, "lsf": LSFScriptAdapter}[scheduler]
    command: str = adapter(host="", bank="", queue="").get_scheduler_command(step)[1]
    return command


def flags(line: str) -> tuple[str, list[str]]:
    """The words before and behind the flags, and every flag with its value, sorted."""
    found: list[str] = []
    around = []
    words = line.split()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            around.append(word)
        elif "=" not in word and words and not words[0].startswith(("-", ".")):
            found.append(f"{word} {seconds(word, words.pop(0))}")
        else:
            found.append(word)
    return " ".join(around), sorted(found)


def seconds(flag: str, value: str) -> str:
    """Flux takes 1800s for what upstream calls 1800.0s."""
    return value.replace(".0s", "s") if flag == "-t" else value


def test_merlins_adapters_write_the_same_lines(
    lines_of_upstream: list[str], our_line: Callable[[str, dict], str]
) -> None:
    for (scheduler, run), theirs in zip(AS_UPSTREAM, lines_of_upstream, strict=True):
        assert flags(our_line(scheduler, run)) == flags(theirs), (scheduler, run)


@pytest.mark.parametrize(("scheduler", "run"), AS_MAESTRO)
def test_maestros_adapters_write_the_same_lines(
    our_line: Callable[[str, dict], str], scheduler: str, run: dict
) -> None:
    assert flags(our_line(scheduler, run)) == flags(line_of_maestro(scheduler, run))


@pytest.mark.parametrize("why", DIFFERENT)
def test_where_we_differ_on_purpose(our_line: Callable[[str, dict], str], why: str) -> None:
    (scheduler, run), ours = DIFFERENT[why]
    assert our_line(scheduler, run) == ours


@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("slurm/slurm_par.yaml", "srun -n 4 -N 2 "),
        ("flux/flux_par.yaml", "flux run -N 1 -n 4 -c 1 "),
        ("flux/flux_local.yaml", "flux run -N 1 -n 4 -c 1 "),
        ("flux/paper.yaml", "flux run -N 1 -n 1 "),
        ("lsf/lsf_par.yaml", "jsrun --np 4 --nrs 2 -b rs -d plane:2 -X 1 "),
        ("lsf/lsf_par_srun.yaml", "srun -n 4 -N 2 "),
    ],
)
def test_upstreams_examples_start_their_programs_so(
    upstream_workflows: Path, tmp_path: Path, example: str, line: str
) -> None:
    loaded = load_spec(upstream_workflows / example)
    plan = make_plan(
        loaded,
        workspace=tmp_path / "s_20261123-120000",
        num_samples=10,
        samples_file="samples.npy",
        combos=combinations(loaded.document),
        created="",
        study_id="s",
        launchers=LAUNCHERS,
    )
    (runs,) = [instance for instance in plan.instances if instance.step == "runs"]
    assert f"{line}{tmp_path}/s_20261123-120000/build/" in runs.command
