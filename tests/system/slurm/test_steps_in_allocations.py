"""What steps of a study do inside an allocation: MPI programs over its nodes, and devices of their own."""

from __future__ import annotations

import json
from pathlib import Path

from mpi_program import compile_mpi

SPEC = """
description: {name: steps, description: an MPI program over two nodes, and tasks with a GPU each}
batch: {type: slurm}
study:
  - name: ranks
    description: on both nodes
    run: {nodes: 2, procs: 4, slurm: "--mpi=pmix", cmd: "$(LAUNCHER) $(SPECROOT)/ranks > said"}
  - name: device
    description: alone on its GPU
    run:
      gpus: 1
      cmd: |
        mkdir $(SPECROOT)/busy.$CUDA_VISIBLE_DEVICES
        sleep 0.2
        rmdir $(SPECROOT)/busy.$CUDA_VISIBLE_DEVICES
        echo $CUDA_VISIBLE_DEVICES $(X) > device
merlin:
  samples: {generate: {method: uniform, num: 8, bounds: {X: [0, 1]}, seed: 1}, column_labels: [X]}
"""


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
    devices = [path.read_text().split()[0] for path in workspace.glob("device/*/device")]
    assert len(devices) == 8
    assert set(devices) == {"0", "1"}
