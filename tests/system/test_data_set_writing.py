"""From the spec to verified shards: every kind of field, filters, clean-up, and `kill -9` on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers the filters
import numpy as np
import pytest
from commands import WarmCommand, run_merlin
from effort import repeats
from live_processes import processes_inside
from servers import RedisServer
from waiting import wait_until

from merlin.shards.format.counts import counts_of

NUM = 40
NUM_STORMS, NUM_KILLS = repeats(2, 8), repeats(4, 8)

SPEC = """
description: {name: kinds, description: every kind of field, from files and from a function}
env: {variables: {LIMIT: 0.9}}
merlin:
  samples:
    generate: {method: sobol, num: 40, bounds: {x: [0, 1]}, seed: 3}
    column_labels: [x]
study:
  - name: sim
    run:
      cmd: |
        echo $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran
        test $(MERLIN_SAMPLE_ID) != 5 || exit 1
        cp $(SPECROOT)/made/$(MERLIN_SAMPLE_ID)/* .
        test $(($(MERLIN_SAMPLE_ID) % 2)) = 0 && hot=true || hot=false
        echo "{\\"scalars\\": {\\"yield\\": $(x), \\"hot\\": $hot}}" > out.json
  - name: post
    run:
      depends: [sim]
      cmd: |
        test -s $(sim.workspace)/$(MERLIN_SAMPLE_PATH)/out.json
        test $(MERLIN_SAMPLE_ID) != 11 || exit 1
  - name: model
    run: {function: "model:run"}
  - name: files
    run:
      depends: [sim_*]
      aggregate:
        from: sim
        samples_per_shard: 8
        compression: zstd
        shuffle: bit
        cleanup: true
        valid: [yield < $(LIMIT), "len(mol.nodes) > 1", "not hot or yield > -1"]
        fields:
          yield: {file: out.json, key: scalars.yield, units: J, description: what came out}
          hot: {file: out.json, key: scalars.hot, dtype: bool}
          note: {kind: text, file: note.txt}
          trace: {kind: series, shape: [64], dtype: float32, file: t.npy, keep_bits: 8}
          image:
            kind: image
            shape: [2, 6, 5]
            dtype: float32
            file: out.npz
            key: image
            layout: chw
            channels: [soft, hard]
          cube: {kind: volume, shape: [3, 4, 5], dtype: int16, file: out.npz, key: cube, compression: none}
          track: {shape: ["*", 3], file: out.h5, key: run/track, dtype: float32}
          times: {kind: ragged, shape: ["*"], file: times.csv, key: t}
          log_yield: {expression: log10(yield + 1), units: dex}
          reach: {expression: "max(abs(track))", finite: false}
          mol:
            kind: graph
            file: mol.npz
            members:
              nodes: {shape: ["*", 4], dtype: float32}
              positions: {shape: ["*", 3], dtype: float32}
              edges:
              targets: {dtype: float32}
  - name: arrays
    run:
      depends: [model]
      aggregate:
        samples_per_shard: 16
        compression: blosc2
        fields:
          energy: {}
          items: {shape: ["*", 2], dtype: int32}
          mesh:
            kind: graph
            members: {nodes: {shape: ["*"]}, edges: , edge_features: {shape: ["*", 1]}}
"""


def make_outputs(folder: Path) -> None:
    """What the simulation of every sample writes, but for `out.json`; it only has to copy it."""
    for number in range(NUM):
        here = folder / str(number)
        here.mkdir(parents=True)
        rng = np.random.default_rng(number)
        (here / "note.txt").write_text(f"säm {number}")
        np.save(here / "t.npy", np.cumsum(rng.normal(size=64)))
        image, cube = rng.normal(size=(2, 6, 5)).astype("f4"), rng.integers(0, 99, (3, 4, 5))
        np.savez(here / "out.npz", image=image, cube=cube)
        with h5py.File(here / "out.h5", "w") as file:
            file["run/track"] = rng.normal(size=(number % 7, 3)) if number % 7 else np.zeros((0, 3))
        (here / "times.csv").write_text("t\n" + "".join(f"{k}\n" for k in range(number % 4)))
        n = number % 5 + 1
        edges = [[k, (k + 1) % n] for k in range(n)]
        nodes, positions = rng.normal(size=(n, 4)), rng.normal(size=(n, 3))
        np.savez(here / "mol.npz", nodes=nodes, positions=positions, edges=edges, targets=float(n))


MODEL = """
import numpy as np

def run(inputs, context):
    ids = context.sample_ids
    lengths = ids % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.repeat(ids, lengths)[:, None] + np.array([0, 1000])
    return {
        "energy": inputs["x"] * 2,
        "items": (values, offsets),
        "mesh.nodes": [np.arange(i % 3 + 1.0) for i in ids],
        "mesh.edges": [np.array([[0, i % 3]]) for i in ids],
        "mesh.edge_features": [np.array([[float(i)]]) for i in ids],
    }
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_outputs(folder)
    return folder


def write_study(folder: Path, made: Path) -> Path:
    (folder / "made").symlink_to(made)
    (folder / "model.py").write_text(MODEL)
    path = folder / "kinds.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def spec(tmp_path: Path, made: Path) -> Path:
    return write_study(tmp_path, made)


def merlin(*argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run_merlin(*argv, cwd=cwd, env={**os.environ, **env}, timeout=180)


def workspace_in(folder: Path) -> Path:
    (found,) = (path.parent for path in folder.glob("*/merlin_info"))
    return found


