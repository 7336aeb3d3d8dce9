"""A study that has run and is edited: its spec, a table of edits with what runs again because of each, its folder."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from user_home import UserHome

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
        factor=$(cat $(mesh.workspace)/factor)
        echo '{"y": $(X), "z": $(Y), "id": $(MERLIN_SAMPLE_ID), "s": $(SCALE), "f": '$factor'}' > out.json
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
from pathlib import Path
import numpy as np
def note(context):
    with Path(__file__).with_name("ran").open("a") as file:
        file.write("".join(f"draw {id}\\n" for id in context.sample_ids))
def draw(inputs, context):
    note(context)
    return {"value": inputs["X"] * 2, "twice": inputs["X"] * 4}
def other(inputs, context):
    note(context)
    return {"value": inputs["X"] * 3}
"""


def put(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


def of_collect(line: str) -> Callable[[str], str]:
    """The edit that adds a line to the data set `collect`."""
    first = "        samples_per_shard: 5\n"
    return put(first, f"{first}        {line}\n")


ANEW = {"collect": 3, "report": 1}  # tasks that run because the data set changes
SIMULATED = {"simulate": 10, "post": 20, **ANEW}
POST = """  - name: post
    run: {depends: [simulate], cmd: "echo post $(P) $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran"}
"""
EXTRA = """  - name: extra
    run: {depends: [simulate], cmd: echo extra $(MERLIN_SAMPLE_ID) >> $(SPECROOT)/ran}
"""
# what is edited, how, and how many tasks of which steps run because of it
EDITS: dict[str, tuple[Callable[[str], str], dict[str, int]]] = {
    "nothing": (lambda text: text, {}),
    "a description": (put("a study that changes", "another text"), {}),
    "directories of samples": (put("    column_labels", "    level_max_dirs: 3\n    column_labels"), {}),
    "how often a step is tried": (put("max_retries: 3", "max_retries: 5"), {}),
    "another field": (put("          f: {", "          z: {file: out.json, key: z}\n          f: {"), ANEW),
    "a field less": (put("          s: {file: out.json, key: s}\n", ""), ANEW),
    "another key": (put("key: y}", "key: z}"), ANEW),
    "a filter": (of_collect("valid: y > 0.3"), ANEW),
    "compression": (of_collect("compression: gzip"), ANEW),
    "samples in a shard": (put("        samples_per_shard: 5", "        samples_per_shard: 4"), ANEW | {"collect": 4}),
    "splits alone": (of_collect("splits: {train: 0.5, test: 0.5}"), ANEW | {"collect": 1}),
    "the simulation": (put('"y": $(X)', '"y": 1$(X)'), SIMULATED),
    "a variable of the simulation": (put("SCALE: 2", "SCALE: 3"), SIMULATED),
    "what all samples wait for": (put("echo 2 > factor", "echo 3 > factor"), {"mesh": 1, **SIMULATED}),
    "a step that nothing depends on": (put("echo post $(P)", "echo later $(P)"), {"post": 20}),
    "the last step": (put("echo report >>", "echo the report >>"), {"report": 1}),
    "a function": (put("model:draw", "model:other"), {"draw": 20, "random": 6}),
    "the data set of a function": (put("5, fields: {v", "5, compression: gzip, fields: {v"), {"random": 6}),
    "another name of that data set": (put("name: random", "name: other"), {"other": 6}),
    "another field of a function": (put("{value: {}}", "{value: {}, twice: {}}"), {"draw": 20, "random": 6}),
    "a filter of a function": (put("5, fields: {v", "5, valid: value < 1, fields: {v"), {"random": 6}),
    "a new step": (put("  - name: collect\n", f"{EXTRA}  - name: collect\n"), {"extra": 10}),
    "a step less": (put(POST, ""), {}),
    "another parameter": (put("values: [1, 2]", "values: [1, 2, 3]"), {"post": 10, "draw": 10, "random": 3}),
    "a parameter less": (put("values: [1, 2]", "values: [1]"), {}),
    "a step gets its first parameter": (
        put('"y": $(X)', '"y": $(P)$(X)'), {"simulate": 20, "post": 20, "collect": 6, "report": 2}
    ),
    "fewer samples": (put("N: 10", "N: 8"), {"collect": 2, "random": 4, "report": 1}),
    "other values of all samples": (put("Y: [2, 3]", "Y: [2, 4]"), {"draw": 20, "random": 6, **SIMULATED}),
}  # fmt: skip


# the same edits in groups, for tests in which each update takes long
TOGETHER: tuple[tuple[str, ...], ...] = (
    ("a description", "directories of samples", "how often a step is tried"),
    ("another field", "samples in a shard", "a function", "a step that nothing depends on"),
    ("a field less", "compression", "the data set of a function", "a step less"),
    ("another key", "another name of that data set", "a new step", "the last step"),
    ("a filter", "a filter of a function", "another parameter"),
    ("splits alone", "a parameter less"),
    ("the simulation", "a variable of the simulation"),
    ("what all samples wait for",),
    ("fewer samples",),
    ("other values of all samples",),
)


def edited_together(names: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The spec with several edits, and how many tasks of which steps run because of them."""
    text, expected = SPEC, dict[str, int]()
    for name in names:
        edit, runs = EDITS[name]
        text = edit(text)
        expected |= {step: max(num, expected.get(step, 0)) for step, num in runs.items()}
    return text, expected


class Home(UserHome):
    """A directory with a spec, and the environment of its commands."""

    def __init__(self, folder: Path, broker: str = "") -> None:
        super().__init__(folder, **({"MERLIN_BROKER_URL": broker} if broker else {}))
        (folder / "model.py").write_text(MODEL)
        self.how = () if broker else ("--local", "--workers", "2")

    def write(self, text: str) -> None:
        (self.folder / "change.yaml").write_text(text)
        (self.folder / "ran").write_text("")

    def say(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `merlin …`, with any exit code."""
        return self.merlin(*words, code=None)

    def run(self, *more: str | Path, code: int | None = 0) -> Path:
        """Run the spec, or publish it for workers; returns the workspace."""
        return Path(self.ask("run", "change.yaml", *self.how, *more, code=code)["workspace"])

    def ran(self) -> dict[str, int]:
        """How many tasks of each shell step have run since the spec was written."""
        renamed = {"later": "post", "the": "report"}  # words that edited steps print
        words = [line.split()[0] for line in (self.folder / "ran").read_text().splitlines()]
        steps = [renamed.get(word, word) for word in words]
        return {step: steps.count(step) for step in steps}


def that_say_so(expected: Mapping[str, int]) -> dict[str, int]:
    """The part of `expected` that `Home.ran` counts: the steps that write a line."""
    shells = ("mesh", "simulate", "draw", "post", "report", "extra")
    return {step: num for step, num in expected.items() if step in shells}


def study_of(home: Home) -> Path:
    return min(home.folder.glob("change_*"))


def contents(study: Path) -> dict[str, tuple[str, Any]]:
    """What is in the data sets: by their names, the digest of their content, and how many samples each split has."""
    found = {}
    for name in ("collect", "random", "other"):
        for path in sorted((study / name).rglob("manifest.json")):
            manifest = json.loads(path.read_text())
            found[str(path.parent.relative_to(study))] = manifest["content_digest"], manifest["splits"]
    return found


@functools.cache
def fresh(text: str) -> dict[str, tuple[str, Any]]:
    """The `contents` of a fresh run of a spec, without the steps that make nothing for a data set."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        home.write(_UNREAD.sub("", text))
        return contents(home.run())


_UNREAD = re.compile(r"  - name: (post|extra|report)\n(?:    .*\n)+")
