"""The examples of the schedulers inside a job of theirs: the programs of a step start by the scheduler's launcher."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from schedulers.stand_in import StandIn
from waiting import wait_until

from merlin.batch.contract import JobRequest, JobState
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import scheduler_of
from merlin.batch.script import job_script

SPECS = Path(__file__).resolve().parents[2] / "specs" / "schedulers"


@pytest.fixture(params=["slurm", "flux", "lsf", "pbs"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SchedulerClient]:
    """The scheduler: a real Slurm, and stand-ins of the others that know the options of the real tools."""
    name = request.param
    if name == "slurm":
        environment = request.getfixturevalue("any_slurm").environment
        yield SchedulerClient(scheduler_of(name), environment=environment, polls_per_minute=10_000)
        return
    stand_in = StandIn(tmp_path / "stand-in", name)
    environment = {**os.environ, **stand_in.variables}
    yield SchedulerClient(scheduler_of(name), environment=environment, polls_per_minute=10_000)
    stand_in.close()


def test_an_example_starts_its_programs_by_the_launcher_of_the_job_that_it_runs_in(
    client: SchedulerClient, tmp_path: Path
) -> None:
    name = client.scheduler.name
    command = [
        sys.executable,
        "-P",
        "-m",
        "merlin.cli",
        "run",
        "--local",
        "--workers",
        "1",
        f"{SPECS / name}.yaml",
    ]
    request = JobRequest(
        name="example",
        nodes=2,
        procs=4,
        walltime_s=3600,
        output=str(tmp_path / "said"),
        is_exclusive=name != "pbs",
    )
    body = f"cd {tmp_path} && {' '.join(command)} --vars OUTPUT_PATH=. N_SAMPLES=2"
    (tmp_path / "job.sh").write_text(job_script(client.scheduler, request, body))
    job = client.submit("example", str(tmp_path / "job.sh"))
    wait_until(
        lambda: client.jobs([job])[job].state.is_over,
        lambda: (
            f"{client.jobs([job])[job]}\n{(tmp_path / 'said').read_text() if (tmp_path / 'said').exists() else ''}"
        ),
    )
    said = (tmp_path / "said").read_text()
    assert client.jobs([job])[job].state is JobState.OK, said
    (workspace,) = tmp_path.glob(f"area_{name}_*")
    for task in workspace.glob("area/*/"):
        launcher = (task / "area.sh").read_text().split("\n\n", 1)[1].split(" python3 ")[0]
        assert launcher.split()[0] in client.scheduler.programs
        lines = sorted((task / "parts.txt").read_text().splitlines())
        assert [re.sub(":.*", "", line) for line in lines] == ["process 0 of 2", "process 1 of 2"]
    assert (workspace / "total/total.out").read_text() == "1.0000 3.1416\n2.0000 12.5664\n"
