"""With `task_server: flux` the chunks of a study are jobs of Flux, and there are neither workers nor a broker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run_merlin
from schedulers.stand_in import StandIn

SPEC = """\
description: {name: chunks, description: each chunk is a job}
study:
  - {name: sim, description: d, run: {cmd: "$(LAUNCHER) echo rank; : $(X); echo $FLUX_ENCLOSING_ID > job", procs: 2}}
  - {name: small, description: stays here, run: {cmd: "echo $(X)", depends: [sim], batch: {submit: false}}}
  - {name: all, description: after all, run: {cmd: "echo $FLUX_ENCLOSING_ID > job", depends: [small_*], nodes: 2}}
merlin:
  resources: {task_server: flux}
  samples: {file: x.csv, column_labels: [X]}
"""


@pytest.fixture
def flux(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path / "stand-in", "flux")
    yield made
    made.close()


def test_chunks_run_as_jobs_of_flux_without_a_broker(tmp_path: Path, flux: StandIn) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "x.csv").write_text("1\n2\n3\n")
    nobody = {"MERLIN_BROKER_URL": "redis://127.0.0.1:1/0"}  # is not asked
    done = run_merlin("run", "spec.yaml", cwd=tmp_path, env={**os.environ, **flux.variables, **nobody})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (workspace,) = (path.parent for path in tmp_path.glob("*/merlin_info"))
    status = run_merlin("status", workspace, "--json", cwd=tmp_path)
    assert {step["step"]: step["ok"] for step in json.loads(status.stdout)["steps"]} == {
        "sim": 3,
        "small": 3,
        "all": 1,
    }
    assert [path.read_text() for path in workspace.glob("sim/*/sim.out")] == ["rank\nrank\n"] * 3
    jobs = {path.read_text().strip().replace("ƒ", "f") for path in workspace.glob("**/job")}
    assert len(jobs) == 4
    assert {flux.job(job)["nodes"] for job in jobs} == {1, 2}


def test_without_flux_the_run_says_so_and_makes_nothing(tmp_path: Path, flux: StandIn) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "x.csv").write_text("1\n")
    flux.fault("flux-jobs", prints="flux-jobs: ERROR: Unable to connect to Flux")
    done = run_merlin("run", "spec.yaml", cwd=tmp_path, env={**os.environ, **flux.variables})
    assert done.returncode == 1 and "Unable to connect to Flux" in done.stderr
    assert not list(tmp_path.glob("chunks_*"))