def manifest(workspace: Path, name: str = "files") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((workspace / name / "manifest.json").read_text())
    return data


def directories(workspace: Path) -> set[int]:
    """The samples of `sim` whose directory is there; 40 samples have two levels of directories."""
    return {
        25 * int(path.parent.name) + int(path.name)
        for path in (workspace / "sim").glob("*/*")
        if path.is_dir()
    }


def expected_rows(data: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The samples that are stored, and those that are filtered."""
    x = np.load(next(Path(data["root"]).glob("merlin_info/samples*.npy")))[:, 0]
    kept = [i for i in range(NUM) if i != 5 and x[i] < 0.9 and i % 5 + 1 > 1]
    return kept, [i for i in range(NUM) if i != 5 and i not in kept]


def test_every_kind_of_field_is_stored_as_it_was_made(spec: Path, tmp_path: Path) -> None:
    done = merlin("run", spec, "--local", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr  # samples 5 and 11 fail, in sim and in post
    workspace = workspace_in(tmp_path)
    data = manifest(workspace)
    kept, filtered = expected_rows({"root": workspace})
    assert data["counts"] == {
        "planned": NUM, "ok": len(kept), "failed": 1, "filtered": len(filtered), "skipped": 0, "missing": 0
    }  # fmt: skip
    assert [f["expression"] for f in data["filters"]] == [
        "yield < 0.9", "len(mol.nodes) > 1", "not hot or yield > -1"
    ]  # fmt: skip
    told = str(counts_of(workspace / "files"))  # the same words everywhere
    assert f"samples: {told}" in done.stdout
    assert f"samples in files: {told}" in merlin("status", workspace, cwd=tmp_path).stdout
    assert told in merlin("shards", "verify", workspace, cwd=tmp_path).stdout
    check_files(workspace, kept)
    check_arrays(workspace)
    assert_intact(workspace)
    # kept: the failed sample, those filtered, and the one that `post` failed on
    assert directories(workspace) == {5, 11, *filtered}
    again = merlin("restart", workspace, "--local", cwd=tmp_path)
    assert "ok" in again.stdout
    assert max(Counter((tmp_path / "ran").read_text().split()).values()) == 1


def assert_intact(workspace: Path) -> None:
    for name in ("files", "arrays"):
        done = merlin("shards", "verify", workspace / name, cwd=workspace)
        assert done.returncode == 0, done.stdout + done.stderr


def check_files(workspace: Path, kept: list[int]) -> None:
    with h5py.File(workspace / "files/ensemble.h5") as file:
        assert file["sample_id"][()].tolist() == kept
        fields = file["fields"]
        np.testing.assert_allclose(fields["log_yield"][()], np.log10(fields["yield"][()] + 1))
        for i, number in enumerate(kept):
            rng = np.random.default_rng(number)
            assert fields["note"].asstr()[i] == f"säm {number}"
            trace = np.cumsum(rng.normal(size=64)).astype("f4")
            np.testing.assert_allclose(fields["trace"][i], trace, rtol=2.0**-9)
            np.testing.assert_array_equal(fields["image"][i], rng.normal(size=(2, 6, 5)).astype("f4"))
            np.testing.assert_array_equal(fields["cube"][i], rng.integers(0, 99, (3, 4, 5)))
            track = items(fields["track"], i)
            np.testing.assert_array_equal(track, rng.normal(size=(number % 7, 3)).astype("f4"))
            if number % 7:
                assert fields["reach"][i] == np.abs(track.astype(float)).max()
            assert items(fields["times"], i).tolist() == list(range(number % 4))
            n = number % 5 + 1
            np.testing.assert_array_equal(items(fields["mol/nodes"], i), rng.normal(size=(n, 4)).astype("f4"))
            assert items(fields["mol/edges"], i).tolist() == [[k, (k + 1) % n] for k in range(n)]
            assert fields["mol/targets"][i] == n
    with h5py.File(workspace / "files/shard_00001.h5") as file:
        image = dict(file["fields/image"].attrs)
        assert (image["layout"], json.loads(image["channels"])) == ("chw", ["soft", "hard"])
        assert json.loads(image["axes"]) == ["channel", "y", "x"]
        assert file["fields/yield"].attrs["units"] == "J"
        assert file["fields/cube"].chunks is None
        assert json.loads(file.attrs["variables"])["LIMIT"] == 0.9


def items(group: h5py.Group, i: int) -> np.ndarray:
    lo, hi = group["offsets"][i : i + 2]
    return group["values"][lo:hi]


def check_arrays(workspace: Path) -> None:
    with h5py.File(workspace / "arrays/ensemble.h5") as file:
        assert file["sample_id"][()].tolist() == list(range(NUM))
        for i in range(NUM):
            found = items(file["fields/items"], i)
            assert found.tolist() == [[i, i + 1000]] * (i % 4)
            assert items(file["fields/mesh/nodes"], i).tolist() == list(range(i % 3 + 1))
            assert items(file["fields/mesh/edge_features"], i).tolist() == [[i]]


# ------------------------------------------------------------------ on workers


@pytest.fixture(scope="module")
def on_workers(made: Path, _shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of a run on Celery workers."""
    folder = tmp_path_factory.mktemp("on_workers")
    spec = without_post(write_study(folder, made))
    env = {"HOME": str(folder), "MERLIN_BROKER_URL": _shared_redis.url}
    try:
        for words in (["run", spec], ["run-workers", spec]):
            done = merlin(*words, cwd=folder, **env)
            assert done.returncode == 0, done.stdout + done.stderr
        workspace = workspace_in(folder)
        done = merlin("monitor", workspace, "--sleep", "0.1", cwd=folder, **env)
        assert done.returncode == 1, done.stdout + done.stderr  # sample 5 fails
    finally:
        merlin("stop-workers", "--now", "--wait", "100", cwd=folder, **env)
    return workspace


def test_workers_filter_what_a_local_run_filters(on_workers: Path, undisturbed: dict[str, str]) -> None:
    kept, filtered = expected_rows({"root": on_workers})
    counts = manifest(on_workers)["counts"]
    assert (counts["ok"], counts["failed"], counts["filtered"]) == (len(kept), 1, len(filtered))
    for name, digest in undisturbed.items():
        assert manifest(on_workers, name)["content_digest"] == digest
    assert_intact(on_workers)


def test_workers_clean_up_what_a_local_run_cleans_up(on_workers: Path) -> None:
    kept, filtered = expected_rows({"root": on_workers})
    assert directories(on_workers) == {5, *filtered}
    check_files(on_workers, kept)


# ------------------------------------------------------------------ storms


def kill_all(run: WarmCommand, folder: Path) -> None:
    """The command and its workers, at once; all of them work inside the folder."""
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True
    ).stdout
    for pid in map(int, children.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.kill()
    run.communicate()
    # a simulation that was begun ends by itself, before the next run may do the same
    wait_until(lambda: not processes_inside(folder), lambda: processes_inside(folder))


def shards_in(workspace: Path) -> int:
    return len(list(workspace.glob("files/shard_*.json")))


def wait_for_more(run: WarmCommand, folder: Path, rng: random.Random) -> None:
    """Wait until a shard has been written (or the run has ended), and then a little."""
    before = {str(path) for path in folder.glob("*/files/shard_*.json")}
    wait_until(
        lambda: run.poll() is not None or {str(p) for p in folder.glob("*/files/shard_*.json")} - before
    )
    time.sleep(rng.random() * 0.05)


def without_post(spec: Path) -> Path:
    """Without `post` the files of a shard go as soon as it is verified."""
    text = spec.read_text()
    begin, end = text.index("  - name: post\n"), text.index("  - name: model\n")
    spec.write_text(text[:begin] + text[end:])
    return spec


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The content digests of a run that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert merlin("run", without_post(write_study(folder, made)), "--local", cwd=folder).returncode == 1
    return {name: manifest(workspace_in(folder), name)["content_digest"] for name in ("files", "arrays")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_STORMS))
