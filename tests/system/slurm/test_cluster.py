"""The Slurm that other tests stand on: real jobs on nodes that are apart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from effort import repeats
from nodes import CGROUPS, virtual_network
from slurm import NODES, SLURMD_PORT, slurm_cluster
from waiting import wait_until

NUM_JOBS = repeats(24, 200)
LOOK = "hostname; hostname -I; echo $CUDA_VISIBLE_DEVICES; ls /proc | grep -c ^[0-9]"
ALONE = """
busy=busy.$SLURMD_NODENAME.$CUDA_VISIBLE_DEVICES
mkdir $busy || touch twice
sleep 0.2
rmdir $busy
touch done.$SLURM_ARRAY_TASK_ID
"""
KILLED = """
import os, signal
from slurm import slurm_cluster
with slurm_cluster() as cluster:
    print(cluster.folder, cluster.network.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_runs_on_three_hosts_with_processes_networks_and_devices_of_their_own(any_slurm, tmp_path):
    job = any_slurm.submit(
        f"srun bash -c '{{ {LOOK}; }} > seen.$SLURMD_NODENAME'", "--nodes=3", "--gres=gpu:1", cwd=tmp_path
    )
    assert any_slurm.wait_until_over(job) == {job: "COMPLETED"}
    seen = [(tmp_path / f"seen.{name}").read_text().split() for name in NODES]
    addresses = [any_slurm.nodes[name].address for name in NODES]
    assert [(host, address, gpu) for host, address, gpu, _ in seen] == [
        (name, address, "0") for name, address in zip(NODES, addresses, strict=True)
    ]
    num_here = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    assert all(int(num) < num_here for *_, num in seen)


def test_a_node_starts_every_one_of_many_jobs_and_two_gpus_are_never_given_twice(any_slurm, tmp_path):
    before = any_slurm.states()
    any_slurm.submit(ALONE, f"--array=1-{NUM_JOBS}", "--gres=gpu:1", "--output=/dev/null", cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("done.*"))) == NUM_JOBS, any_slurm.describe)
    any_slurm.wait_until_idle()
    assert not (tmp_path / "twice").exists()
    assert {state for job, state in any_slurm.states().items() if job not in before} == {"COMPLETED"}
    assert any_slurm.refusals() == []


def test_a_requeued_job_starts_again_on_the_same_cluster(any_slurm, tmp_path):
    script = "echo $SLURM_RESTART_COUNT >> runs\nwhile [ ! -e go ]; do sleep 0.1; done"
    job = any_slurm.submit(script, "--requeue", cwd=tmp_path)
    wait_until((tmp_path / "runs").exists, any_slurm.describe)
    any_slurm.requeue(job)
    wait_until(lambda: (tmp_path / "runs").read_text() == "\n1\n", any_slurm.describe)
    (tmp_path / "go").touch()
    assert any_slurm.wait_until_over(job) == {job: "COMPLETED"}


def test_jobs_survive_a_restart_of_the_controller_and_a_cut_of_the_network(any_slurm, tmp_path):
    job = any_slurm.submit(
        "touch on\nwhile [ ! -e go ]; do sleep 0.1; done", "--nodelist=node2", cwd=tmp_path
    )
    wait_until((tmp_path / "on").exists, any_slurm.describe)
    any_slurm.restart_controller()
    any_slurm.nodes["node2"].cut()
    with pytest.raises(TimeoutError):
        socket.create_connection((any_slurm.nodes["node2"].address, SLURMD_PORT), timeout=1)
    any_slurm.nodes["node2"].mend()
    (tmp_path / "go").touch()
    assert any_slurm.wait_until_over(job) == {job: "COMPLETED"}


def test_two_clusters_share_nothing_and_a_third_removes_what_a_killed_one_left(any_slurm, tmp_path):
    with slurm_cluster() as other:
        assert other.network.number != any_slurm.network.number
        jobs = [cluster.submit("srun hostname", cwd=tmp_path) for cluster in (other, any_slurm)]
        assert other.wait_until_over(jobs[0]) == {jobs[0]: "COMPLETED"}
        assert any_slurm.wait_until_over(jobs[1]) == {jobs[1]: "COMPLETED"}
        folder = other.folder
    assert not folder.exists()

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left, name = killed.stdout.split()
    with virtual_network():
        assert not Path(left).exists()
        assert not list(CGROUPS.glob(f"*/{name}-node*"))
