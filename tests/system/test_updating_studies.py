"""The spec of a finished study is edited: what depends on the edit runs again, and all is as if it was made anew."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_merlin
from effort import repeats

import merlin
from merlin.workspace.directory import open_workspace

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


def of_collect(line: str) -> Callable[[str], str]:
    """Say more of the data set `collect`."""
    first = "        samples_per_shard: 5\n"
    return put(first, f"{first}        {line}\n")


ANEW = {"collect": 3, "report": 1}  # what follows from another data set
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
    "the data set of a function": (put("5, fields: {v", "5, compression: gzip, fields: {v"), {"draw": 20, "random": 6}),
    "another name of that data set": (put("name: random", "name: other"), {"draw": 20, "other": 6}),
    "a new step": (put("  - name: collect\n", f"{EXTRA}  - name: collect\n"), {"extra": 10}),
    "a step less": (put(POST, ""), {}),
    "another parameter": (put("values: [1, 2]", "values: [1, 2, 3]"), {"post": 10, "draw": 10, "random": 3}),
    "a parameter less": (put("values: [1, 2]", "values: [1]"), {}),
    "fewer samples": (put("N: 10", "N: 8"), {"collect": 2, "random": 4, "report": 1}),
    "other values of all samples": (put("Y: [2, 3]", "Y: [2, 4]"), {"draw": 20, "random": 6, **SIMULATED}),
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
    for name in ("collect", "random", "other"):
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


# ------------------------------------------------------------------ samples in a file


CSV = "X,Y\n" + "".join(f"{i},{i + 0.5}\n" for i in range(10))
OF_FILE = SPEC.replace(
    "    generate: {method: sobol, num: $(N), bounds: {X: [0, 1], Y: [2, 3]}, seed: 7}\n",
    "    file: $(SPECROOT)/s.csv\n",
)


def test_only_samples_with_other_values_run_again_and_new_ones_extend_the_study(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.folder / "s.csv").write_text(CSV)
    home.write(OF_FILE)
    study = home.run()
    before = contents(study)
    (home.folder / "s.csv").write_text(
        CSV.replace("\n3,", "\n33,").replace("\n7,7.5", "\n7,77") + "10,1\n11,1\n"
    )
    home.write(OF_FILE)
    planned = home.ask("plan", "change.yaml", "--update", study)
    assert (planned["samples"], planned["new_samples"]) == ("2 samples with other values, 2 new samples", 2)
    home.run("--update", study, "--yes")
    assert home.ran() == {"simulate": 4, "post": 8, "report": 2}
    home.ask("shards", "verify", study)
    with merlin.open_shards(study / "collect") as ens:
        assert np.asarray(ens["y"][:]).tolist() == [0, 1, 2, 33, 4, 5, 6, 7, 8, 9, 10, 11]
        assert np.asarray(ens["Y"][:]).tolist()[7:10] == [77, 8.5, 9.5]
    # what was there before is a data set still
    (aside,) = (study / "merlin_info/revisions").glob("*/before/collect")
    with merlin.open_shards(aside) as ens:
        assert np.asarray(ens["y"][:]).tolist() == list(range(10))
    assert json.loads((aside / "manifest.json").read_text())["content_digest"] == before["collect"][0]


# ------------------------------------------------------------------ code


def test_changed_code_is_told_and_runs_again_if_asked(home: Home) -> None:
    study = study_of(home)
    (home.folder / "model.py").write_text(MODEL.replace("* 2", "* 5"))
    home.write(SPEC)
    for _ in range(2):  # it is told until it has run
        told = home.ask("plan", "change.yaml", "--update", study)
        assert told["changed_code"] == {"draw": ["model.py has changed"]}
        assert not any(line["to_run"] for line in told["steps"])
        home.run("--update", study, "--yes")
    home.run("--update", study, "--yes", "--changed-code")
    with merlin.open_shards(study / "random/P.1") as ens:
        assert np.allclose(ens["value"][:], np.asarray(ens["X"][:]) * 5)
    assert not home.ask("plan", "change.yaml", "--update", study)["changed_code"]


def test_what_steps_have_made_may_be_kept(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace('"y": $(X)', '"y": 1$(X)'))
    home.run("--update", study, "--yes", "--keep", "simulate")
    assert home.ran() == {}
    assert home.ask("plan", "change.yaml", "--update", study)["is_nothing"]


# ------------------------------------------------------------------ asking, and other studies


def test_nobody_is_asked_where_nobody_can_answer(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace('"y": $(X)', '"y": 1$(X)'))
    error = home.ask("run", "change.yaml", "--local", "--update", study, code=2)
    assert "--yes" in error["error"] and home.ran() == {}
    assert home.ask("status", study)["state"] == "finished"


def test_an_undone_update_is_in_the_history_and_its_number_is_not_used_again(home: Home) -> None:
    study = study_of(home)
    for num in (3, 4):
        home.write(SPEC.replace("SCALE: 2", f"SCALE: {num}"))
        home.run("--update", study, "--yes")
        home.ask("history", study, "--undo")
    home.run("--update", study, "--yes")
    notes = home.ask("history", study)["revisions"]
    assert [(n["number"], n["base"], n["is_undone"], n["is_current"]) for n in notes] == [
        (0, 0, False, False), (1, 0, True, False), (2, 0, True, False), (3, 0, False, True),
    ]  # fmt: skip
    with merlin.open_shards(study / "collect") as ens:
        assert set(np.asarray(ens["s"][:]).tolist()) == {4}


# ------------------------------------------------------------------ kill -9

# updates a study, and ends at the n-th thing that it does to the file system
KILLED = """
import os, sys
from pathlib import Path
left = [int(sys.argv[3])]
CALLS = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile", "os.truncate"}
def count(event, args):
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if writes or event in CALLS or (event == "open" and args[1] is None and args[2] & os.O_CREAT):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)
from merlin.api.revising import apply_update, held
from merlin.api.updating import UpdateOptions, plan_update
from merlin.cli.updating import _has_files
from merlin.workspace.checking import load_checked
from merlin.workspace.directory import open_workspace
from merlin.workspace.options import StudyOptions
spec = load_checked(sys.argv[1], {}, StudyOptions())
study = open_workspace(sys.argv[2])
with held(study):
    sys.addaudithook(count)
    apply_update(plan_update(spec, StudyOptions(), study, UpdateOptions(), _has_files))
