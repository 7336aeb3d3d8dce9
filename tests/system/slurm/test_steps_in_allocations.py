"""What steps of a study do inside an allocation: MPI programs over its nodes, and devices of their own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from mpi_program import compile_mpi
from waiting import wait_until

SPEC = """
description: {name: steps, description: an MPI program over two nodes, and tasks with a GPU each}
batch: {type: slurm, gpus: 2}
study:
  - name: ranks
    description: on both nodes
    run: {nodes: 2, procs: 4, slurm: "--mpi=pmix", cmd: "$(LAUNCHER) $(SPECROOT)/ranks > said"}
  - name: device
    description: alone on its GPU, once the other one is in use, too
    run:
      gpus: 1
      cmd: |
        mkdir $(SPECROOT)/busy.$(hostname).$CUDA_VISIBLE_DEVICES || exit 1
        touch $(SPECROOT)/seen.$CUDA_VISIBLE_DEVICES
        until test -e $(SPECROOT)/seen.0 -a -e $(SPECROOT)/seen.1; do sleep 0.1; done
        rmdir $(SPECROOT)/busy.$(hostname).$CUDA_VISIBLE_DEVICES
        echo $CUDA_VISIBLE_DEVICES $(X) > device
merlin:
  samples: {generate: {method: uniform, num: 8, bounds: {X: [0, 1]}, seed: 1}, column_labels: [X]}
"""


NUM_SAMPLES = 8


def test_an_mpi_step_has_the_nodes_of_the_allocation_and_tasks_with_gpus_have_one_each(site):
    compile_mpi(site.folder)
    (site.folder / "steps.yaml").write_text(SPEC)
    script = "exec merlin run steps.yaml --local --json > report.json"
    job = site.submit(script, "--nodes=2", "--exclusive", "--gres=gpu:2", "--output=job.out")
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}, (site.folder / "job.out").read_text()
    report = json.loads((site.folder / "report.json").read_text())
    assert (report["planned"], report["ok"]) == (9, 9)
    workspace = Path(report["workspace"])
    said = sorted((workspace / "ranks" / "said").read_text().splitlines())
    assert [line.partition(" on ")[0] for line in said] == [f"rank {k} of 4" for k in range(4)]
    assert {line.partition(" on ")[2] for line in said} == {"node1 sum 6", "node2 sum 6"}
    found = devices_of(workspace)
    assert (set(found), sum(found.values())) == ({"0", "1"}, NUM_SAMPLES)


def test_workers_give_each_task_a_gpu_of_its_job(site):
    (site.folder / "steps.yaml").write_text(SPEC)
    workspace = Path(json.loads(site.merlin("run", "steps.yaml", "--json").stdout)["workspace"])
    site.merlin("workers", "submit", workspace, "--nodes", "2", "--walltime", "10:00", "--steps", "device")
    wait_until(lambda: sum(devices_of(workspace).values()) == NUM_SAMPLES, site.describe)
    assert set(devices_of(workspace)) == {"0", "1"}


def devices_of(workspace: Path) -> Counter[str]:
    """How many tasks had which device."""
    said = [path.read_text().split() for path in workspace.glob("device/*/device")]
    return Counter(words[0] for words in said if words)
