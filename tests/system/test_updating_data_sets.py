"""Results that are in data sets alone are kept when a data set is edited: only rows that it lacks run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from changing_study import POST, SPEC, Home, contents, fresh, put, study_of
from commands import run_python
from killed_update import update_alone

import merlin

# runs all that a study has missing of these step instances, as one that is killed before the others
RUN_ONLY = """
import sys
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.workspace.directory import open_workspace
run_embedded(open_workspace(sys.argv[1]), RunOptions(workers=1, only=tuple(sys.argv[2:])), Observer())
"""
STRICT, LOOSE = (put("5, fields: {v", f"5, valid: value < {limit}, fields: {{v") for limit in (1, 1.5))
PACKED = put("5, fields: {v", "5, compression: gzip, fields: {v")
CLEANED = put("      aggregate:\n        samples", "      aggregate:\n        cleanup: true\n        samples")


@pytest.fixture
def home(finished_change: Path, tmp_path: Path) -> Home:
    shutil.copytree(finished_change, tmp_path / "home", symlinks=True)
    return Home(tmp_path / "home")


def change(home: Home, study: Path, text: str) -> dict[str, int]:
    """Update the study to a spec; returns how many tasks of which steps have run."""
    home.write(text)
    home.run("--update", study, "--yes")
    home.ask("shards", "verify", study)
    return home.ran()


def num_filtered(study: Path) -> int:
    paths = (study / "random").rglob("manifest.json")
    return sum(json.loads(path.read_text())["counts"]["filtered"] for path in paths)


def test_of_a_filter_that_was_too_strict_the_rejected_rows_alone_run_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write(STRICT(SPEC))
    study = home.run()
    before, rejected = contents(study), num_filtered(study)
    assert 0 < rejected < 20
    home.write(LOOSE(SPEC))
    (line,) = (
        one for one in home.ask("plan", "change.yaml", "--update", study)["steps"] if one["step"] == "draw"
    )
    assert (line["to_run"], line["taken"]) == (rejected, 20 - rejected)
    assert line["lacking"] == {"had been rejected by value < 1": rejected}
    told = " ".join(home.say("plan", "change.yaml", "--update", study).stdout.split())
    assert f"values of {20 - rejected} tasks" in told and "had been rejected" in told
    assert change(home, study, LOOSE(SPEC)) == {"draw": rejected}
    assert contents(study) == fresh(LOOSE(SPEC))
    home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)
    # a filter that stays rejects what it did; nobody needs the values
    more = STRICT(SPEC).replace("valid: value < 1,", "valid: [value < 1, value > 0.3],")
    assert change(home, study, more) == {}
    assert contents(study) == fresh(more)


def test_rows_that_a_later_filter_rejected_come_from_where_they_still_are(home: Home) -> None:
    study = study_of(home)
    assert change(home, study, STRICT(SPEC)) == {}
    assert change(home, study, STRICT(SPEC).replace("5, valid", "4, valid")) == {}
    assert change(home, study, LOOSE(SPEC)) == {}
    assert contents(study) == fresh(LOOSE(SPEC))
    for path in study.glob("merlin_info/revisions/*/before"):
        shutil.rmtree(path)
    assert change(home, study, SPEC) == {"draw": num_over(study, 1.5)}


def num_over(study: Path, limit: float) -> int:
    table = np.load(next(study.glob("merlin_info/*.npy")))
    return 2 * int(np.count_nonzero(2 * table[:, 0] >= limit))


def test_a_new_data_set_over_a_function_takes_what_another_one_has(home: Home) -> None:
    study = study_of(home)
    text = SPEC.replace(
        "  - name: report\n",
        "  - name: other\n    run: {depends: [draw], aggregate: {samples_per_shard: 4, fields: {value: {}}}}\n"
        "  - name: report\n",
    )
    before = contents(study)
    assert change(home, study, text) == {}
    assert contents(study) == fresh(text)
    home.ask("history", study, "--undo")
    assert contents(study) == before


# ------------------------------------------------------------------ kills


@pytest.mark.parametrize("is_half_collected", [False, True])
def test_one_edit_after_another_with_kills_between_them(home: Home, is_half_collected: bool) -> None:
    study = study_of(home)
    before = contents(study)
    for text in (STRICT(SPEC), PACKED(SPEC), LOOSE(SPEC)):
        home.write(text)
        update_alone(home, study)
        if is_half_collected:  # rows are in bundles, and no shard is written
            done = run_python(RUN_ONLY, study, "draw/P.1", cwd=home.folder)
            assert done.returncode == 0, done.stderr
    home.ask("restart", study, "--local")
    assert home.ran() == {}
    assert contents(study) == fresh(LOOSE(SPEC))
    home.ask("shards", "verify", study)
    for _ in range(3):
        home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)


def test_rows_that_were_to_be_taken_are_not_taken_once_their_step_is_another_one(home: Home) -> None:
    study = study_of(home)
    home.write(PACKED(SPEC))
    update_alone(home, study)
    text = PACKED(SPEC).replace("model:draw", "model:other").replace('"y": $(X)', '"y": 1$(X)')
    assert change(home, study, text) == {"simulate": 10, "draw": 20, "post": 20, "report": 1}
    assert contents(study) == fresh(text)


def test_outputs_that_were_to_be_collected_are_not_once_their_step_is_another_one(home: Home) -> None:
    study = study_of(home)
    text = SPEC.replace("          f: {", "          z: {file: out.json, key: z}\n          f: {")
    home.write(text)
    update_alone(home, study)
    text = text.replace('"y": $(X)', '"y": 1$(X)')
    assert change(home, study, text) == {"simulate": 10, "post": 20, "report": 1}
    assert contents(study) == fresh(text)


def test_a_data_set_that_an_undone_revision_has_made_is_put_aside_also_where_there_was_none(
    home: Home,
) -> None:
    study = study_of(home)
    home.write(PACKED(SPEC))
    update_alone(home, study)
    assert not (study / "random/P.1").exists()
    assert change(home, study, STRICT(SPEC)) == {}
    home.ask("history", study, "--undo")
    assert not (study / "random/P.1").exists()
    assert (study / "merlin_info/revisions/002/after/random/P.1").is_dir()
    home.ask("restart", study, "--local")
    assert change(home, study, SPEC) == {}


def test_a_spec_of_another_name_is_told(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace("name: change", "name: other", 1))
    assert (
        "the study is called change, and this spec other"
        in home.say("plan", "change.yaml", "--update", study).stdout
    )


def test_a_row_that_was_damaged_meanwhile_fails_and_runs_again_if_asked(home: Home) -> None:
    study = study_of(home)
    home.write(PACKED(SPEC))
    update_alone(home, study)
    shutil.rmtree(study / "merlin_info/revisions/001/before/random/P.1")
    home.ask("restart", study, "--local", code=1)
    (group,) = home.ask("failures", study)
    assert group["count"] == 10 and "not in the data set of before revision 1 any more" in group["cause"]
    assert home.ran() == {}
    home.ask("restart", study, "--local", "--failed")
    assert home.ran() == {"draw": 10}
    assert contents(study) == fresh(PACKED(SPEC))


def test_a_row_of_which_the_shard_was_not_written_again_is_not_taken(home: Home) -> None:
    study = study_of(home)
    (home.folder / "model.py").write_text((home.folder / "model.py").read_text().replace("* 2", "* 5"))
    home.write(SPEC)
    home.ask("rerun", study, "--step", "draw", "--samples", "3", "--yes", "--local")
    done = run_python(RUN_AGAIN, study, cwd=home.folder)  # and this one is killed before the shard
    assert done.returncode == 0, done.stderr
    text = PACKED(SPEC)
    home.write(text)
    home.run("--update", study, "--yes")
    with merlin.open_shards(study / "random/P.1") as ens:
        expected = np.asarray(ens["X"][:]) * np.where(np.isin(np.arange(10), [0, 1, 2, 3, 4]), 5, 2)
        assert np.allclose(ens["value"][:], expected)


RUN_AGAIN = """
import sys
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.plan.reopen import Again
from merlin.workspace.directory import open_workspace
again = Again(tasks={"draw/P.1": [(1, 2)]})
options = RunOptions(workers=1, only=("draw/P.1",), again=again)
run_embedded(open_workspace(sys.argv[1]), options, Observer())
"""


# ------------------------------------------------------------------ scripts, extensions, several sources


def test_results_of_scripts_whose_files_were_cleaned_up_are_taken_from_the_data_set(tmp_path: Path) -> None:
    home, cleaned = Home(tmp_path / "home"), CLEANED(SPEC).replace(POST, "")
    home.write(cleaned)
    study = home.run()
    before = contents(study)
    assert not list((study / "simulate").rglob("out.json"))
    text = cleaned.replace(
        "        samples_per_shard: 5", "        samples_per_shard: 4\n        valid: y > 0.3"
    )
    assert change(home, study, text) == {"report": 1}
    assert contents(study) == fresh(text)
    wrong = text.replace("valid: y > 0.3", "valid: y > 0.1").replace(
        "f: {file: out.json, key: f}", "f: {file: out.json, key: g}"
    )
    home.write(wrong)
    home.run("--update", study, "--yes", code=1)
    assert home.ran()["simulate"] == 10  # what they never stored is in no data set
    for _ in range(2):
        home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)


def test_extensions_keep_their_rows_too(home: Home) -> None:
    study = study_of(home)
    assert change(home, study, SPEC.replace("N: 10", "N: 15"))["draw"] == 10
    before = contents(study)
    text = STRICT(SPEC).replace("N: 10", "N: 15")
    assert change(home, study, text) == {}
    assert contents(study) == fresh(text)
    home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)


@pytest.mark.parametrize("num", [8, 10])
def test_rows_of_several_sources_get_other_numbers(tmp_path: Path, num: int) -> None:
    home = Home(tmp_path / "home")
    both = SPEC.replace("depends: [draw]", "depends: [draw_*]").replace(
        "aggregate: {samples_per_shard: 5, fields: {value: {}}}",
        "aggregate: {from: draw, samples_per_shard: 5, fields: {value: {}}}",
    )
    home.write(both)
    study = home.run()
    text = both.replace("N: 10", f"N: {num}").replace(
        "5, fields: {v", "6, fields: {v" if num == 10 else "5, fields: {v"
    )
    ran = change(home, study, text)
    assert "draw" not in ran and contents(study) == fresh(text)


# ------------------------------------------------------------------ in place


def test_data_sets_are_made_again_in_place_and_what_depends_on_them_waits(home: Home) -> None:
    study = study_of(home)
    before = contents(study)
    text = STRICT(SPEC).replace("key: y}", "key: z}").replace("name: random", "name: other")
    home.write(text)
    told = home.merlin("shards", "collect", study, "--spec", "change.yaml")
    assert f"still to run: report; to run that: merlin restart {study}" in told.stderr
    assert home.ran() == {}
    assert contents(study) == fresh(text)
    home.ask("shards", "verify", study)
    again = home.merlin("shards", "collect", study, "--spec", "change.yaml")
    assert "nothing runs again" in again.stdout and "still to run: report" in again.stderr
    home.ask("restart", study, "--local")
    assert home.ran() == {"report": 1}
    assert (
        home.ask("shards", "collect", study, "--spec", "change.yaml")["note"] == "nothing is left to collect"
    )
    home.ask("history", study, "--undo")
    assert contents(study) == before


SECOND = """  - name: second
    run: {depends: [random_*], cmd: 'echo extra >> $(SPECROOT)/ran; echo "{\\"w\\": $(X)}" > out.json'}
  - name: other
    run: {depends: [second], aggregate: {fields: {w: {file: out.json, key: w}}}}
