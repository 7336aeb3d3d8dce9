"""Every class of damage, done to a data set that the real command made, found by it and repaired by it.

What ran again is told by the simulations themselves: each writes a line.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from commands import run_merlin
from damage_tools import extents_of, flip, lose_records, numbers
from effort import repeats
from waiting import wait_until

from merlin.shards.format.manifest_file import read_manifest
from merlin.workspace.directory import open_workspace

SPEC = """
description: {name: damage, description: none}
study:
  - name: simulate
    run: {function: "physics:run"}
  - name: collect
    run:
      depends: [simulate_*]
      aggregate:
        from: simulate
        samples_per_shard: 15
        valid: "y < 0.95"
        fields:
          y: {}
          note: {kind: text}
          image: {kind: image, dtype: float32, shape: [6, 6, 2], layout: hwc}
          track: {kind: ragged, dtype: float32, shape: ["*", 3]}
          mol: {kind: graph, members: {nodes: {shape: ["*", 2]}, edges: {shape: ["*", 2]}}}
  - name: prepare
    run:
      cmd: |
        echo $(MERLIN_SAMPLE_ID) >> $(MERLIN_WORKSPACE)/prepare.log
        echo $(X) > in.txt
  - name: shoot
    run:
      depends: [prepare]
      cmd: |
        echo $(MERLIN_SAMPLE_ID) >> $(MERLIN_WORKSPACE)/shoot.log
        read x < $(prepare.workspace)/$(MERLIN_SAMPLE_PATH)/in.txt
        echo "{\\"x\\": $x, \\"id\\": $(MERLIN_SAMPLE_ID)}" > out.json
  - name: pack
    run:
      depends: [shoot_*]
      aggregate:
        from: shoot
        samples_per_shard: 15
        fields:
          x: {file: out.json, key: x}
          id: {file: out.json, key: id, dtype: int64}
merlin:
  samples:
    generate: {method: uniform, num: 40, bounds: {X: [0, 1]}, seed: 3}
    column_labels: [X]
"""

PHYSICS = """
import os
import numpy as np

def run(inputs, context):
    x, ids = inputs["X"], context.sample_ids.tolist()
    if 7 in ids:
        raise ValueError("sample 7 always fails")
    with open(context.workspace / "simulate.log", "a") as log:
        log.writelines(f"{i}\\n" for i in ids)
    if (context.workspace / "moody").exists():
        x = x + 1e-9
    nodes = [np.full((1 + i % 3, 2), i, float) for i in ids]
    return {
        "y": x,
        "note": [f"sample {i}" for i in ids],
        "image": np.float32(x)[:, None, None, None] + np.arange(72, dtype="f4").reshape(6, 6, 2),
        "track": [np.full((i % 5, 3), i, "f4") for i in ids],
        "mol.nodes": nodes,
        "mol.edges": [np.array([[0, len(n) - 1]]) for n in nodes],
    }
