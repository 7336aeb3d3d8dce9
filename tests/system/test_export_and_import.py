"""`merlin shards export` and `import` as a user runs them, killed in the middle, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_merlin
from waiting import wait_until

MERLIN = Path(sys.executable).with_name("merlin")
NUM = 1200


# For a Python that finds this as sitecustomize.py: as long as a file is there, whatever is about to get a name with a
# certain end waits. So a command is killed in the middle of its work, however late the test comes to it.
HOLD = """
import os, sys, time
def hold(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(os.environ["HOLD_AT"]):
        while os.path.exists(os.environ["HOLD_WHILE"]):
            time.sleep(0.01)
sys.addaudithook(hold)
"""


def begin(folder: Path, hold_at: str, *words: object) -> subprocess.Popen[bytes]:
    """A command that waits before it gives a file its name, until `folder`/hold is removed."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(HOLD)
    (folder / "hold").touch()
    env = {"PYTHONPATH": str(folder / "site"), "HOLD_AT": hold_at, "HOLD_WHILE": str(folder / "hold")}
    return subprocess.Popen([MERLIN, "shards", *map(str, words)], env={**os.environ, **env})


def merlin(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_merlin("shards", *map(str, words), timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random(NUM), **{f"s{i}": rng.random(NUM) for i in range(8)}}
    np.savez(folder / "a.npz", image=rng.random((NUM, 24, 24), dtype=np.float32), **arrays)
    (folder / "schema.yaml").write_text(
        "inputs: [x]\nfields: {s0: , s1: , s2: , s3: , image: }\nsamples_per_shard: 100\n"
    )
    merlin("import", folder / "a.npz", "--schema", folder / "schema.yaml", "--out", folder / "set")
    merlin("verify", folder / "set")
    return folder


@pytest.mark.parametrize(("to", "held"), [("lbann", "bundle_00030.h5"), ("webdataset", "samples-000030.tar")])
def test_a_killed_export_goes_on(data: Path, tmp_path: Path, to: str, held: str) -> None:
    command = ("export", data / "set", "--to", to, "--samples-per-file", 20, "--workers", 2)
    process = begin(tmp_path, held, *command, "--out", tmp_path / "cut")
    noted = tmp_path / "cut" / ".export" / "files.jsonl"
    wait_until(lambda: noted.exists() and noted.read_bytes().count(b"\n") >= 5, process)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "hold").unlink()
    # each finishes the file it is writing, and finds nobody to tell
    wait_until(lambda: not any(map(is_alive, workers)), lambda: "for processes of the killed export to end")
    assert not (tmp_path / "cut" / "export.json").exists()
    done = noted.read_text().splitlines()
    assert 0 < len(done) < NUM // 20
    kept = {
        entry["file"]: (tmp_path / "cut" / entry["file"]).stat().st_mtime_ns
        for entry in map(json.loads, done)
    }

    told = json.loads(merlin(*command, "--out", tmp_path / "cut", "--json").stdout)
    assert told["num_samples"] == NUM and len(told["files"]) == NUM // 20
    assert kept == {
        name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in kept
    }  # none was written again
    alone = (*command[:-1], 1)
    whole = json.loads(merlin(*alone, "--out", tmp_path / "whole", "--json").stdout)
    assert whole["files"] == told["files"]
    assert not [
        path for path in (tmp_path / "cut").rglob("*") if ".tmp" in path.name or path.name == ".export"
    ]


def test_an_export_says_that_one_of_its_processes_died(data: Path, tmp_path: Path) -> None:
    command = ("export", data / "set", "--to", "webdataset", "--samples-per-file", 20, "--workers", 2)
    process = begin(tmp_path, "samples-000030.tar", *command, "--out", tmp_path / "cut", "--json")
    done = tmp_path / "cut" / ".export" / "files.jsonl"
    wait_until(lambda: done.exists() and done.read_bytes().count(b"\n") >= 5, process)
    workers = [
        pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(workers[0], signal.SIGKILL)
    assert process.wait(60) == 1
    wait_until(lambda: not any(map(is_alive, workers)), lambda: "for the other process to end")


def test_a_killed_import_goes_on(data: Path, tmp_path: Path) -> None:
    command = ("import", data / "a.npz", "--schema", data / "schema.yaml", "--out", tmp_path / "set")
    process = begin(tmp_path, "shard_00005.h5", *command)
    wait_until((tmp_path / "set" / "shard_00001.json").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    merlin(*command)
    merlin("verify", tmp_path / "set")
    digests = [json.loads((folder / "manifest.json").read_text())["content_digest"] for folder in
               (tmp_path / "set", data / "set")]  # fmt: skip
    assert digests[0] == digests[1] and not list((tmp_path / "set").glob("*.tmp"))


def test_what_goes_wrong_is_said_with_an_exit_code(data: Path, tmp_path: Path) -> None:
    assert (
        "no manifest.json"
        in merlin("export", tmp_path, "--to", "npz", "--out", tmp_path / "o", code=2).stderr
    )
    assert (
        "no field 'q'"
        in merlin(
            "export", data / "set", "--to", "npz", "--out", tmp_path / "o", "--fields", "q", code=2
        ).stderr
    )
    assert (
        "name a schema with --schema FILE"
        in merlin("import", data / "a.npz", "--out", tmp_path / "o", code=2).stderr
    )
    (tmp_path / "bad.yaml").write_text("fields:\n  s0: {unit: J}\n")
    wrong = merlin(
        "import", data / "a.npz", "--schema", tmp_path / "bad.yaml", "--out", tmp_path / "o", code=2
    ).stderr
    assert (
        "bad.yaml:2:8: error: unknown key 'unit' in fields.s0" in wrong and "did you mean 'units'?" in wrong
    )
    (tmp_path / "bad.csv").write_text("y\n1\nnan\n")
    (tmp_path / "good.yaml").write_text("fields: {y: }\n")
    bad = merlin(
        "import", tmp_path / "bad.csv", "--schema", tmp_path / "good.yaml", "--out", tmp_path / "o", code=1
    )
    assert "bad.csv:3:1: row 1, 'y': expected a finite value, found nan" in bad.stderr


def test_a_damaged_shard_is_not_exported(data: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(data / "set", tmp_path / "set")
    (tmp_path / "set" / "shard_00003.h5").unlink()
    done = merlin(
        "export", tmp_path / "set", "--to", "npz", "--out", tmp_path / "o", "--samples-per-file", 100, code=1
    )
    assert "shard_00003.h5" in done.stderr and "verify" in done.stderr
    assert not (tmp_path / "o" / "export.json").exists()


def test_the_inferred_schema_can_be_saved_and_used(data: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [MERLIN, "shards", "import", data / "a.npz", "--infer"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "schema.yaml").write_text(done.stdout)
    merlin("import", data / "a.npz", "--schema", tmp_path / "schema.yaml", "--out", tmp_path / "set")
    facts = json.loads(merlin("describe", tmp_path / "set", "--json").stdout)[0]
    assert facts["num_rows"] == NUM and {field["name"] for field in facts["fields"]} >= {"x", "s7", "image"}