"""


def test_in_place_a_data_set_of_what_runs_on_another_one_waits(tmp_path: Path) -> None:
    home, text = Home(tmp_path / "home"), SPEC.replace("global.parameters:", SECOND + "global.parameters:")
    home.write(text)
    study = home.run()
    text = STRICT(text)
    home.write(text)
    told = home.merlin("shards", "collect", study, "--spec", "change.yaml")
    assert home.ran() == {} and "still to run: second, other; to run that" in told.stderr
    home.ask("restart", study, "--local")
    assert home.ran() == {"extra": 10}
    assert contents(study) == fresh(text)


def test_in_place_nothing_else_is_changed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write(STRICT(SPEC))
    study = home.run()
    before, words = contents(study), ("shards", "collect", study, "--spec", "change.yaml")
    for text, told in (
        (STRICT(SPEC).replace('"y": $(X)', '"y": 1$(X)'), "changes more than data sets: simulate: cmd: "),
        (STRICT(SPEC).replace(POST, ""), "post is gone"),
        (STRICT(SPEC).replace("N: 10", "N: 12"), "samples: 2 new"),
        (LOOSE(SPEC), "would run again ("),
    ):
        home.write(text)
        done = home.merlin(*words, code=2)
        assert told in done.stderr and f"change.yaml --update {study}" in done.stderr, done.stderr
    assert home.merlin("shards", "collect", study, code=2).stderr.count("--out DIR") == 1
    assert "--aggregate goes with --out" in home.merlin(*words, "--aggregate", "random", code=2).stderr
    assert home.ran() == {} and contents(study) == before
    assert home.ask("history", study)["revision"] == 0
