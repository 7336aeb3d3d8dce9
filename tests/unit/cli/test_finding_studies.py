"""Which study a command means: a directory of many, a spec whose studies lie elsewhere, two of them, deleted ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import merlin

from merlin.cli.find import find_workspace
from merlin.config.study_places import remember, remembered, remembered_folders
from merlin.errors import WorkspaceError
from merlin.views.studies import studies_in

SPEC = "description: {name: demo, description: d}\nstudy: [{name: a, description: d, run: {cmd: 'true'}}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(SPEC)
    return tmp_path


def make(*options: str) -> Path:
    """Prepare a study; returns its workspace."""
    before = set(Path.cwd().rglob("demo_*"))
    assert merlin("run", "demo.yaml", "--dry", *options) == 0
    (made,) = {p for p in Path.cwd().rglob("demo_*") if p.is_dir()} - before
    return made


def test_a_study_that_was_put_elsewhere_is_found_by_its_spec(here: Path) -> None:
    made = make("-o", "elsewhere/deep")
    assert find_workspace(Path("demo.yaml")).path == made
    other = make("--vars", "OUTPUT_PATH=./vars")
    assert find_workspace(here / "demo.yaml").path == other


def test_it_is_found_from_another_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("-o", "studies")
    monkeypatch.chdir("/")
    assert find_workspace(here / "demo.yaml").path == made


def test_the_newest_counts_wherever_it_is(here: Path) -> None:
    elsewhere = make("-o", "studies")
    shutil.move(elsewhere, elsewhere.with_name("demo_20200101-000000"))
    newest = make()
    assert find_workspace(Path("demo.yaml")).path == newest


@pytest.mark.parametrize("how", ["--dry", "batch: {dry_run: true}"])
def test_a_dry_run_is_told_from_a_run(here: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    assert merlin("run", "demo.yaml", "--local") == 0
    (run,) = here.glob("demo_*")
    run = run.rename(here / "demo_20200102-030405")
    spec = Path("demo.yaml")
    if how != "--dry":
        spec.write_text(f"{spec.read_text()}{how}\n")
    assert merlin("run", "demo.yaml", *([how] if how == "--dry" else [])) == 0
    capsys.readouterr()
    dry = find_workspace(spec).path
    said = "made by a dry run, and nothing has run in it"
    assert dry != run and f"{said}; the newest of another run: {run}" in capsys.readouterr().err
    assert merlin("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["new (dry run)" in line for line in lines if "demo_" in line] == [True, False]
    shutil.rmtree(run)
    assert find_workspace(spec).path == dry
    assert capsys.readouterr().err.strip() == f"it was {said}"
    assert merlin("restart", dry, "--local") == 0
    capsys.readouterr()
    assert find_workspace(spec).path == dry
    assert "dry run" not in capsys.readouterr().err


def test_what_was_deleted_is_forgotten(here: Path) -> None:
    gone = make("-o", "studies")
    kept = make()
    shutil.rmtree(gone)
    assert find_workspace(Path("demo.yaml")).path == kept
    shutil.rmtree(gone.parent)
    assert find_workspace(Path("demo.yaml")).path == kept
    shutil.rmtree(kept)
    with pytest.raises(WorkspaceError, match="no workspace of the study"):
        find_workspace(Path("demo.yaml"))


def test_two_specs_do_not_find_each_others_studies(here: Path) -> None:
    make("-o", "studies")
    (here / "other.yaml").write_text(SPEC.replace("demo", "other"))
    assert merlin("run", "other.yaml", "--dry", "-o", "studies") == 0
    assert find_workspace(Path("other.yaml")).path.name.startswith("other_")
    assert find_workspace(Path("demo.yaml")).path.name.startswith("demo_")


def test_a_directory_that_is_named_is_the_only_one_that_is_looked_at(here: Path) -> None:
    make("-o", "studies")
    with pytest.raises(WorkspaceError):
        find_workspace(Path("demo.yaml"), output=Path("empty"))
    with pytest.raises(WorkspaceError):
        find_workspace(Path("demo.yaml"), variables={"OUTPUT_PATH": "empty"})


def test_a_run_that_moves_nothing_is_listed_everywhere_and_noted_for_no_spec(here: Path) -> None:
    make()
    env = {"HOME": str(here / "home")}
    assert remembered(here / "demo.yaml", env) == []
    assert remembered_folders(env) == [here]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"format": 1, "places": 3}'],
    ids=lambda text: text[:30],
)
def test_a_damaged_note_is_no_note_and_is_kept_aside(here: Path, text: str) -> None:
    env = {"HOME": str(here / "home")}
    remember(here / "demo.yaml", here, env)
    noted = here / "home/.merlin/study_places.json"
    noted.write_text(text)
    assert remembered(here / "demo.yaml", env) == []
    remember(here / "demo.yaml", here, env)
    assert remembered(here / "demo.yaml", env) == [here]
    assert noted.with_name("study_places.json.bak").read_text() == text


def test_the_notes_of_another_version_are_left_alone(here: Path) -> None:
    noted = here / "home/.merlin/study_places.json"
    noted.parent.mkdir(parents=True)
    noted.write_text('{"format": 2, "folders": {"/a": "b"}}')
    make()
    assert noted.read_text() == '{"format": 2, "folders": {"/a": "b"}}'
    assert list(noted.parent.glob("*.bak")) == []


def test_studies_are_listed_beside_one_whose_directory_is_no_text(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make()
    odd = Path(os.fsdecode(bytes(here) + b"/caf\xe9"))
    odd.mkdir()
    for _ in range(2):  # the second reads what the first wrote
        make("-o", str(odd))
    (third := here / "third").mkdir()
    monkeypatch.chdir(third)
    capsys.readouterr()
    for _ in range(2):
        assert merlin("list", "--json") == 0
        listed = [Path(study["workspace"]) for study in json.loads(capsys.readouterr().out)["studies"]]
        assert len(listed) == 3 and first in listed


def test_a_home_that_cannot_be_written_costs_nothing_but_the_note(here: Path) -> None:
    (here / "home").write_text("a file")
    remember(here / "demo.yaml", here, {"HOME": str(here / "home")})
    assert remembered(here / "demo.yaml", {"HOME": str(here / "home")}) == []


def test_notes_do_not_grow_for_ever(here: Path) -> None:
    env = {"HOME": str(here / "home")}
    for number in range(120):
        remember(here / f"{number}.yaml", here, env)
    assert remembered(here / "0.yaml", env) == []
    assert remembered(here / "119.yaml", env) == [here]


def test_the_studies_of_a_directory_are_listed_newest_first(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make("-o", "studies").rename(here / "studies/demo_20200102-030405")
    new = make("-o", "studies")
    capsys.readouterr()
    assert merlin("status", "studies", "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [study["workspace"] for study in told["studies"]] == [str(new), str(old)]
    assert told["studies"][1] | {"workspace": ""} == {
        "name": "demo", "workspace": "", "when": "2020-01-02 03:04:05", "state": "new", "planned": 1, "ok": 0,
        "failed": 0, "skipped": 0, "missing": 1, "rate": None, "eta": None, "is_dry": True,
        "state_reason": "", "problem": "",
    }  # fmt: skip
    assert merlin("status", "studies") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("demo")]) == 2


def test_all_studies_are_listed_from_anywhere_and_those_of_a_directory_on_demand(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make("-o", "studies").rename(here / "studies/demo_20200102-030405")
    second = make("--vars", "OUTPUT_PATH=more")
    monkeypatch.chdir("/")
    capsys.readouterr()

    def listed(*words: str | Path) -> list[str]:
        assert merlin("list", "--json", *words) == 0
        return [study["workspace"] for study in json.loads(capsys.readouterr().out)["studies"]]

    assert listed() == [str(second), str(first)]
    assert listed("--newest", "1") == [str(second)]
    assert listed("--root", here / "studies") == [str(first)]


def test_a_kept_line_counts_only_as_long_as_nothing_happens_to_the_study(here: Path) -> None:
    made = make("-o", "studies")
    assert [line.state for line in studies_in(here / "studies")] == ["new"]
    kept = here / "home/.merlin/study_lines.json"
    assert json.loads(kept.read_text())["lines"][str(made)]["line"]["state"] == "new"
    assert [line.state for line in studies_in(here / "studies")] == ["new"]
    assert merlin("restart", made, "--local") == 0
    assert [line.state for line in studies_in(here / "studies")] == ["finished"]
    kept.write_text("{")
    assert [line.state for line in studies_in(here / "studies")] == ["finished"]


def test_a_renamed_workspace_is_listed_too(here: Path) -> None:
    renamed = make().rename(here / "the good one")
    assert [(line.name, line.workspace) for line in studies_in(here)] == [("demo", str(renamed))]
    (renamed / "merlin_info/plan.json").write_text("{")
    (line,) = studies_in(here)
    assert (line.name, line.state) == ("the good one", "unreadable")


def test_a_damaged_study_costs_its_own_line(here: Path) -> None:
    broken = make("-o", "studies").rename(here / "studies/demo_20200102-030405")
    make("-o", "studies")
    (broken / "merlin_info/plan.json").write_text("{")
    good, bad = studies_in(here / "studies")
    assert (good.state, bad.state) == ("new", "unreadable")
    assert "plan.json" in bad.problem


@pytest.mark.parametrize("closed", ["", "merlin_info", "merlin_info/ledger"])
def test_a_study_that_may_not_be_read_costs_its_own_line(here: Path, closed: str) -> None:
    folder = make("-o", "studies").rename(here / "studies/demo_20200102-030405") / closed
    make("-o", "studies")
    (here / "studies/other").mkdir(mode=0)
    argv = [sys.executable, "-m", "merlin.cli", "list", "--json", "--root", "studies"]
    if os.geteuid() == 0:
        argv = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *argv]
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything")
    (folder / "ledger" if folder.name == "merlin_info" else folder).mkdir(exist_ok=True)
    folder.chmod(0)
    done = subprocess.run(argv, capture_output=True, text=True)
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["studies"]
    assert [study["state"] for study in found] == ["new", "unreadable"]
    assert "Permission denied" in found[1]["problem"]


def test_a_directory_without_studies_is_refused_as_before(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty").mkdir()
    assert merlin("status", "empty") == 1
    assert "is not a workspace" in capsys.readouterr().err
    assert merlin("list", "--root", "empty") == 0
    assert f"no study directly in {here / 'empty'}" in capsys.readouterr().err


def test_a_study_is_listed_with_its_extensions(here: Path) -> None:
    text = SPEC.replace("'true'", "'echo $(X)'") + (
        "merlin: {samples: {generate: {method: sobol, seed: 1, num: $(N), bounds: {X: [0, 1]}}, column_labels: [X]}}\n"
        "env: {variables: {N: 2}}\n"
    )
    (here / "demo.yaml").write_text(text)
    assert merlin("run", "demo.yaml", "--local") == 0
    (made,) = here.glob("demo_*")
    assert [(line.state, line.planned, line.ok) for line in studies_in(here)] == [("finished", 2, 2)]
    assert merlin("run", "demo.yaml", "--local", "--dry", "--extend", made, "--vars", "N=4") == 0
    assert [(line.state, line.planned, line.ok) for line in studies_in(here)] == [("stopped", 4, 2)]
