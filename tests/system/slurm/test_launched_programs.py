"""Programs that the steps of a study start through `$(LAUNCHER)`, in workers on the nodes of one job."""

from __future__ import annotations

from waiting import wait_until

SPEC = """
description: {name: mpi}
batch: {type: slurm}
env: {variables: {OUTPUT_PATH: .}}
study:
  - name: narrow
    run:
      nodes: 1
      procs: 2
      slurm: --overlap
      cmd: $(LAUNCHER) sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS $(hostname)' > said.$(X)
  - name: wide
    run:
      nodes: 2
      procs: 4
      slurm: --overlap
      cmd: |
        MERLIN_NODES=2
        MERLIN_PROCS=4
        $(VLAUNCHER) sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS $(hostname)' > said
merlin:
  samples: {column_labels: [X], file: samples.csv}
"""


def test_programs_start_on_one_node_or_over_several_as_their_step_says(site):
    (site.folder / "mpi.yaml").write_text(SPEC)
    (site.folder / "samples.csv").write_text("1\n2\n3\n4\n")
    site.merlin("run", "mpi.yaml")
    job = site.submit_workers(site.folder / "mpi.yaml", "--nodes=2")
    (workspace,) = site.folder.glob("mpi_*")

    def status() -> str:
        return site.merlin("status", str(workspace)).stdout

    wait_until(lambda: "missing 0" in status(), lambda: f"{status()}\n{site.describe()}")
    assert "failed 0" in status(), site.describe()
    said = list(workspace.rglob("said*"))
    assert len(said) == 5
    for path in said:
        lines = [line.split() for line in sorted(path.read_text().splitlines())]
        num, num_hosts = (4, 2) if path.name == "said" else (2, 1)
        assert [(rank, size) for rank, _, size, _ in lines] == [(str(i), str(num)) for i in range(num)]
        assert len({host for *_, host in lines}) == num_hosts
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}
