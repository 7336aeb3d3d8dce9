"""The header and the launch lines of job scripts, word by word. A changed file is a changed script of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.batch.contract import JobRequest, LaunchRequest
from merlin.batch.registry import SCHEDULERS

GOLDEN = Path(__file__).parent / "golden"

JOBS = {
    "small": JobRequest(name="small"),
    "full": JobRequest(
        name="full.job-1",
        nodes=2,
        procs=4,
        cores_per_task=3,
        gpus=2,
        walltime_s=5430.5,
        bank="science",
        queue="batch",
        reservation="night",
        qos="high",
        excluded_hosts=("node3", "node7"),
        output="/with a space/out.txt",
        error="/with a space/err.txt",
        may_requeue=True,
        priority="high",
        is_waitable=True,
    ),
    "exclusive": JobRequest(
        name="exclusive", nodes=2, is_exclusive=True, output="both.txt", error="both.txt"
    ),
}
LAUNCHES = {
    "four processes": LaunchRequest(procs="4"),
    "on two nodes, with cores, GPUs and walltime": LaunchRequest(
        procs="4", nodes="2", resources={"cores per task": 2, "gpus per task": 1, "walltime": "0:30:00"}
    ),
    "numbers known when the script runs": LaunchRequest(
        procs="${MERLIN_PROCS}", nodes="${MERLIN_NODES}", resources={"cores per task": "${MERLIN_CORES}"}
    ),
    "nodes of its own": LaunchRequest(
        procs="4", nodes="2", resources={"exclusive.launcher": True, "cores per task": 2}
    ),
    "resource sets as Merlin": LaunchRequest(
        procs="8",
        nodes="2",
        resources={
            "num resource set": 4,
            "bind": "packed:2",
            "launch_distribution": "cyclic",
            "exit_on_error": 0,
        },
    ),
    "resource sets as Maestro": LaunchRequest(
        procs="4",
        nodes="2",
        resources={"tasks per rs": 2, "rs per node": 1, "cpus per rs": 10, "gpus": 2, "bind gpus": "packed:2"},
    ),
    "the user's own words": LaunchRequest(
        procs="2",
        resources={"flux": "-o mpibind=off", "lsf": "--smpiargs=off", "pbs": "--cpu-bind depth", "slurm": "--mpi=none"},
        launch_pre="env A=1",
        launch_args="-v",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name not in ("local", "slurm")])
def test_job_scripts_and_launch_lines_are_those_of_the_golden_file(name: str) -> None:
    scheduler = SCHEDULERS[name]
    lines = []
    for title, job in JOBS.items():
        lines += [f"== {title}", *scheduler.directives(job)]
    for title, request in LAUNCHES.items():
        lines += [f"== {title}", scheduler.launch_line(request)]
    assert "\n".join(lines) + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
