"""Batch jobs are offered where the spec names a scheduler, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.spec.load import load_spec
from merlin.views.ways_to_start import jobs_command, ways_to_start
from merlin.workspace.prepare import plan_only

SPEC = """
description: {name: x, description: x}
batch: {type: TYPE}
study: [{name: a, run: {cmd: "true"}}]
"""


@pytest.mark.parametrize(
    ("kind", "more"), [("local", ""), ("slurm", ", or in batch jobs: merlin workers submit /w")]
)
def test_ways_to_start(tmp_path: Path, kind: str, more: str) -> None:
    (tmp_path / "x.yaml").write_text(SPEC.replace("TYPE", kind))
    plan = plan_only(load_spec(tmp_path / "x.yaml"))
    assert ways_to_start(plan, Path("/w")) == f"merlin run-workers /w{more}"
    wanted = "merlin workers autoscale /w" if more else ""
    assert jobs_command(plan, Path("/w"), autoscale=True) == wanted
