"""The spec of a finished study is edited: what depends on the edit runs again, and all is as if it was made anew."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from changing_study import EDITS, MODEL, POST, SPEC, Home, contents, fresh, of_collect, study_of, that_say_so

import merlin
from merlin.workspace.directory import open_workspace


@pytest.fixture
def home(finished_change: Path, tmp_path: Path) -> Home:
    shutil.copytree(finished_change, tmp_path / "home", symlinks=True)
    return Home(tmp_path / "home")


@pytest.mark.parametrize("name", EDITS)
def test_what_an_edit_runs_again(home: Home, name: str) -> None:
    edit, expected = EDITS[name]
    study = study_of(home)
    before = contents(study)
    home.write(edit(SPEC))
    planned = home.ask("plan", "change.yaml", "--update", study)
    assert {line["step"]: line["to_run"] for line in planned["steps"] if line["to_run"]} == expected
    assert (home.folder / "ran").read_text() == "" and contents(study) == before
    home.run("--update", study, "--yes")
    assert home.ran() == that_say_so(expected)
    home.ask("shards", "verify", study)
    assert contents(study) == fresh(edit(SPEC))

    notes = home.ask("history", study)["revisions"]
    if len(notes) > 1:
        home.ask("history", study, "--undo")
        assert contents(study) == before
        home.ask("shards", "verify", study)
        status = home.ask("status", study)
        assert status["state"] == "finished" and status["totals"]["planned"] == 61


def test_what_changes_is_told_in_words_that_fit_a_terminal(home: Home) -> None:
    study = study_of(home)
    home.env["COLUMNS"] = "80"
    home.write(of_collect("valid: [y > 0.3]")(SPEC).replace("model:draw", "model:other"))
    *table, hint = home.say("plan", "change.yaml", "--update", study).stdout.splitlines()
    assert hint == f"to update it: merlin run change.yaml --update {study}"
    assert max(map(len, table)) <= 80
    whys = {line["step"]: line["why"] for line in home.ask("plan", "change.yaml", "--update", study)["steps"]}
    assert whys["collect"] == ["valid: none, now y > 0.3"]
    assert whys["draw"] == ["function: model:draw, now model:other"]
    home.run("--update", study, "--yes")
    told = home.say("history", study).stdout
    assert "collect: valid: none, now y > 0.3" in told and "30 tasks run again" in told
    home.write(SPEC.replace("max_retries: 3", "max_retries: 4").replace("model:draw", "model:other"))
    home.run("--update", study, "--yes")
    assert "(0 tasks" not in home.say("history", study).stdout


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
    assert (planned["samples"], planned["new_samples"]) == ("2 with other values, 2 new", 2)
    home.run("--update", study, "--yes")
    assert home.ran() == {"simulate": 4, "draw": 8, "post": 8, "report": 2}
    home.ask("shards", "verify", study)
    with merlin.open_shards(study / "collect") as ens:
        assert np.asarray(ens["y"][:]).tolist() == [0, 1, 2, 33, 4, 5, 6, 7, 8, 9, 10, 11]
        assert np.asarray(ens["Y"][:]).tolist()[7:10] == [77, 8.5, 9.5]
    (home.folder / "s.csv").write_text((home.folder / "s.csv").read_text().replace("33,3.5", "3,3.5"))
    home.write(OF_FILE)
    home.run("--update", study, "--yes")  # the extension's report has seen all rows
    assert home.ran() == {"simulate": 1, "draw": 2, "post": 2, "report": 2}
    # what was there before is a data set still
    aside, _ = sorted((study / "merlin_info/revisions").glob("*/before/collect"))
    with merlin.open_shards(aside) as ens:
        assert np.asarray(ens["y"][:]).tolist() == list(range(10))
    assert json.loads((aside / "manifest.json").read_text())["content_digest"] == before["collect"][0]


def test_other_columns_or_another_file_are_seen_even_if_size_and_time_of_the_file_are_the_same(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    file, other = home.folder / "s.csv", home.folder / "other.csv"
    file.write_text(CSV.removeprefix("X,Y\n"))
    other.write_text(file.read_text().replace("3,3.5", "9,3.5"))
    shutil.copystat(file, other)
    home.write(OF_FILE)
    study = home.run()
    home.write(OF_FILE.replace("s.csv", "other.csv"))
    assert home.ask("plan", "change.yaml", "--update", study)["samples"] == "1 with other values"
    text = OF_FILE.replace("column_labels: [X, Y]", "column_labels: [Y, X]")
    home.write(text)
    home.run("--update", study, "--yes")
    assert home.ran()["simulate"] == 10
    anew = Home(tmp_path / "anew")
    (anew.folder / "s.csv").write_text(file.read_text())
    anew.write(text)
    assert contents(study) == contents(anew.run())


def test_the_file_of_the_samples_may_get_another_name(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.folder / "s.csv").write_text(CSV)
    home.write(OF_FILE)
    study = home.run()
    (home.folder / "s.csv").rename(home.folder / "new.csv")
    text = OF_FILE.replace("s.csv", "new.csv")
    home.write(text)
    assert not any(line["to_run"] for line in home.ask("plan", "change.yaml", "--update", study)["steps"])
    home.write(text.replace("echo report", "echo the report"))
    home.run("--update", study, "--yes")
    assert home.ran() == {"report": 1}
    home.ask("restart", study, "--local", "--failed")  # all of it is there
    home.ask("rerun", study, "--step", "simulate", "--samples", "3", "--yes", "--local")
    assert home.ran()["simulate"] == 1


def test_an_edit_brings_no_text_into_a_script_that_a_shell_acts_on(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.folder / "s.csv").write_text("X,Y\n" + "".join(f"{i},b;touch hacked\n" for i in range(10)))
    text = OF_FILE.replace('"z": $(Y), ', "")
    home.write(text)
    study = home.run()
    home.write(text.replace("echo post $(P)", "echo post $(P) $(Y)"))
    for command in ("plan", "change.yaml"), ("run", "change.yaml", "--local", "--yes"):
        done = home.say(*command, "--update", study)
        assert done.returncode == 2 and "use the environment variable MERLIN_VALUE_Y" in done.stderr, done
    assert open_workspace(study).plan.revision == 0 and not list(study.rglob("hacked"))


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


def test_a_declared_file_and_other_versions_are_told_and_run_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    deck = home.folder / "deck.txt"
    deck.write_text("first")
    text = SPEC.replace("  - name: post\n    run: {", "  - name: post\n    run: {files: [deck.txt], ")
    home.write(text)
    study = home.run()
    deck.write_text("second")
    made_with = study / "merlin_info/provenance.json"
    made_with.write_text(json.dumps(json.loads(made_with.read_text()) | {"python": "3.1.4"}))
    home.write(text)
    told = home.ask("plan", "change.yaml", "--update", study)
    assert told["changed_code"] == {"post": ["deck.txt has changed"]} and told["is_nothing"]
    assert [words for words in told["versions"] if words.startswith("Python 3.1.4, now 3.")], told["versions"]
    home.run("--update", study, "--yes", "--changed-code")
    assert home.ran() == {"post": 20}


def test_changed_code_is_not_told_any_more_once_all_of_the_step_has_run_for_another_reason(
    home: Home,
) -> None:
    study = study_of(home)
    (home.folder / "model.py").write_text(MODEL.replace("* 3", "* 5"))
    home.write(SPEC.replace("model:draw", "model:other"))
    home.run("--update", study, "--yes")
    with merlin.open_shards(study / "random/P.1") as ens:
        assert np.allclose(ens["value"][:], np.asarray(ens["X"][:]) * 5)
    assert not home.ask("plan", "change.yaml", "--update", study)["changed_code"]


def test_what_steps_have_made_may_be_kept(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace('"y": $(X)', '"y": 1$(X)'))
    home.run("--update", study, "--yes", "--keep", "simulate")
    assert home.ran() == {}
    assert home.ask("plan", "change.yaml", "--update", study)["is_nothing"]


# ------------------------------------------------------------------ dependencies


def test_what_an_edited_spec_depends_on_is_there_before_anything_runs(home: Home) -> None:
    study, library = study_of(home), home.folder / "library"
    words = ("plan", "change.yaml"), ("run", "change.yaml", "--local", "--yes")
    function = 'run: {function: "model:draw"'
    for text, told in (
        (with_dependency("paths: [{name: DATA, path: nowhere}]"), "nowhere of DATA does not exist"),
        (SPEC.replace(function, f"{function}, files: [nowhere.txt]"), "'nowhere.txt' does not exist"),
    ):
        home.write(text)
        for command in words:
            done = home.say(*command, "--update", study)
            assert done.returncode == 2 and told in done.stderr, done.stderr
    home.write(SPEC.replace(function, 'run: {function: "model:nowhere"'))
    for dry, code, kind in ((("--dry",), 0, "warning"), ((), 2, "error")):
        done = home.say(*words[1], "--update", study, *dry)
        assert done.returncode == code, done.stderr
        assert kind in done.stderr and "nowhere" in done.stderr
    git = ["git", "-C", str(library), "-c", "user.name=a", "-c", "user.email=a@b"]
    library.mkdir()
    (library / "seven").write_text("7")
    for line in ("init --quiet", "add .", "commit --quiet --message first"):
        subprocess.run([*git, *line.split()], check=True)
    clones = home.folder / "clones"
    text = with_dependency(f"git: [{{name: LIB, path: {clones}, url: {library}}}]")
    text = text.replace("echo 2 > factor", "cat $(LIB)/seven > factor")
    home.write(text)
    home.ask("plan", "change.yaml", "--update", study)
    assert not clones.exists()
    home.run("--update", study, "--yes")
    with merlin.open_shards(study / "collect") as ens:
        assert set(np.asarray(ens["f"][:]).tolist()) == {7}
    home.write(text.replace(f"url: {library}", f"url: {library}, tag: second"))
    assert "not at second" in home.say("run", "change.yaml", "--local", "--update", study, "--yes").stderr


def with_dependency(block: str) -> str:
    return SPEC.replace("SCALE: 2}}", f"SCALE: 2}}, dependencies: {{{block}}}}}")


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


def test_an_extension_runs_again_what_depends_on_a_step_of_its_study_alone(home: Home) -> None:
    study, text = study_of(home), SPEC.replace("N: 10", "N: 15")
    home.write(text)
    home.run("--update", study, "--yes")
    before = contents(study)
    home.write(text.replace("echo 2 > factor", "exit 1"))
    told = home.say("run", "change.yaml", "--local", "--update", study, "--yes")
    assert told.returncode == 1 and "extensions/001 needs mesh, which has not ended ok" in told.stderr
    assert home.ran() == {"report": 1}
    error = home.ask("restart", study / "extensions/001", "--local", code=1)["error"]
    assert f"first: merlin restart {study} --failed" in error
    text = text.replace("echo 2 > factor", "echo 3 > factor")
    home.write(text)
    home.run("--update", study, "--yes")
    assert home.ran() == {"mesh": 1, "simulate": 15, "post": 30, "report": 2}
    assert contents(study) == fresh(text)
    dry = home.ask("rerun", study, "--step", "mesh", "--dry")["rerun"]
    tasks = [{step["step"]: step["chosen"] + step["others"] for step in of["steps"]} for of in dry]
    assert tasks[0]["mesh"] == 1 and "mesh" not in tasks[1]
    assert (tasks[0]["simulate"], tasks[1]["simulate"], tasks[1]["post"]) == (10, 5, 10)
    home.ask("rerun", study, "--step", "mesh", "--yes", "--local")
    assert home.ran() == {"mesh": 2, "simulate": 30, "post": 60, "report": 4}
    assert contents(study) == fresh(text)
    for _ in range(2):
        home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)


def test_an_extension_that_loses_all_of_its_samples_is_put_aside_and_comes_back(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace("N: 10", "N: 15"))
    home.run("--update", study, "--yes")
    before, revision = contents(study), open_workspace(study).plan.revision
    for num, members in ((8, []), (12, ["001"])):
        home.write(SPEC.replace("N: 10", f"N: {num}"))
        home.run("--update", study, "--yes")
        home.ask("shards", "verify", study)
        assert [path.name for path in (study / "extensions").iterdir()] == members
        with merlin.open_shards(study / "collect") as ens:
            assert np.asarray(ens["id"][:]).tolist() == list(range(num))
    while open_workspace(study).plan.revision != revision:
        home.ask("history", study, "--undo")
    assert contents(study) == before
    home.ask("shards", "verify", study)
    home.write(SPEC.replace("N: 10", "N: 15"))
    told = home.ask("plan", "change.yaml", "--update", study)
    assert not told["samples"] and not any(line["to_run"] for line in told["steps"])


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


def test_where_the_study_was_made_is_no_edit(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write(SPEC)
    study = home.run("--output", "studies")
    assert home.ask("plan", "change.yaml", "--update", study)["is_nothing"]


def test_an_update_that_leaves_samples_out_asks_and_a_restart_says_how_the_study_was_run(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    home.write(SPEC)
    study = home.run("--vars", "N=12")
    home.write(SPEC.replace("echo report >>", "echo the report >>"))
    refused = home.say("run", "change.yaml", "--local", "--update", study)
    assert refused.returncode == 2 and "before it removes samples" in refused.stderr
    assert home.ran() == {}
    told = home.say("restart", study, "--local").stderr
    assert f"merlin run {home.folder}/change.yaml --update {study} --vars N=12" in told
    home.run("--update", study, "--vars", "N=12", "--yes")
    assert "has changed" not in home.say("restart", study, "--local").stderr


def test_a_spec_that_an_extension_was_made_of_has_not_changed_since(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write(SPEC)
    study = home.run()
    home.write(SPEC.replace("N: 10", "N: 12"))
    home.run("--extend", study)
    assert "has changed" not in home.say("restart", study, "--local").stderr
