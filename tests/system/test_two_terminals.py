"""A server, workers and a run, as a user starts them, end in the same shards as the run on one machine."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from commands import run_merlin
from servers import program

ICF = Path(__file__).resolve().parents[2] / "specs" / "icf"
VARIABLES = ["--vars", "N_SAMPLES=120", "OUTPUT_PATH=."]


def merlin(folder: Path, *words: str | Path, code: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
    done = run_merlin(*words, cwd=folder, env=environment | {"HOME": str(folder)}, timeout=200)
    assert done.returncode == code, (
        f"merlin {words} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def small_icf(folder: Path) -> Path:
    """The fusion study with smaller shards."""
    spec = shutil.copytree(ICF, folder) / "icf.yaml"
    text = spec.read_text()
    assert text.count("samples_per_shard: 1000") == 1
    spec.write_text(text.replace("samples_per_shard: 1000", "samples_per_shard: 50"))
    return spec


def digests(folder: Path) -> tuple[str, list[str]]:
    """Of the data set, and of each shard's content."""
    (path,) = folder.glob("icf_*/collect/manifest.json")
    manifest = json.loads(path.read_text())
    return manifest["content_digest"], [shard["content_digest"] for shard in manifest["shards"]]


@pytest.mark.slow
def test_workers_make_the_same_shards_as_a_local_run(tmp_path: Path) -> None:
    program("redis-server")
    spec = small_icf(tmp_path / "icf")
    local, distributed = tmp_path / "local", tmp_path / "distributed"
    local.mkdir()
    distributed.mkdir()
    merlin(local, "run", spec, "--local", *VARIABLES)
    merlin(distributed, "server", "start")
    try:
        merlin(distributed, "run", spec, *VARIABLES)
        merlin(distributed, "run-workers", spec)
        (workspace,) = (path.parent for path in distributed.glob("*/merlin_info"))
        merlin(distributed, "monitor", workspace, "--sleep", "0.5")
        merlin(distributed, "stop-workers", "--wait", "100")  # before their server goes
        merlin(distributed, "shards", "verify", workspace)
    finally:
        merlin(distributed, "server", "stop")
    assert digests(distributed) == digests(local)
    assert len(digests(local)[1]) == 3
