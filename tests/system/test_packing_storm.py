"""`kill -9` at random moments while a study packs its shards, and a disk that fills up: nothing half written ever has a
final name, and the content is in the end that of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import h5py
import pytest
from commands import WarmCommand
from effort import repeats
from small_disk import small_disk
from study_on_disk import processes_of, workers_of
from waiting import POLL_S, wait_until

from merlin.base.files import TEMPORARY_SUFFIX
from merlin.errors import ShardError
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.format.shard_info import read_info
from merlin.shards.proving.verify import verify
from merlin.workspace.directory import open_workspace

NUM, PER_SHARD = 240, 12

SPEC = f"""
description: {{name: storm, description: none}}
study:
  - name: simulate
    run: {{function: "physics:run"}}
  - name: collect
    run:
      depends: [simulate_*]
      aggregate:
        from: simulate
        samples_per_shard: {PER_SHARD}
        fields:
          y: {{}}
          note: {{kind: text}}
          image: {{kind: image, dtype: float32, shape: [48, 48, 2], layout: hwc}}
          track: {{kind: ragged, dtype: float32, shape: ["*", 3]}}
merlin:
  samples:
    generate: {{method: uniform, num: {NUM}, bounds: {{X: [0, 1]}}, seed: 3}}
    column_labels: [X]
"""

PHYSICS = """
import numpy as np

def run(inputs, context):
    x, ids = inputs["X"], context.sample_ids.tolist()
    return {
        "y": x,
        "note": [f"sample {i}" for i in ids],
        "image": np.float32(x)[:, None, None, None] + np.arange(4608, dtype="f4").reshape(48, 48, 2),
        "track": [np.full((i % 5, 3), i, "f4") for i in ids],
    }
"""


def new_merlin(*argv: str | Path, **more: object) -> subprocess.Popen[str]:
    """Start `merlin …` as users do."""
    command = [sys.executable, "-m", "merlin.cli", *map(str, argv)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, **more
    )  # type: ignore[call-overload,no-any-return]


def write_study(folder: Path) -> Path:
    (folder / "physics.py").write_text(PHYSICS)
    spec = folder / "spec.yaml"
    spec.write_text(SPEC)
    return spec


def run_of(spec: Path, output: Path) -> list[str | Path]:
    return ["run", spec, "--local", "--workers", "2", "--vars", f"OUTPUT_PATH={output}"]


def workspace_in(folder: Path) -> Path | None:
    return next((path.parents[1] for path in folder.glob("*/merlin_info/plan.json")), None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content digest of a run that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = new_merlin(*run_of(write_study(folder), folder))
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    workspace = workspace_in(folder)
    assert workspace is not None
    return read_manifest(workspace / "collect").content_digest


Identity = tuple[int, int, int]


def identity_of(path: Path) -> Identity:
    """It tells a file from another one that has taken its place."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class Witness:
    """Looks at every file that appears under a final name, once for each time that it appears."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[Path, Identity] = {}
        self.num_looked_at = 0

    def look(self) -> None:
        # os.walk passes over directories that vanish meanwhile
        files = [Path(folder, name) for folder, _, names in os.walk(self._directory) for name in names]
        for path in files:
            with suppress(FileNotFoundError):  # replaced or removed meanwhile
                identity = identity_of(path)
                if (
                    path.name.endswith(TEMPORARY_SUFFIX)
                    or not path.is_file()
                    or self._seen.get(path) == identity
                ):
                    continue
                self._check(path, identity)
                self._seen[path] = identity
                self.num_looked_at += 1

    def _check(self, path: Path, identity: Identity) -> None:
        try:
            if path.suffix == ".h5":
                self._read_all(path)
            elif path.name == "manifest.json":
                read_manifest(path.parent)
            else:
                read_info(path)
        except (OSError, ShardError) as error:  # FileNotFoundError, too, if it was removed meanwhile
            assert identity_of(path) != identity, f"half written: {path}: {error}"

    def _read_all(self, path: Path) -> None:
        if path.name.startswith("ensemble"):
            return  # it refers to others, and the manifest has its digest

        def read(name: str, node: object) -> None:
            if isinstance(node, h5py.Dataset):
                node[()]

        with h5py.File(path, "r", locking=False) as file:
            file.visititems(read)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def survive(run: WarmCommand, witness: Witness, rng: random.Random, workspace: Path) -> None:
    """Watch the run until a random moment after its first progress, then kill a worker, the command, or both."""
    num, goal, end = witness.num_looked_at, rng.randrange(1, 25), time.monotonic() + 120
    while run.poll() is None and witness.num_looked_at < num + goal:
        witness.look()
        time.sleep(POLL_S)
        assert time.monotonic() < end, "no progress"
    if run.poll() is None:
        workers = workers_of(open_workspace(workspace))
        victims = rng.sample(workers, k=min(len(workers), rng.choice([0, 1, 1, 2])))
        kill([*victims, run.pid] if rng.random() < 0.6 or not victims else victims)
    end = time.monotonic() + 5 * rng.random()
    while run.poll() is None and time.monotonic() < end:
        witness.look()
        time.sleep(POLL_S)
    kill([run.pid] if run.poll() is None else [])
    run.communicate(timeout=120)
    witness.look()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(repeats(2, 8)))
def test_a_storm_of_kills_ends_in_the_same_content(tmp_path: Path, undisturbed: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    run = WarmCommand("merlin", run_of(write_study(tmp_path), tmp_path))
    workspace = wait_until(lambda: workspace_in(tmp_path), run)
    witness = Witness(workspace / "collect")
    for _ in range(repeats(4, 8)):
        survive(run, witness, rng, workspace)
        run = WarmCommand("merlin", ["restart", workspace, "--local", "--workers", "2"])
    while run.poll() is None:
        witness.look()
        time.sleep(POLL_S)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    witness.look()
    assert witness.num_looked_at >= NUM // PER_SHARD
    report = verify(workspace / "collect")
    assert report.ok, [problem.render() for problem in report.problems]
    assert report.content_digest == undisturbed
    assert not list((workspace / "collect").rglob(f"*{TEMPORARY_SUFFIX}"))
    assert not list((workspace / "collect").glob("*.next"))
    opened = open_workspace(workspace)
    wait_until(lambda: not processes_of(opened), lambda: processes_of(opened))


# ------------------------------------------------------------------------------------------------ full disk


def test_a_full_disk_is_said_plainly_and_a_restart_goes_on(tmp_path: Path, undisturbed: str) -> None:
    spec, disk = write_study(tmp_path), tmp_path / "disk"
    with small_disk(disk, 64) as mounted:
        if mounted:
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(60 << 20))  # 4 MB are left, and 4.5 MB of bundles alone are to come
            run = new_merlin(*run_of(spec, disk))
        else:
            limit = (150_000, resource.RLIM_INFINITY)
            limited = partial(resource.setrlimit, resource.RLIMIT_FSIZE, limit)
            run = new_merlin(*run_of(spec, disk), preexec_fn=limited)
        out, err = run.communicate(timeout=120)
        assert run.returncode == 1, out + err
        assert (
            "No space left on device" in out + err
            or "disk is full" in out + err
            or "File too large" in out + err
        )
        assert "merlin restart" in out + err
        workspace = workspace_in(disk)
        assert workspace is not None
        Witness(workspace / "collect").look()
        if mounted:
            ballast.unlink()
        run = new_merlin("restart", workspace, "--local", "--workers", "2", "--json")
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, out + err
        assert json.loads(out)["missing"] == 0
        report = verify(workspace / "collect")
        assert report.ok
        assert report.content_digest == undisturbed
