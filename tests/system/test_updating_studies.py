"""The spec of a finished study is edited: what depends on the edit runs again, nothing else, and all is as if made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run_merlin

SPEC = """
description: {name: change, description: a study that changes}
env: {variables: {N: 10, SCALE: 2}}
study:
  - name: mesh
    run: {cmd: "echo 2 > factor; echo mesh >> $(SPECROOT)/ran"}
  - name: simulate
    run:
      depends: [mesh]
      cmd: |
        echo simulate $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran
        echo '{"y": $(X), "z": $(Y), "id": $(MERLIN_SAMPLE_ID), "s": $(SCALE), "f": '$(cat $(mesh.workspace)/factor)'}' > out.json
  - name: draw
    run: {function: "model:draw"}
  - name: post
    run: {depends: [simulate], cmd: "echo post $(P) $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran"}
  - name: collect
    run:
      depends: [simulate]
      max_retries: 3
      aggregate:
        samples_per_shard: 5
        fields:
          y: {file: out.json, key: y}
          id: {file: out.json, key: id, dtype: int64}
          s: {file: out.json, key: s}
          f: {file: out.json, key: f}
  - name: random
    run: {depends: [draw], aggregate: {samples_per_shard: 5, fields: {value: {}}}}
  - name: report
    run: {depends: [collect], cmd: "echo report >> $(SPECROOT)/ran; ls $(collect.workspace) > list"}
global.parameters:
  P: {values: [1, 2], label: "P.%%"}
merlin:
  samples:
    generate: {method: sobol, num: $(N), bounds: {X: [0, 1], Y: [2, 3]}, seed: 7}
    column_labels: [X, Y]
"""
MODEL = """
import numpy as np
def draw(inputs, context):
    return {"value": inputs["X"] * 2}
def other(inputs, context):
    return {"value": inputs["X"] * 3}