"""


def merlin(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return run_merlin(*argv)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished workspace; sample 7 failed, and a few were filtered."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "physics.py").write_text(PHYSICS)
    done = merlin("run", folder / "spec.yaml", "--local", "--vars", f"OUTPUT_PATH={folder}")
    assert done.returncode == 1, done.stdout + done.stderr
    (workspace,) = (path.parent for path in folder.glob("*/merlin_info"))
    for name in ("simulate", "shoot", "prepare"):
        (workspace / f"{name}.log").unlink()
    assert merlin("shards", "verify", workspace).returncode == 0
    assert read_manifest(workspace / "collect").counts.filtered > 0
    return workspace


@pytest.fixture
def workspace(intact: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact, tmp_path / intact.name)


def verify(*argv: str | Path, code: int) -> dict[str, Any]:
    done = merlin("shards", "verify", *argv, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)
    return report


def ran(workspace: Path, step: str) -> list[int]:
    """The samples that were simulated since the fixture was made, in order."""
    log = workspace / f"{step}.log"
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def rows_of(directory: Path, shard: int) -> list[int]:
    with h5py.File(directory / f"shard_{shard:05d}.h5") as file:
        return file["sample_id"][()].tolist()


def repaired(
    workspace: Path, data: Path, digest: str, samples: list[int], step: str = "simulate"
) -> dict[str, Any]:
    """Repair, and prove that exactly `samples` ran and that everything is as it was."""
    report = verify(data, "--repair", code=0)
    assert ran(workspace, step) == samples
    assert numbers(report["repair"]["ran_again"]) == samples
    assert report["repair"]["same_content"]
    assert report["ok"]
    assert read_manifest(data).content_digest == digest
    assert verify(data, code=0)["problems"] == []
    return report


# ------------------------------------------------------------------------------------------------ classes


def remove(data: Path) -> list[int]:
    samples = rows_of(data, 1)
    (data / "shard_00001.h5").unlink()
    return samples


def truncate(data: Path) -> list[int]:
    """Behind the images of the first four samples, before anything of the others."""
    samples = rows_of(data, 1)
    place = next(offset for name, offset, _ in extents_of(data, 1, "fields/image"))
    path = data / "shard_00001.h5"
    path.write_bytes(path.read_bytes()[: place + 4 * 288 + 10])
    return samples[4:]


def flip_image(data: Path) -> list[int]:
    place = next(offset for name, offset, _ in extents_of(data, 1, "fields/image"))
    flip(data / "shard_00001.h5", place + 288 * 5 + 7)
    flip(data / "shard_00001.h5", place + 288 * 9 + 7)
    samples = rows_of(data, 1)
    return [samples[5], samples[9]]


def flip_item(data: Path) -> list[int]:
    samples = rows_of(data, 2)
    with h5py.File(data / "shard_00002.h5") as file:
        begin = file["fields/track/offsets"][6]
    place = next(offset for name, offset, _ in extents_of(data, 2, "fields/track/values"))
    flip(data / "shard_00002.h5", place + 12 * int(begin))
    return [next(s for i, s in enumerate(samples) if i >= 6 and s % 5)]


def flip_edge(data: Path) -> list[int]:
    place = next(offset for name, offset, _ in extents_of(data, 0, "fields/mol/edges/values"))
    flip(data / "shard_00000.h5", place + 16 * 3)
    return [rows_of(data, 0)[3]]


def flip_offset(data: Path) -> list[int]:
    place = next(offset for name, offset, _ in extents_of(data, 0, "fields/mol/nodes/offsets"))
    samples = rows_of(data, 0)
    flip(data / "shard_00000.h5", place + 8 * 3)
    return samples[2:4]


def flip_text(data: Path) -> list[int]:
    path = data / "shard_00000.h5"
    flip(path, path.read_bytes().index(b"sample 11") + 3)
    return [11]


def flip_input(data: Path) -> list[int]:
    place = next(offset for name, offset, _ in extents_of(data, 1, "inputs/X"))
    flip(data / "shard_00001.h5", place + 8)
    return []


def flip_header(data: Path) -> list[int]:
    path = data / "shard_00001.h5"
    flip(path, path.read_bytes().index(b"spec_digest"))
    return []


def change_schema(data: Path) -> list[int]:
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        file.move("fields/image", "fields/picture")
    return []  # what was stored still lies in its place, and is proven


def repeat_id(data: Path) -> list[int]:
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        file["sample_id"][3] = file["sample_id"][4]
    return []


def write_foreign_id(data: Path) -> list[int]:
    with h5py.File(data / "shard_00001.h5", "r+") as file:
        file["sample_id"][3] = 4711
        file["row"][3] = 4711
    return []


def put_other_shard(data: Path) -> list[int]:
    samples = rows_of(data, 1)
    shutil.copy(data / "shard_00002.h5", data / "shard_00001.h5")
    return samples


def drop_rows(data: Path) -> list[int]:
    """A shard that is whole, and holds fewer rows than it should: here, written by hand."""
    path, samples = data / "shard_00001.h5", rows_of(data, 1)
    with h5py.File(path) as old, h5py.File(data / "new.h5", "w") as new:
        new.attrs.update(old.attrs)
        keep = slice(0, len(samples) - 2)
        for name in ("row", "sample_id", "inputs/X", "fields/y", "fields/note", "fields/image"):
            new.create_dataset(name, data=old[name][keep])
        for name in ("fields/track", "fields/mol/nodes", "fields/mol/edges"):
            offsets = old[f"{name}/offsets"][: len(samples) - 1]
            new.create_dataset(f"{name}/offsets", data=offsets)
            new.create_dataset(f"{name}/values", data=old[f"{name}/values"][: offsets[-1]])
    (data / "new.h5").rename(path)
    return samples[-2:]


CLASSES: list[tuple[Callable[[Path], list[int]], str]] = [
    (remove, "missing file"),
    (truncate, "truncated"),
    (flip_image, "flipped bytes"),
    (flip_item, "flipped bytes"),
    (flip_edge, "flipped bytes"),
    (flip_offset, "flipped bytes"),
    (flip_text, "flipped bytes"),
    (flip_input, "flipped bytes"),
    (flip_header, "flipped bytes"),
    (change_schema, "wrong schema"),
    (repeat_id, "duplicate sample id"),
    (write_foreign_id, "foreign sample id"),
    (put_other_shard, "foreign shard"),
    (drop_rows, "count mismatch"),
]


@pytest.mark.parametrize(("damage", "kind"), CLASSES, ids=lambda value: getattr(value, "__name__", ""))
def test_damage_is_found_by_its_name_and_repaired_by_running_exactly_its_samples(
    workspace: Path, damage: Callable[[Path], list[int]], kind: str
) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = damage(data)
    report = verify(data, code=1)
    assert kind in report["damage"]
    assert numbers(report["lost_samples"]) == samples
    assert ran(workspace, "simulate") == []
    repaired(workspace, data, digest, samples)


@pytest.mark.parametrize("name", ["shard_00001.json", "ensemble.h5", "manifest.json"])
@pytest.mark.parametrize("how", ["remove", "flip", "empty"])
def test_what_stands_beside_the_shards_is_rebuilt_without_running_anything(
    workspace: Path, name: str, how: str
) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    if how == "remove":
        (data / name).unlink()
    elif how == "flip":
        flip(data / name, (data / name).stat().st_size // 2)
    else:
        (data / name).write_bytes(b"")
    report = verify(data, code=1)
    assert {problem["file"] for problem in report["problems"]} == {name}
    if name == "manifest.json":  # nothing is left to compare with
        after = verify(data, "--repair", code=0)
        assert after["content_digest"] == digest
        assert ran(workspace, "simulate") == []
    else:
        repaired(workspace, data, digest, [])


@pytest.mark.parametrize("how", ["remove", "truncate", "empty"])
def test_a_shard_and_what_is_made_of_all_shards_are_lost_together(workspace: Path, how: str) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = {"remove": remove, "truncate": truncate, "empty": lambda _: rows_of(data, 1)}[how](data)
    if how == "empty":
        (data / "shard_00001.h5").write_bytes(b"")
    (data / "ensemble.h5").unlink()
    report = repaired(workspace, data, digest, samples)
    assert report["repair"]["rebuilt"] == ["ensemble.h5"]


def test_a_sidecar_that_says_the_same_in_other_words_is_replaced_although_a_shard_is_lost(
    workspace: Path,
) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = remove(data)
    with (data / "shard_00000.json").open("a") as sidecar:
        sidecar.write("\n")
    repaired(workspace, data, digest, samples)


def test_a_directory_in_place_of_a_shard_is_replaced_if_it_is_empty(workspace: Path) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = remove(data)
    note = data / "shard_00001.h5" / "note"
    note.parent.mkdir()
    note.touch()
    done = merlin("shards", "verify", data, "--repair")
    assert done.returncode == 1
    assert "move it elsewhere, then repair again" in done.stderr
    note.unlink()
    repaired(workspace, data, digest, samples)


def test_a_lost_manifest_hides_no_other_damage(workspace: Path) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = flip_image(data)
    (data / "manifest.json").unlink()
    report = verify(data, code=1)
    assert report["shards_checked"]
    assert {problem["file"] for problem in report["problems"]} > {"manifest.json"}
    assert numbers(report["lost_samples"]) == samples
    assert verify(data, "--repair", code=0)["content_digest"] == digest
    assert ran(workspace, "simulate") == samples
    (data / "manifest.json").unlink()
    lost = remove(data)
    assert numbers(verify(data, code=1)["lost_samples"]) == lost
    assert numbers(verify(data, "--repair", code=0)["repair"]["ran_again"]) == lost


# ------------------------------------------------------------------------------------------------ shell steps


def test_samples_of_a_shell_step_are_collected_again_from_proven_files_without_running(
    workspace: Path,
) -> None:
    data = workspace / "pack"
    digest = read_manifest(data).content_digest
    (data / "shard_00000.h5").unlink()
    report = repaired(workspace, data, digest, [], "shoot")
    assert numbers(report["repair"]["collected_again"]) == list(range(15))


def test_files_that_were_changed_since_are_not_believed(workspace: Path) -> None:
    data = workspace / "pack"
    digest = read_manifest(data).content_digest
    (data / "shard_00000.h5").unlink()
    (workspace / "shoot/04/out.json").write_text('{"x": 9, "id": 4}') if (
        workspace / "shoot/04"
    ).is_dir() else (workspace / "shoot/00/04/out.json").write_text('{"x": 9, "id": 4}')
    report = repaired(workspace, data, digest, [4], "shoot")
    assert numbers(report["repair"]["collected_again"]) == [i for i in range(15) if i != 4]


def test_what_comes_before_a_sample_runs_again_if_its_files_are_gone(workspace: Path) -> None:
    data = workspace / "pack"
    digest = read_manifest(data).content_digest
    place = next(offset for name, offset, _ in extents_of(data, 1, "fields/x"))
    flip(data / "shard_00001.h5", place + 8 * 4)
    opened = open_workspace(workspace)
    for step in ("shoot", "prepare"):
        for sample in range(15, 40):
            shutil.rmtree(opened.task_dir(opened.instance(step), sample))
    repaired(workspace, data, digest, [19], "shoot")
    assert ran(workspace, "prepare") == [19]


# ------------------------------------------------------------------------------------------------ what else can be


def test_simulations_that_give_other_values_are_said_so_plainly(workspace: Path) -> None:
    data = workspace / "collect"
    digest = read_manifest(data).content_digest
    samples = flip_image(data)
    (workspace / "moody").touch()
    done = merlin("shards", "verify", data, "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gave other values than before" in done.stdout
    assert digest in done.stdout
    assert read_manifest(data).content_digest != digest
    assert ran(workspace, "simulate") == samples
    assert verify(data, code=0)["ok"]


def test_samples_that_fail_when_they_run_again_are_reported(workspace: Path) -> None:
    data = workspace / "collect"
    samples = flip_image(data)
    (workspace / "simulate.log").mkdir()  # nobody can write into it
    report = verify(data, "--repair", code=1)
    assert numbers(report["repair"]["failed"]) == samples
    assert report["ok"]  # without them the data set is in order
    assert read_manifest(data).counts.failed == 3
    (workspace / "simulate.log").rmdir()
    again = merlin("restart", workspace, "--failed", "--local")
    assert again.returncode == 1, again.stderr  # sample 7
    assert read_manifest(data).counts.failed == 1
    assert verify(data, code=0)["ok"]


def test_a_copy_is_repaired_with_the_help_of_its_workspace(workspace: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(workspace / "collect", tmp_path / "copy")
    digest = read_manifest(copy).content_digest
    samples = flip_image(copy)
    assert "--repair --workspace" in merlin("shards", "verify", copy).stdout
    alone = merlin("shards", "verify", copy, "--repair")
    assert alone.returncode == 1
    assert "--workspace" in alone.stderr and "to repair it" not in alone.stdout
    report = verify(copy, "--repair", "--workspace", workspace, code=0)
    assert report["ok"]
    assert ran(workspace, "simulate") == []  # the original is intact
    shutil.rmtree(workspace / "collect")  # and now it is gone
    flip_image(copy)
    report = verify(copy, "--repair", "--workspace", workspace, code=0)
    assert ran(workspace, "simulate") == samples
    assert read_manifest(copy).content_digest == read_manifest(workspace / "collect").content_digest == digest


def size_of(folder: Path) -> int:
    """Bytes of its files; one that goes meanwhile does not count."""
    size = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


@pytest.mark.parametrize("has_digest", [True, False])
def test_lost_rows_are_not_made_of_other_samples(workspace: Path, has_digest: bool) -> None:
    plan, samples = workspace / "merlin_info/plan.json", workspace / "merlin_info/samples.npy"
    if not has_digest:  # as in earlier plans
        plan.write_text(re.sub('"digest": *"blake3:[^"]*"', '"digest":""', plan.read_text()))
    flip_image(workspace / "collect")
    kept = np.load(samples)
    np.save(samples, kept[::-1])
    done = merlin("shards", "verify", workspace / "collect", "--repair")
    assert done.returncode == 1
    assert f"{samples} has " in done.stderr
    assert (ran(workspace, "simulate"), not_ended(workspace)) == ([], 0)
    np.save(samples, kept)
    assert verify(workspace / "collect", "--repair", code=0)["repair"]["same_content"]


def test_nothing_is_reset_without_its_samples_and_the_advice_brings_them_back(workspace: Path) -> None:
    samples = workspace / "merlin_info/samples.npy"
    kept = samples.read_bytes()
    samples.write_bytes(kept[:200])
    for command in (["rerun", "--samples", "3", "--yes"], ["restart", "--failed"]):
        done = merlin(command[0], workspace, *command[1:], "--local")
        assert done.returncode == 1
        assert not_ended(workspace) == 0
    advice = shlex.split(done.stderr.rpartition("to make them again: ")[2])
    assert advice[:2] == ["merlin", "samples"]
    assert merlin(*advice[1:]).returncode == 0
    assert samples.read_bytes() == kept
    merlin("rerun", workspace, "--samples", "3", "--yes", "--local")
    assert ran(workspace, "simulate") == [3]


def not_ended(workspace: Path) -> int:
    return sum(step["missing"] for step in json.loads(merlin("status", workspace, "--json").stdout)["steps"])


def test_what_used_tasks_whose_records_are_lost_is_made_again_with_them(workspace: Path) -> None:
    before = read_manifest(workspace / "collect").content_digest
    (workspace / "moody").touch()
    lose_records(workspace / "merlin_info/ledger", "simulate", 20)
    done = merlin("restart", workspace, "--local")
    assert "part of the ledger is lost" in done.stderr
    assert 20 in ran(workspace, "simulate")
    assert verify(workspace / "collect", code=0)["problems"] == []
    assert read_manifest(workspace / "collect").content_digest != before
    assert "part of the ledger" not in merlin("restart", workspace, "--local").stderr


@pytest.mark.parametrize("seed", range(repeats(2, 8)))
def test_a_repair_that_is_killed_is_finished_by_the_next_one(workspace: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    data, ledger = workspace / "collect", workspace / "merlin_info/ledger"
    digest = read_manifest(data).content_digest
    samples = remove(data)
    for _ in range(2):
        before = size_of(ledger)
        command = [sys.executable, "-m", "merlin.cli", "shards", "verify", str(data), "--repair"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
        goal = before + rng.randrange(1, 1500)
        wait_until(lambda: run.poll() is not None or size_of(ledger) >= goal)  # noqa: B023
        run.kill()
        run.communicate(timeout=120)
    report = verify(data, "--repair", code=0)
    assert report["ok"]
    assert read_manifest(data).content_digest == digest
    assert set(ran(workspace, "simulate")) == set(samples)
    assert verify(data, code=0)["problems"] == []


def test_a_study_that_runs_is_not_repaired(workspace: Path) -> None:
    from merlin.workspace.holding import lock

    flip_image(workspace / "collect")
    with lock(open_workspace(workspace)):
        done = merlin("shards", "verify", workspace / "collect", "--repair")
    assert done.returncode == 1
    assert "is in use by a live run" in done.stderr


def test_exit_codes_and_contradictions(workspace: Path, tmp_path: Path) -> None:
    assert merlin("shards", "verify", tmp_path).returncode == 2
    assert merlin("shards", "verify", workspace, "--quick").returncode == 0
    assert merlin("shards", "verify", workspace, "--quick", "--repair").returncode == 2
    (workspace / "collect/shard_00000.h5").unlink()
    assert merlin("shards", "verify", workspace, "--quick").returncode == 1
