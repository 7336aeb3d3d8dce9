"""Steps with batch jobs of their own, on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import wait_until

SPEC = """
description: {{name: jobs, description: each job has two nodes, and runs two samples}}
batch: {{type: slurm}}
study:
  - name: sim
    description: the second sample waits for a file
    run:
      cmd: |
        touch {folder}/began.$(N)
        test $(N) != 1 || until test -e {folder}/go; do sleep 0.1; done
        $(LAUNCHER) sh -c 'echo $SLURMD_NODENAME >> where'
      nodes: 2
      procs: 2
      walltime: "00:10:00"
      batch: {{submit: true, tasks_per_job: 2, max_jobs: 1}}
  - name: post
    description: runs in workers of the command
    run: {{cmd: "test $(N) -lt 9", depends: [sim]}}
merlin:
  samples: {{file: numbers.csv, column_labels: [N]}}
"""


def test_jobs_of_two_nodes_run_their_samples_and_one_that_is_cancelled_by_hand_runs_the_rest_in_another(
    any_slurm: Any, tmp_path: Path
) -> None:
    (tmp_path / "numbers.csv").write_text("0\n1\n2\n3\n")
    (tmp_path / "jobs.yaml").write_text(SPEC.format(folder=tmp_path))
    run = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", "run", "jobs.yaml", "--local", "--workers", "1", "--json"],
        cwd=tmp_path,
        env=any_slurm.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "began.1").exists, run)
        (job,) = [job for job, state in any_slurm.states().items() if state == "RUNNING"]
        any_slurm.run("scancel", job)
        (tmp_path / "go").touch()
        out, err = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 0, f"{out}\n{err}\n{any_slurm.describe()}"
    report = json.loads(out)
    assert (report["ok"], report["missing"]) == (8, 0)
    where = sorted(Path(report["workspace"]).glob("sim/*/where"))
    assert [len(set(path.read_text().split())) for path in where] == [2] * 4  # nodes
    ours = [name for name in any_slurm.states() if int(name) >= int(job)]
    states = any_slurm.wait_until_over(
        *ours
    )  # the study ends with their reports, a moment before Slurm says so
    assert sorted(states.values()) == [
        "CANCELLED",
        "COMPLETED",
        "COMPLETED",
    ]