print(int(sys.argv[3]) - left[0])
"""


KILLED_AT = sorted(random.Random(17).sample(range(1, 90), repeats(5, 60)))


@pytest.fixture(scope="module")
def anew(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    """What a fresh run of the edited spec makes."""
    home = Home(tmp_path_factory.mktemp("anew") / "home")
    home.write(edited(SPEC))
    return contents(home.run())


def edited(text: str) -> str:
    return (
        text.replace("echo 2 > factor", "echo 3 > factor")
        .replace("Y: [2, 3]", "Y: [2, 4]")
        .replace(POST, EXTRA)
    )


@pytest.mark.parametrize("step", KILLED_AT)
def test_an_update_that_is_killed_leaves_the_old_study_or_the_new_one(
    home: Home, anew: dict[str, tuple[str, Any]], step: int
) -> None:
    study = study_of(home)
    before = contents(study)
    home.write(edited(SPEC))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(home.folder / "change.yaml"), str(study), str(step)],
        cwd=home.folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 9), done.stderr
    if open_workspace(study).plan.revision == 0:
        assert contents(study) == before
        assert home.ask("status", study)["state"] == "finished"
    home.run("--update", study, "--yes")
    assert contents(study) == anew
    home.ask("shards", "verify", study)
    home.ask("history", study, "--undo")
    assert contents(study) == before


# ------------------------------------------------------------------ any sequence of edits


CHOICES: tuple[tuple[Callable[[str], str], ...], ...] = (
    (lambda text: text, put("SCALE: 2", "SCALE: 3"), put("SCALE: 2", "SCALE: 4")),
    (lambda text: text, put("          f: {", "          z: {file: out.json, key: z}\n          f: {")),
    (lambda text: text, of_collect("valid: y > 0.3"), of_collect("valid: y < 0.8")),
    (lambda text: text, put("model:draw", "model:other")),
    (lambda text: text, put("values: [1, 2]", "values: [2]"), put("values: [1, 2]", "values: [1, 2, 3]")),
    (lambda text: text, put("Y: [2, 3]", "Y: [2, 4]")),
    (lambda text: text, put(POST, ""), put(POST, EXTRA)),
)


@pytest.mark.parametrize("seed", range(repeats(1, 12)))
def test_any_sequence_of_edits_kills_and_updates_ends_as_a_fresh_run_of_the_last_spec(
    home: Home, tmp_path: Path, seed: int
) -> None:
    draw, study, text = random.Random(seed), study_of(home), SPEC
    for _ in range(4):
        text = SPEC
        for choices in CHOICES:
            text = draw.choice(choices)(text)
        home.write(text)
        if draw.random() < 0.5:
            words = [str(home.folder / "change.yaml"), str(study), str(draw.randrange(1, 80))]
            subprocess.run(
                [sys.executable, "-c", KILLED, *words], cwd=home.folder, check=False, capture_output=True
            )
        if draw.random() < 0.7:
            home.run("--update", study, "--yes")
        elif draw.random() < 0.5 and open_workspace(study).plan.revision:
            home.ask("history", study, "--undo")
    home.run("--update", study, "--yes")
    home.ask("shards", "verify", study)
    anew = Home(tmp_path / "anew")
    anew.write(text)
    assert contents(study) == contents(anew.run())


def test_a_study_with_extensions_is_edited_shrinks_grows_and_goes_back(home: Home) -> None:
    study, found = study_of(home), []
    edits = [("N: 15", "key: y}"), ("N: 15", "key: z}"), ("N: 13", "key: z}"), ("N: 20", "key: z}")]
    for num, key in edits:
        home.write(SPEC.replace("N: 10", num).replace("key: y}", key))
        home.run("--update", study, "--yes")
        home.ask("shards", "verify", study)
        found.append(contents(study))
        with merlin.open_shards(study / "collect") as ens:
            assert len(ens) == int(num.removeprefix("N: "))
            assert np.asarray(ens["id"][:]).tolist() == list(range(len(ens)))
    for before in reversed(found[:-1]):
        home.ask("history", study, "--undo")
        assert contents(study) == before
        home.ask("shards", "verify", study)


def test_what_an_update_has_reset_stays_so_when_the_next_one_has_fewer_samples(
    home: Home, tmp_path: Path
) -> None:
    study = study_of(home)
    home.write(SPEC.replace("SCALE: 2", "SCALE: 3"))
    words = [str(home.folder / "change.yaml"), str(study), "1000000"]  # it is updated, and not run
    subprocess.run([sys.executable, "-c", KILLED, *words], cwd=home.folder, check=True)
    text = SPEC.replace("SCALE: 2", "SCALE: 3").replace("N: 10", "N: 8")
    home.write(text)
    home.run("--update", study, "--yes")
    assert home.ran()["simulate"] == 8
    anew = Home(tmp_path / "anew")
    anew.write(text)
    assert contents(study) == contents(anew.run())


CLEANED = SPEC.replace(
    "      aggregate:\n        samples", "      aggregate:\n        cleanup: true\n        samples"
)


def test_files_that_an_earlier_revision_has_cleaned_up_are_not_believed_to_be_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write(CLEANED.replace(POST, ""))
    study = home.run()
    home.write(SPEC.replace(POST, ""))
    home.run("--update", study, "--yes")
    home.write(
        SPEC.replace(POST, "").replace(
            "          f: {", "          z: {file: out.json, key: z}\n          f: {"
        )
    )
    home.run("--update", study, "--yes")
    assert home.ran()["simulate"] == 10
    home.ask("shards", "verify", study)
