"""Our client and launch lines against a real Slurm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from slurm import SlurmCluster
from waiting import wait_until

from merlin.batch.contract import Job, JobRequest, JobState, LaunchRequest
from merlin.batch.jobs import SchedulerClient
from merlin.batch.script import job_script
from merlin.batch.slurm import Slurm
from merlin.errors import SchedulerRefusedError, SchedulerUnreachableError

SLURM = Slurm()
HERE = f"""{sys.executable} -P -c '
import json, os
from merlin.batch.devices import visible_gpus
from merlin.batch.here import allocation_here, client_here, find_end, find_here
here = find_here(os.environ)
end = find_end(os.environ, client=client_here(os.environ))
hosts, gpus = allocation_here(os.environ).hosts, visible_gpus(os.environ).gpus
print(json.dumps([here.scheduler, here.job, here.host, hosts, here.cores, gpus, end]))
'"""
PROGRAMS = (
    ({}, 2),
    ({"cores per task": 1, "walltime": "5:00", "slurm": "--kill-on-bad-exit=1"}, 4),
    ({"cores per task": 2, "exclusive.launcher": True}, 2),
    ({"gpus": 2}, 2),
    ({"gpus per task": 1}, 2),
)


def client_of(cluster: SlurmCluster) -> SchedulerClient:
    return SchedulerClient(SLURM, environment=cluster.environment, polls_per_minute=600)


def submit(client: SchedulerClient, folder: Path, body: str, **more: object) -> str:
    name = str(more.pop("name", "job"))
    output = str(folder / f"{name}.out")
    request = JobRequest(name=name, output=output, error=output, **more)  # type: ignore[arg-type]
    path = folder / f"{name}.sh"
    path.write_text(job_script(SLURM, request, body))
    return client.submit(name, str(path))


def said(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(cluster: SlurmCluster, client: SchedulerClient, job: str, *states: JobState) -> Job:
    wait_until(lambda: client.jobs([job])[job].state in states, cluster.describe)
    return client.jobs([job])[job]


def test_a_job_is_followed_from_its_submission_to_its_end(any_slurm, tmp_path):
    folder = tmp_path / "100% a'b"
    folder.mkdir()
    client = client_of(any_slurm)
    body = f"{HERE}\nwhile [ ! -e '{tmp_path}/go' ]; do sleep 0.1; done\nexit 7"
    asked = {"nodes": 2, "gpus": 1, "walltime_s": 3000.0, "excluded_hosts": ("node2",)}
    job = submit(client, folder, body, cores_per_task=2, may_requeue=True, **asked)
    running = wait_for(any_slurm, client, job, JobState.RUNNING)
    assert (running.num_nodes, running.hosts) == (2, ("node1", "node3"))
    assert running.started is not None and running.ends == running.started + 3000
    wait_until(lambda: said(folder / "job.out").endswith("]\n"), any_slurm.describe)
    scheduler, its_id, host, hosts, cores, gpus, end = json.loads((folder / "job.out").read_text())
    assert (scheduler, its_id, host, hosts) == ("slurm", job, "node1", ["node1", "node3"])
    assert (cores, gpus, end) == (2, ["0"], running.ends)
    (tmp_path / "go").touch()
    ended = wait_for(any_slurm, client, job, JobState.FAILED)
    assert (ended.exit_code, ended.hosts) == (7, ("node1", "node3"))


def test_jobs_are_found_beside_others_with_any_name_and_cancelled(any_slurm, tmp_path):
    client = client_of(any_slurm)
    for name in ("a\nb|c", "", "5|x|"):
        any_slurm.submit("sleep 600", f"--job-name={name}", "--output=/dev/null", cwd=tmp_path)
    any_slurm.submit("sleep 600", "--array=1-3%1", "--output=/dev/null", cwd=tmp_path)
    job = submit(client, tmp_path, "sleep 600", name="ours", nodes=3)
    found = client.find("ours")
    assert found is not None and found.id == job
    assert client.submit("ours", "/no/such/file", is_again=True) == job
    client.cancel([job])
    assert wait_for(any_slurm, client, job, JobState.CANCELLED)
    client.cancel([job, "99999"])
    with pytest.raises(SchedulerRefusedError, match=r"[Ii]nvalid partition"):
        submit(client, tmp_path, "true", name="refused", queue="nosuch")


def test_launch_lines_start_as_many_processes_as_they_say(any_slurm, tmp_path):
    client = client_of(any_slurm)
    lines = [
        SLURM.launch_line(LaunchRequest(procs=str(procs), nodes="2", resources=resources)) + " echo hello"
        for resources, procs in PROGRAMS
    ]
    body = "\n".join(f"{line} > {k} 2> {k}.err; echo $? >> {k}" for k, line in enumerate(lines))
    worker = " ".join(SLURM.workers_command(3, {}))
    inside = "[ $SLURM_PROCID != 0 ] || srun -n 2 -N 2 -c 2 echo nested"
    body = f"cd {tmp_path}\n{body}\n{worker} sh -c '{inside}' > nested"
    job = submit(client, tmp_path, body, nodes=3, gpus=2, is_exclusive=True)
    wait_for(any_slurm, client, job, JobState.OK)
    for k, (_, procs) in enumerate(PROGRAMS):
        found = (tmp_path / str(k)).read_text().split()
        assert found == ["hello"] * procs + ["0"], (lines[k], (tmp_path / f"{k}.err").read_text())
    assert (tmp_path / "nested").read_text().split() == ["nested"] * 2


def test_without_its_controller_nothing_is_known_and_nothing_submitted_twice(own_slurm, tmp_path):
    client = client_of(own_slurm)
    job = submit(client, tmp_path, "sleep 600", name="first")
    wait_for(own_slurm, client, job, JobState.RUNNING)
    own_slurm.kill_controller()
    client = SchedulerClient(SLURM, environment=own_slurm.environment, limit_s=1.0)
    for call in (
        lambda: client.find("first"),
        lambda: client.cancel([job]),
        lambda: submit(client, tmp_path, "sleep 600", name="second"),
    ):
        with pytest.raises(SchedulerUnreachableError):
            call()
    own_slurm.start_controller()
    own_slurm.wait_until_it_answers()
    client = client_of(own_slurm)
    second = submit(client, tmp_path, "sleep 600", name="second")
    assert client.submit("second", str(tmp_path / "second.sh"), is_again=True) == second
    assert len([name for name in own_slurm.run("squeue", "-h", "-o", "%j").split() if name == "second"]) == 1