"""


def put(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


# what is edited, how, and which tasks of which steps run because of it
EDITS: dict[str, tuple[Callable[[str], str], dict[str, int]]] = {
    "nothing": (lambda text: text, {}),
    "a description": (put("a study that changes", "another text"), {}),
    "how often a step is tried": (put("max_retries: 3", "max_retries: 5"), {}),
    "another field": (
        put("          f: {", "          z: {file: out.json, key: z}\n          f: {"),
        {"collect": 3, "report": 1},
    ),
    "a field less": (put("          s: {file: out.json, key: s}\n", ""), {"collect": 3, "report": 1}),
    "another key": (put("key: y}", "key: z}"), {"collect": 3, "report": 1}),
    "a filter": (put("        samples_per_shard: 5\n", "        samples_per_shard: 5\n        valid: y > 0.3\n"), {"collect": 3, "report": 1}),
    "compression": (put("        samples_per_shard: 5\n", "        samples_per_shard: 5\n        compression: gzip\n"), {"collect": 3, "report": 1}),
    "samples in a shard": (put("        samples_per_shard: 5\n", "        samples_per_shard: 4\n"), {"collect": 4, "report": 1}),
    "splits alone": (
        put("        samples_per_shard: 5\n", "        samples_per_shard: 5\n        splits: {train: 0.5, test: 0.5}\n"),
        {"collect": 1, "report": 1},
    ),
    "the simulation": (
        put('"y": $(X)', '"y": 1$(X)'),
        {"simulate": 10, "post": 20, "collect": 3, "report": 1},
    ),
    "a variable of the simulation": (
        put("SCALE: 2", "SCALE: 3"),
        {"simulate": 10, "post": 20, "collect": 3, "report": 1},
    ),
    "what all samples wait for": (
        put("echo 2 > factor", "echo 3 > factor"),
        {"mesh": 1, "simulate": 10, "post": 20, "collect": 3, "report": 1},
    ),
    "a step that nothing depends on": (put("echo post $(P)", "echo later $(P)"), {"post": 20}),
    "the last step": (put("echo report >>", "echo the report >>"), {"report": 1}),
    "a function": (put("model:draw", "model:other"), {"draw": 20, "random": 6}),
    "the data set of a function": (
        put("samples_per_shard: 5, fields: {value: {}}", "samples_per_shard: 5, compression: gzip, fields: {value: {}}"),
        {"draw": 20, "random": 6},
    ),
    "a new step": (
        put("  - name: collect\n", "  - name: extra\n    run: {depends: [simulate], cmd: echo extra $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran}\n  - name: collect\n"),
        {"extra": 10},
    ),
    "a step less": (
        put('  - name: post\n    run: {depends: [simulate], cmd: "echo post $(P) $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran"}\n', ""),
        {},
    ),
    "another parameter": (put("values: [1, 2]", "values: [1, 2, 3]"), {"post": 10, "draw": 10, "random": 3}),
    "a parameter less": (put("values: [1, 2]", "values: [1]"), {}),
    "fewer samples": (put("N: 10", "N: 8"), {"collect": 2, "random": 4, "report": 1}),
    "other bounds of a sample": (
        put("Y: [2, 3]", "Y: [2, 4]"),
        {"simulate": 10, "draw": 20, "post": 20, "collect": 3, "random": 6, "report": 1},
    ),
}  # fmt: skip


class Home:
    """A directory with a spec."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "model.py").write_text(MODEL)

    def write(self, text: str) -> None:
        (self.folder / "change.yaml").write_text(text)
        (self.folder / "ran").write_text("")

    def ask(self, *words: str | Path, code: int = 0) -> Any:
        done = run_merlin(*words, "--json", cwd=self.folder)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def run(self, *more: str | Path) -> Path:
        return Path(self.ask("run", "change.yaml", "--local", "--workers", "2", *more)["workspace"])

    def ran(self) -> dict[str, int]:
        """How many tasks of each shell step have run since the spec was written."""
        words = [line.split()[0] for line in (self.folder / "ran").read_text().splitlines()]
        return {word: words.count(word) for word in words}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a study that has run."""
    home = Home(tmp_path_factory.mktemp("base") / "home")
    home.write(SPEC)
    home.run()
    return home.folder


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Home:
    shutil.copytree(finished, tmp_path / "home", symlinks=True)
    return Home(tmp_path / "home")


def study_of(home: Home) -> Path:
    return min(home.folder.glob("change_*"))


def contents(study: Path) -> dict[str, tuple[str, Any]]:
    """What is in the data sets: by their names, the digest of their content, and how many samples each split has."""
    found = {}
    for name in ("collect", "random"):
        for path in sorted((study / name).rglob("manifest.json")):
            manifest = json.loads(path.read_text())
            found[str(path.parent.relative_to(study))] = manifest["content_digest"], manifest["splits"]
    return found


@pytest.mark.parametrize("name", EDITS)
def test_what_an_edit_runs_again(home: Home, tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    study = study_of(home)
    before = contents(study)
    home.write(edit(SPEC))
    planned = home.ask("plan", "change.yaml", "--update", study)
    assert {line["step"]: line["to_run"] for line in planned["steps"] if line["to_run"]} == expected
    assert (home.folder / "ran").read_text() == "" and contents(study) == before
    home.run("--update", study, "--yes")
    shell = {"simulate", "post", "mesh", "report", "extra"}
    renamed = {"later": "post", "the": "report"}
    ran = {renamed.get(step, step): num for step, num in home.ran().items()}
    assert ran == {step: num for step, num in expected.items() if step in shell}
    home.ask("shards", "verify", study)

    anew = Home(tmp_path / "anew")
    anew.write(edit(SPEC))
    assert contents(study) == contents(anew.run())

    notes = home.ask("history", study)["revisions"]
    if len(notes) > 1:
        home.ask("history", study, "--undo")
        assert contents(study) == before
        home.ask("shards", "verify", study)
        status = home.ask("status", study)
        assert status["state"] == "finished" and status["totals"]["planned"] == 61
