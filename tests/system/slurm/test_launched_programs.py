"""Programs that the steps of a study start through `$(LAUNCHER)`, in workers on the nodes of one job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import slurm_cluster
from slurm_site import SlurmSite, slurm_site
from waiting import wait_until

NUM_SAMPLES = 4  # as many as two nodes have cores
SPEC = """
description: {name: mpi}
batch: {type: slurm}
env: {variables: {OUTPUT_PATH: .}}
study:
  - name: narrow
    run:
      nodes: 1
      procs: 1
      cmd: $(LAUNCHER) $(SPECROOT)/meet.sh $(X)
  - name: wide
    run:
      depends: [narrow_*]
      nodes: 2
      procs: 4
      cmd: |
        MERLIN_NODES=2
        MERLIN_PROCS=4
        $(VLAUNCHER) sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS $(hostname)' > said
merlin:
  samples: {column_labels: [X], file: samples.csv}
"""
# it says its place, and goes on when all of them run
MEET = f"""#!/bin/sh
cd {{folder}}
echo "$(hostname) $(taskset -pc $$ | sed 's/.*: //')" > begun.$1
until test $(ls begun.* | wc -l) = {NUM_SAMPLES}; do sleep 0.1; done
"""


@pytest.fixture
def pinning_site(tmp_path: Path) -> Iterator[SlurmSite]:
    """A Slurm that gives processes cores and memory of their own, as most do."""
    settings = {"TaskPlugin": "task/affinity", "SelectTypeParameters": "CR_Core_Memory"}
    with slurm_cluster(settings=settings) as cluster, slurm_site(cluster, tmp_path) as made:
        yield made


def test_programs_run_side_by_side_on_cores_of_their_own_or_over_several_nodes(pinning_site):
    site = pinning_site
    (site.folder / "mpi.yaml").write_text(SPEC)
    (site.folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(NUM_SAMPLES)))
    (site.folder / "meet.sh").write_text(MEET.format(folder=site.folder))
    (site.folder / "meet.sh").chmod(0o755)
    site.merlin("run", "mpi.yaml")
    job = site.submit_workers(site.folder / "mpi.yaml", "--nodes=2", "--mem=1000")
    (workspace,) = site.folder.glob("mpi_*")

    def status() -> str:
        return site.merlin("status", str(workspace)).stdout

    wait_until(lambda: "missing 0" in status(), lambda: f"{status()}\n{site.describe()}")
    assert "failed 0" in status(), site.describe()
    places = [path.read_text().strip() for path in site.folder.glob("begun.*")]
    assert sorted(places) == ["node1 0", "node1 1", "node2 0", "node2 1"]
    lines = sorted(line.split() for line in (workspace / "wide" / "said").read_text().splitlines())
    assert [(rank, size) for rank, _, size, _ in lines] == [(str(k), "4") for k in range(4)]
    assert len({host for *_, host in lines}) == 2
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}