def test_killed_while_it_packs_and_cleans_up_it_ends_in_the_same_data_set(
    spec: Path, tmp_path: Path, undisturbed: dict[str, str], seed: int
) -> None:
    without_post(spec)
    rng = random.Random(seed)
    stormy = tmp_path / "stormy"
    stormy.mkdir()
    argv: list[str | Path] = ["run", spec, "--local", "--workers", "2"]
    cleaned: dict[int, int] = {}  # how often a sample had run when its files were found to be gone
    for _ in range(NUM_KILLS):
        run = WarmCommand("merlin", argv, cwd=stormy)
        wait_for_more(run, stormy, rng)
        kill_all(run, stormy)
        workspace = workspace_in(stormy)
        ran_before = Counter(map(int, (tmp_path / "ran").read_text().split()))
        there = directories(workspace)
        cleaned = {i: n for i, n in ran_before.items() if i not in there} | cleaned
        argv = ["restart", workspace, "--local", "--workers", "2"]
    done = merlin(*argv, cwd=stormy)
    assert "failed 1" in done.stdout, done.stdout + done.stderr
    for name, digest in undisturbed.items():
        assert manifest(workspace, name)["content_digest"] == digest
    assert_intact(workspace)
    kept, filtered = expected_rows({"root": workspace})
    assert directories(workspace) == {5, *filtered}
    check_files(workspace, kept)
    assert not list(workspace.rglob("*.tmp"))
    ran = Counter(map(int, (tmp_path / "ran").read_text().split()))
    assert cleaned
    assert {i: ran[i] for i in cleaned} == cleaned
