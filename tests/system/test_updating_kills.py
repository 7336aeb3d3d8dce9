"""Updates are killed at any moment: then the study is the old one or the new one, and each ends as a fresh run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from changing_study import EXTRA, POST, SPEC, Home, contents, fresh, of_collect, put, study_of
from effort import repeats
from killed_update import update_alone, update_and_kill
from live_processes import processes_inside
from waiting import wait_until

from merlin.workspace.directory import open_workspace


@pytest.fixture
def home(finished_change: Path, tmp_path: Path) -> Home:
    shutil.copytree(finished_change, tmp_path / "home", symlinks=True)
    return Home(tmp_path / "home")


# ------------------------------------------------------------------ kill -9

KILLED_AT = sorted(random.Random(17).sample(range(1, 90), repeats(5, 60)))


def edited(text: str) -> str:
    return (
        text.replace("echo 2 > factor", "echo 3 > factor")
        .replace("Y: [2, 3]", "Y: [2, 4]")
        .replace(POST, EXTRA)
    )


@pytest.mark.parametrize("step", KILLED_AT)
def test_an_update_that_is_killed_leaves_the_old_study_or_the_new_one(home: Home, step: int) -> None:
    study = study_of(home)
    before = contents(study)
    home.write(edited(SPEC))
    update_and_kill(home, study, step)
    if open_workspace(study).plan.revision == 0:
        assert contents(study) == before
        assert home.ask("status", study)["state"] == "finished"
    home.run("--update", study, "--yes")
    assert contents(study) == fresh(edited(SPEC))
    home.ask("shards", "verify", study)
    home.ask("history", study, "--undo")
    assert contents(study) == before


@pytest.mark.parametrize("step", sorted(random.Random(18).sample(range(1, 50), repeats(4, 40))))
def test_going_back_that_is_killed_leaves_one_of_the_two_revisions(home: Home, step: int) -> None:
    study = study_of(home)
    before = contents(study)
    home.write(edited(SPEC))
    home.run("--update", study, "--yes")
    update_and_kill(home, study, step, "undo")
    if open_workspace(study).plan.revision:
        assert contents(study) == fresh(edited(SPEC))
        home.ask("history", study, "--undo")
    assert home.ask("status", study)["state"] == "finished"
    assert contents(study) == before
    home.ask("shards", "verify", study)
    home.run("--update", study, "--yes")
    assert contents(study) == fresh(edited(SPEC))


# ------------------------------------------------------------------ whoever comes after a kill


def names(study: Path) -> set[str]:
    """All files and directories of a study, but for what the last command may have written."""
    found = {str(path.relative_to(study)) for path in study.rglob("*")}
    return {
        name for name in found if "/ledger/" not in name and not name.endswith((".lock", "/lock", ".log"))
    }


# each opens the study; "study" stands for its workspace
OPENING = (
    "status study", "detailed-status study", "history study", "failures study", "explain study", "cost study",
    "sql study select-1", "shards verify study", "shards describe study/collect", "plan change.yaml --update study",
    "run-workers study --echo", "restart study --local", "history study --undo",
)  # fmt: skip


@pytest.mark.parametrize("step", [2, 13])
def test_a_change_that_was_cut_off_is_finished_by_the_next_command(
    home: Home, tmp_path: Path, step: int
) -> None:
    study = study_of(home)
    home.write(edited(SPEC))
    shutil.copytree(home.folder, tmp_path / "whole", symlinks=True)
    whole = study_of(Home(tmp_path / "whole"))
    update_alone(Home(tmp_path / "whole"), whole)
    assert update_and_kill(home, study, step, "after the switch") == 9
    assert names(study) != names(whole)
    for number, line in enumerate(OPENING):
        other = tmp_path / str(number)
        shutil.copytree(home.folder, other, symlinks=True)
        path = str(study_of(Home(other)))
        words = [word.replace("study", path) if word != "select-1" else "select 1" for word in line.split()]
        done = Home(other).say(*words)
        assert "was cut off" in done.stderr + done.stdout, (line, done.stdout, done.stderr)
        if "--undo" not in words:
            assert names(study_of(Home(other))) >= names(whole), line


# ------------------------------------------------------------------ any sequence of edits


F = "          f: {"
Z, N = "          z: {file: out.json, key: z}\n", "          n: {file: out.json, key: id, dtype: int64}\n"
CHOICES: tuple[tuple[Callable[[str], str], ...], ...] = (
    (lambda text: text, put("SCALE: 2", "SCALE: 3"), put("SCALE: 2", "SCALE: 4")),
    (lambda text: text, put(F, Z + F), put(F, N + F), put(F, Z + N + F)),
    (lambda text: text, of_collect("valid: y > 0.3"), of_collect("valid: y < 0.8")),
    (lambda text: text, put("model:draw", "model:other")),
    (lambda text: text, put("values: [1, 2]", "values: [2]"), put("values: [1, 2]", "values: [1, 2, 3]")),
    (lambda text: text, put("Y: [2, 3]", "Y: [2, 4]")),
    (lambda text: text, put(POST, ""), put(POST, EXTRA)),
    (lambda text: text, put("echo 2 > factor", "echo 3 > factor")),
    tuple(
        put("5, fields: {v", f"5, {more}fields: {{v")
        for more in ("", "valid: value < 1, ", "valid: value > 0.5, ")
    ),
    (lambda text: text, put("name: random", "name: other")),
)
WRONG_KEY = put("key: s}", "key: missing}")  # no output has it, so that all of them fail until it is mended


def run_and_kill(home: Home, study: Path, seconds: float) -> None:
    """Update the study and run it, for so long."""
    process = home.start("run", "change.yaml", *home.how, "--update", study, "--yes")
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    wait_until(lambda: not processes_inside(home.folder), lambda: processes_inside(home.folder))


def some_edits(draw: random.Random, size: int) -> str:
    """The spec with edits at random, of so many samples."""
    text = SPEC.replace("N: 10", f"N: {size}")
    for choices in CHOICES:
        text = draw.choice(choices)(text)
    return text


@pytest.mark.parametrize("number", range(repeats(2, 24)))
def test_any_sequence_of_edits_kills_and_updates_ends_as_a_fresh_run_of_the_last_spec(
    home: Home, number: int
) -> None:
    seed = int(os.environ.get("MERLIN_SOAK_SEED") or random.SystemRandom().randrange(1_000_000)) + number
    print(f"to draw the same again: MERLIN_SOAK_SEED={seed - number}")
    draw, study, size, grows = random.Random(seed), study_of(home), 10, bool(number % 2)
    for _ in range(4):
        # extensions begin a shard of their own, so they make the same ones only if those before them are full
        size = draw.choice((5, 10, 15)) if grows else size - draw.choice((0, 0, 1, 2))
        text = some_edits(draw, size)
        is_wrong = draw.random() < 0.3
        home.write(WRONG_KEY(text) if is_wrong else text)
        chance = draw.random()
        print(f"size {size}, wrong key {is_wrong}, chance {chance:.2f}")
        if chance < 0.2:
            update_and_kill(home, study, draw.randrange(1, 80))
        elif chance < 0.4:
            update_and_kill(home, study, draw.randrange(1, 30), "after the switch")
        elif chance < 0.5:
            run_and_kill(home, study, draw.uniform(0.1, 3.5))
        elif chance < 0.8:
            home.run("--update", study, "--yes", code=None if is_wrong else 0)
        elif open_workspace(study).plan.revision:
            back = home.say("history", study, "--undo")  # what comes back may have more samples
            assert back.returncode == 0 or "without losing them" in back.stderr, back.stderr
    home.write(text)
    home.run("--update", study, "--yes")
    home.ask("shards", "verify", study)
    assert contents(study) == fresh(text)


def test_what_an_update_has_reset_stays_so_when_the_next_one_has_fewer_samples(home: Home) -> None:
    study = study_of(home)
    home.write(SPEC.replace("SCALE: 2", "SCALE: 3"))
    update_alone(home, study)
    text = SPEC.replace("SCALE: 2", "SCALE: 3").replace("N: 10", "N: 8")
    home.write(text)
    home.run("--update", study, "--yes")
    assert home.ran()["simulate"] == 8
    assert contents(study) == fresh(text)
