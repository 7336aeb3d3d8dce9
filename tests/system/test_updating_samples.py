"""An edited spec and the samples of its study: which are other ones, which stay as they are written, which wait."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from changing_study import Home
from commands import run_python
from killed_update import update_alone

from merlin.api.sample_moves import sample_moves
from merlin.api.updating import UpdateOptions, plan_update
from merlin.spec.load import load_spec
from merlin.workspace.directory import members, open_workspace
from merlin.workspace.options import StudyOptions
from merlin.workspace.used_samples import samples_of_plan

SPEC = """
description: {name: change, description: samples that change}
env: {variables: {N: 4, HIGH: 2, SCALE: 2}}
study:
  - name: sim
    run: {cmd: echo $(X) $(K)}
merlin:
  samples:
    SAMPLES
    column_labels: [X, K]
"""
UNIFORM = SPEC.replace(
    "SAMPLES", "generate: {method: uniform, num: $(N), bounds: {X: [1, $(HIGH)], K: [1, 2]}, seed: 1}"
)
IN_FILE = SPEC.replace("SAMPLES", "file: $(SPECROOT)/s.csv")
COMMAND = SPEC.replace(
    "SAMPLES",
    "generate: {cmd: python3 $(SPECROOT)/make.py $(MERLIN_INFO)/s.npy $(N)}\n    file: $(MERLIN_INFO)/s.npy",
)
MAKE = (
    "import sys, numpy as np\nnp.save(sys.argv[1], np.random.rand(int(sys.argv[2]), 2))\n"  # without a seed
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    (home.folder / "s.csv").write_text("1,10\n2,20\n3,30\n")
    (home.folder / "more.csv").write_text("8,80\n9,90\n")
    (home.folder / "make.py").write_text(MAKE)
    return home


def samples_after(home: Home, study: Path, *more: str) -> str:
    """What an update would change in the samples, in words."""
    found: str = home.ask("plan", "change.yaml", "--update", study, *more)["samples"]
    return found


@pytest.mark.parametrize("suffix", [".csv", ".tab"])
def test_values_of_a_text_file_stay_as_they_are_written(home: Home, suffix: str) -> None:
    rows = ["0.20,007", "1e3,12", "5,6"]
    text, file = IN_FILE.replace(".csv", suffix), home.folder / f"s{suffix}"
    lines = [row.replace(",", " " if suffix == ".tab" else ",") + "\n" for row in rows]
    file.write_text("".join(lines))
    home.write(text)
    study = home.run()
    file.unlink()
    assert samples_of_plan(open_workspace(study)).text_rows(1, 3) == [("1e3", "12"), ("5", "6")]
    file.write_text("".join(lines[:2]))
    home.run("--update", study, "--yes")
    assert open_workspace(study).samples_may_change
    home.ask("rerun", study, "--step", "sim", "--samples", "0-1", "--yes", "--local")
    said = sorted(path.read_text().strip() for path in (study / "sim").glob("*/*.out"))
    assert said == ["0.20 007", "1e3 12"]


def test_a_copy_of_samples_by_an_earlier_version_has_blanks_around_numbers_among_text(home: Home) -> None:
    home.write(IN_FILE)
    (home.folder / "s.csv").write_text("1, 2\n2,x\n3,30\n")
    study = home.run()
    (study / "merlin_info/samples_used.csv").unlink()
    copy = np.array([(1, " 2"), (2, "x"), (3, "31")], [("X", "f8"), ("K", "U2")])
    np.save(study / "merlin_info/samples_used.npy", copy)
    (home.folder / "s.csv").write_text("1, 2\n2,x\n3,30\n4,40\n")
    assert samples_after(home, study) == "1 with other values, 1 new"


def test_an_update_that_was_stopped_adds_the_samples_that_its_command_made_before(home: Home) -> None:
    home.write(COMMAND)
    study = home.run()
    home.write(COMMAND.replace("N: 4", "N: 6"))
    update_alone(home, study)
    assert samples_after(home, study) == "2 new"
    home.run("--update", study, "--yes")
    assert all(member.samples_may_change for member in members(open_workspace(study)))
    rows = [
        member.samples().rows(0, member.plan.samples.num)["X"] for member in members(open_workspace(study))
    ]
    made = np.load(study / "merlin_info/revisions/001/s.npy")
    assert np.concatenate(rows).tolist() == made[:, 0].tolist()
    assert samples_after(home, study) == ""


@pytest.mark.parametrize(
    ("extended", "updated", "words"),
    [
        (("N=6",), ("N=6",), ""),
        (("N=6",), ("N=4",), "2 fewer, among them all of extensions/001"),
        (("N=6", "HIGH=1000"), ("N=6",), "2 with other values"),
        (("N=6", "HIGH=1000"), ("N=6", "HIGH=1000"), "4 with other values"),
    ],
)
def test_samples_of_an_extension_are_those_of_its_own_spec(
    home: Home, extended: tuple[str, ...], updated: tuple[str, ...], words: str
) -> None:
    home.write(UNIFORM)
    study = home.run()
    home.run("--extend", study, "--vars", *extended)
    assert samples_after(home, study, "--vars", *updated) == words


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (UNIFORM, "--new-rows"),
        (IN_FILE, "--new-rows"),
        (UNIFORM, "--samplesfile"),
        (IN_FILE, "--samplesfile"),
        (COMMAND, "--samplesfile"),
        (UNIFORM, "merlin.run"),
        (IN_FILE, "merlin.run"),
    ],
)
def test_samples_that_a_file_has_added_stay_with_those_that_the_spec_gives(
    home: Home, text: str, how: str
) -> None:
    home.write(text)
    study = home.run()
    old = open_workspace(study).samples()
    more = np.array([[8, 80], [9, 90]])
    np.save(home.folder / "all.npy", [*zip(*old.rows(0, old.num).values(), strict=True), *more])
    if how == "merlin.run":
        extend = "import merlin, sys; merlin.run('change.yaml', samples='all.npy', extend=sys.argv[1])"
        run_python(extend, study, cwd=home.folder)
    else:
        file = ("more.csv", how) if how == "--new-rows" else ("all.npy",)
        home.run("--extend", study, "--samplesfile", *file)
    assert len(members(open_workspace(study))) == 2
    os.utime(home.folder / "s.csv")
    assert home.ask("plan", "change.yaml", "--update", study)["is_nothing"]


@pytest.mark.parametrize("how", ["--new-rows", "merlin.run"])
def test_samples_that_new_rows_has_added_stay_when_others_change(home: Home, how: str) -> None:
    home.write(IN_FILE)
    study = home.run()
    if how == "merlin.run":
        rows = "samples=[[8, 80], [9, 90]], extend=sys.argv[1], new_rows=True"
        run_python(f"import merlin, sys; merlin.run('change.yaml', {rows})", study, cwd=home.folder)
    else:
        home.run("--extend", study, "--samplesfile", "more.csv", how)
    (home.folder / "s.csv").write_text("1,10\n2,25\n3,30\n")
    assert samples_after(home, study) == "1 with other values"
    home.run("--update", study, "--yes")
    tables = [member.samples().text_rows(0, 2)[1] for member in members(open_workspace(study))]
    assert tables == [("2", "25"), ("9", "90")] and samples_after(home, study) == ""
    (home.folder / "s.csv").write_text("1,10\n2,25\n")
    assert samples_after(home, study) == "3 fewer, among them all of extensions/001"


def test_samples_that_the_spec_gave_an_extension_go_with_those_of_the_spec(home: Home) -> None:
    rows = ["1,10\n", "2,20\n", "3,30\n", "4,40\n", "5,50\n"]
    for name, num in (("a.csv", 3), ("b.csv", 5)):
        (home.folder / name).write_text("".join(rows[:num]))
    home.write(IN_FILE.replace("/s.csv", "/$(S)").replace("N: 4", "S: a.csv"))
    study = home.run()
    home.run("--extend", study, "--vars", "S=b.csv")
    assert samples_after(home, study, "--vars", "S=s.csv") == "2 fewer, among them all of extensions/001"


def test_samples_of_the_command_line_are_not_those_that_the_spec_makes(home: Home) -> None:
    home.write(UNIFORM)
    study = home.run("--samplesfile", "s.csv")
    assert samples_after(home, study, "--samplesfile", "s.csv") == ""
    assert samples_after(home, study) == "3 with other values, 1 new"


def test_other_samples_take_the_place_in_merlin_info_of_those_before(home: Home) -> None:
    home.write(COMMAND)
    study = open_workspace(home.run())
    home.write(COMMAND.replace("N: 4", "N: 3"))
    spec = load_spec(home.folder / "change.yaml")
    moves = list(sample_moves(plan_update(spec, StudyOptions(), study, UpdateOptions(), home.folder)))
    revision = "merlin_info/revisions/001"
    assert [(move.source, move.target, move.is_link) for move in moves] == [
        ("merlin_info/s.npy", f"{revision}/before/merlin_info/s.npy", False),
        (f"{revision}/samples_used.npy", "merlin_info/s.npy", True),
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tab"])
def test_a_step_reads_other_samples_of_a_method_from_the_text_file_that_the_spec_names(
    home: Home, suffix: str
) -> None:
    text = UNIFORM.replace("generate:", f"file: $(MERLIN_INFO)/s{suffix}\n    generate:")
    home.write(text.replace("$(X) $(K)", f"$(MERLIN_SAMPLE_ID) > id; cat $(MERLIN_INFO)/s{suffix}"))
    study = home.run()
    home.run("--update", study, "--yes", "--vars", "HIGH=9")
    said = {path.read_text().replace(",", " ") for path in study.glob("sim/*/*.out")}
    rows = open_workspace(study).samples().text_rows(0, 4)
    assert [each.split() for each in said] == [[*"#XK", *(value for row in rows for value in row)]]


def test_a_variable_that_a_function_reads_is_told_like_code(home: Home) -> None:
    (home.folder / "model.py").write_text(
        "def draw(inputs, context):\n    return {'y': inputs['X'] * float(context.variables['SCALE'])}\n"
    )
    text = UNIFORM.replace("cmd: echo $(X) $(K)", "function: 'model:draw'")
    home.write(text)
    study = home.run()
    for words in (("SCALE=3",), ("SCALE=3", "HIGH=2")):
        told = home.ask("plan", "change.yaml", "--update", study, "--vars", *words)
        assert told["changed_code"] == {"sim": ["variable SCALE has changed"]}
        home.run("--update", study, "--yes", "--vars", *words)
    assert told["is_nothing"]
    told = home.ask("plan", "change.yaml", "--update", study, "--vars", "SCALE=3", "--changed-code")
    assert [line["to_run"] for line in told["steps"]] == [4]
    home.run("--update", study, "--yes", "--vars", "SCALE=3", "--changed-code")
    assert not home.ask("plan", "change.yaml", "--update", study, "--vars", "SCALE=3", "N=4")["changed_code"]


def test_a_step_finds_other_samples_in_merlin_info_and_those_before_after_undo(home: Home) -> None:
    (home.folder / "make.py").write_text(
        "import sys, numpy as np\nnp.save(sys.argv[1], np.full((int(sys.argv[2]), 2), float(sys.argv[3])))\n"
    )
    show = "import numpy; print(numpy.load('$(MERLIN_INFO)/s.npy')[0, 0])"
    post = f'  - name: post\n    run: {{depends: [sim_*], cmd: "python3 -c \\"{show}\\""}}\nmerlin:'
    home.write(COMMAND.replace("$(N)}", "$(N) $(HIGH)}").replace("merlin:", post))
    study, said = home.run(), []
    for high in ("7", "9"):
        home.run("--update", study, "--yes", "--vars", f"HIGH={high}")
        said.append(next((study / "post").glob("*.out")).read_text().strip())
    assert said == ["7.0", "9.0"]
    for high in (7, 2):
        home.ask("history", study, "--undo")
        assert np.load(study / "merlin_info/s.npy")[0, 0] == high
