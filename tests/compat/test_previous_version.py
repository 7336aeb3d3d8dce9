"""What an earlier version left on the disk (previous/make.sh) opens, verifies, restarts, grows and trains on."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import COMMANDS, SCIENCE, run_merlin

import merlin

KEPT = Path(__file__).parent / "previous"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with tarfile.open(KEPT / "kept.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for file in [*KEPT.glob("*.yaml"), *KEPT.glob("*.py")]:
        shutil.copy(file, tmp_path)
    return tmp_path


def run(place: Path, *words: str, loaded: Sequence[str] = COMMANDS) -> str:
    done = run_merlin(*words, cwd=place, loaded=loaded)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counts(place: Path, workspace: str) -> dict[str, tuple[int, int, int]]:
    """(ok, failed, missing) by step."""
    steps: list[dict[str, Any]] = json.loads(run(place, "status", workspace, "--json"))["steps"]
    return {step["step"]: (step["ok"], step["failed"], step["missing"]) for step in steps}


def test_a_data_set_of_every_kind_and_codec_reads_and_verifies(place: Path) -> None:
    run(place, "shards", "verify", "kept")
    with merlin.open_shards(place / "kept" / "collect") as data:
        x, y = data["x"][:], data["y"][:]
        assert len(data) == 63
        np.testing.assert_allclose(data["energy"][:], x**2 + y)
        np.testing.assert_allclose(data["log_energy"][:], np.log10(x**2 + y + 2))
        assert data["picture"].shape == (63, 8, 8, 2)
        np.testing.assert_allclose(data["block"][:, 1, 2, 3], x, rtol=1e-3)
        ids = data.sample_id.tolist()
        assert [str(name) for name in data["name"][:]] == [f"sample {i}" for i in ids]
        assert [len(hits) for hits in data["hits"][:]] == [i % 4 for i in ids]


def test_a_study_that_grew_grows_again(place: Path) -> None:
    before = {path.name: path.read_bytes() for path in (place / "kept" / "collect").glob("shard_*.h5")}
    run(place, "run", "study.yaml", "--local", "--extend", "kept", "--vars", "N_SAMPLES=80")
    for name, content in before.items():
        assert (place / "kept" / "collect" / name).read_bytes() == content
    run(place, "shards", "verify", "kept")
    with merlin.open_shards(place / "kept" / "collect") as data:
        assert data.manifest.counts.planned == 80


def test_damage_in_an_old_data_set_is_found_and_mended(place: Path) -> None:
    shard = place / "kept" / "collect" / "shard_00001.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    assert run_merlin("shards", "verify", "kept", cwd=place).returncode != 0
    run(place, "shards", "verify", "kept", "--repair")
    run(place, "shards", "verify", "kept")


def test_a_study_that_was_killed_goes_on(place: Path) -> None:
    ok, failed, missing = counts(place, "cut")["work"]
    assert failed == 1
    assert ok + failed + missing == 30
    assert missing > 0
    (place / "cut" / "repaired").touch()
    run_merlin("restart", "cut", "--local", cwd=place)
    assert counts(place, "cut")["work"] == (29, 1, 0)
    run(place, "restart", "cut", "--local", "--failed")
    assert counts(place, "cut") == {"work": (30, 0, 0), "collect": (4, 0, 0)}
    with merlin.open_shards(place / "cut" / "collect") as data:
        assert data["value"][:].tolist() == list(range(30))


def test_a_training_run_goes_on_and_its_model_predicts(place: Path) -> None:
    pytest.importorskip("torch")
    run(place, "train", "trained", "training.steps=30", f"data={place / 'kept'}", loaded=SCIENCE)
    best = json.loads((place / "trained" / "best" / "best.json").read_text())
    lines = (place / "trained" / "trainers" / "0" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
    assert (steps[0] < 20, steps[-1]) == (True, 30)
    assert best["step"] > 0
    predicted = merlin.load_surrogate(place / "trained").predict({"x": np.full(3, 0.5), "y": np.zeros(3)})
    assert predicted["picture"].shape == (3, 8, 8, 2)
