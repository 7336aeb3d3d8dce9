"""`merlin shards collect`: a data set by another spec is the one that a fresh run of that spec makes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from live_processes import processes_inside
from user_home import UserHome
from waiting import wait_until

SPEC = """
description: {{name: again, description: collected twice}}
env: {{variables: {{N: 12}}}}
study:
  - name: simulate
    run:
      cmd: |
        echo '{{"y": $(X), "id": $(MERLIN_SAMPLE_ID), "deep": {{"z": $(Y)}}}}' > out.json
        echo ran >> $(SPECROOT)/ran
  - name: draw
    run: {{function: "model:draw"}}
  - name: collect
    run: {{depends: [simulate], aggregate: {collect}}}
  - name: random
    run: {{depends: [draw], aggregate: {random}}}
merlin:
  samples:
    generate: {{method: sobol, num: $(N), bounds: {{X: [0, 1], Y: [2, 3]}}, seed: 7}}
    column_labels: [X, Y]
"""
MODEL = """
import numpy as np
def draw(inputs, context):
    return {"value": np.array([g.random() for g in context.generators()]), "id": context.sample_ids}
"""
FIRST = {
    "collect": {
        "samples_per_shard": 5,
        "fields": {"y": {"file": "out.json", "key": "y"}},
        "valid": ["y > 0.5"],
    },
    "random": {"samples_per_shard": 5, "fields": {"value": {}, "id": {"dtype": "int64"}}},
}
SECOND = {
    "collect": {
        "samples_per_shard": 4,
        "compression": "zstd",
        "fields": {
            "y": {"file": "out.json", "key": "y", "dtype": "float32"},
            "z": {"file": "out.json", "key": "deep.z"},
            "sum": {"expression": "y + z"},
        },
        "valid": ["y > 0.25"],
    },
    "random": {
        "samples_per_shard": 7,
        "fields": {"value": {"compression": "gzip"}, "big": {"expression": "100 * value"}},
    },
}


class Home(UserHome):
    """A user with two specs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "model.py").write_text(MODEL)
        self.write("first", FIRST)
        self.write("second", SECOND)

    def write(self, name: str, steps: dict[str, Any]) -> None:
        (self.folder / f"{name}.yaml").write_text(SPEC.format(**{k: json.dumps(v) for k, v in steps.items()}))

    def run(self, name: str, *more: str, code: int = 0) -> Path:
        report = self.ask("run", f"{name}.yaml", "--local", *more, code=code)
        return Path(report["workspace"])

    def manifest(self, directory: Path) -> Any:
        return json.loads((directory / "manifest.json").read_text())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def test_a_data_set_by_another_spec_is_the_one_of_a_fresh_run(home: Home) -> None:
    study = home.run("first")
    ran = (home.folder / "ran").read_text()
    before = files_in(study)
    for name in ("collect", "random"):
        told = home.ask(
            *(
                "shards",
                "collect",
                study,
                "--spec",
                "second.yaml",
                "--aggregate",
                name,
                "--out",
                f"new/{name}",
            )
        )
        assert told["rows_from_files" if name == "collect" else "rows_from_shards"] == 12
    assert (home.folder / "ran").read_text() == ran and files_in(study) == before
    fresh = home.run("second")
    for name in ("collect", "random"):
        ours, theirs = home.manifest(home.folder / "new" / name), home.manifest(fresh / name)
        assert ours["content_digest"] == theirs["content_digest"]
        assert ours["counts"] == theirs["counts"]
        assert ours["study"]["spec_digest"] == theirs["study"]["spec_digest"]
        assert ours["study"]["study_id"] == home.manifest(study / name)["study"]["study_id"]
        home.merlin("shards", "verify", f"new/{name}")


def test_after_a_wrong_key_nothing_has_to_run_again(home: Home) -> None:
    wrong = {**FIRST, "collect": {"fields": {"y": {"file": "out.json", "key": "why"}}}}
    home.write("wrong", wrong)
    study = home.run("wrong", "--vars", "N=8", code=1)
    said = home.merlin(
        "shards", "collect", study, "--spec", "second.yaml", "--aggregate", "collect", "-o", "new"
    )
    assert "values of 8 rows from files, of 0 from shards" in said.stdout
    fresh = home.run("second", "--vars", "N=8")
    ours, theirs = home.manifest(home.folder / "new"), home.manifest(fresh / "collect")
    assert (ours["content_digest"], ours["counts"]) == (theirs["content_digest"], theirs["counts"])


def test_what_does_not_fit_the_study_is_refused(home: Home) -> None:
    study = home.run("first")
    words = ("shards", "collect", study)
    assert "with --out DIR one is made beside them" in home.merlin(*words, code=2).stderr
    assert (
        "several data sets; name one with --aggregate: collect, random"
        in home.merlin(*words, "--out", "new", code=2).stderr
    )
    assert (
        "has no aggregate step 'x'" in home.merlin(*words, "--out", "new", "--aggregate", "x", code=2).stderr
    )
    text = (home.folder / "second.yaml").read_text()
    (home.folder / "second.yaml").write_text(text.replace("[X, Y]", "[X, Z]").replace("Y: [2", "Z: [2"))
    found = home.merlin(
        *words, "--out", "new", "--aggregate", "random", "--spec", "second.yaml", code=2
    ).stderr
    assert "second.yaml:" in found and "not those of the study's samples: X, Y" in found
    assert not (home.folder / "new").exists()


def test_a_killed_collect_leaves_no_process_and_the_next_one_goes_on(home: Home) -> None:
    many = {**FIRST, "random": {"samples_per_shard": 1000, "fields": {"value": {}, "id": {"dtype": "int64"}}}}
    home.write("many", many)
    home.write("small", {**many, "random": {**many["random"], "samples_per_shard": 10}})
    (home.folder / "many.yaml").write_text(_without_simulation(home.folder / "many.yaml"))
    (home.folder / "small.yaml").write_text(_without_simulation(home.folder / "small.yaml"))
    study = home.run("many", "--vars", "N=600")
    words = ["shards", "collect", str(study), "--spec", "small.yaml", "--out", "new", "--workers", "2"]
    log = home.folder / "new" / ".collect" / "shards.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", *words], cwd=home.folder, env=home.env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: log.is_file() and log.read_text().count("\n") > 3, lambda: process.poll())
    process.send_signal(signal.SIGKILL)
    process.wait(120)
    wait_until(lambda: not processes_inside(home.folder), lambda: processes_inside(home.folder))
    assert not (home.folder / "new" / "manifest.json").exists()
    done = subprocess.run(  # a process of its own: its workers begin as copies of a clean one
        [sys.executable, "-m", "merlin.cli", *words, "--json"],
        cwd=home.folder, env=home.env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["shards_kept"] > 3 and told["num_shards"] == 60 and told["num_rows"] == 600
    home.merlin("shards", "verify", "new")
    fresh = home.run("small", "--vars", "N=600")
    assert (
        home.manifest(home.folder / "new")["content_digest"]
        == home.manifest(fresh / "random")["content_digest"]
    )


def _without_simulation(spec: Path) -> str:
    """The spec with the function and its data set alone."""
    text = spec.read_text()
    begin, end = text.index("  - name: simulate"), text.index("  - name: draw")
    first, last = text.index("  - name: collect"), text.index("  - name: random")
    return text[:begin] + text[end:first] + text[last:]
