"""Text of the samples that a shell would act on never gets into a script."""

from __future__ import annotations

import csv
import subprocess

import numpy as np
import pytest

from merlin.errors import SamplesError
from merlin.spec.load import load_spec
from merlin.workspace.checking import check_study
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_only, prepare_study

HOSTILE = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "; touch PWNED",
    "x\ntouch PWNED",
    "x\nEOF\ntouch PWNED",
    "| touch PWNED",
    "& touch PWNED",
    "${IFS}",
    "<(touch PWNED)",
    "\\",
    "*",
    "~root",
    "x # y",
    "!!",
    "x\x00y",
    "x\u2028y",
]
SCRIPTS = {
    "unquoted": "echo $(NAME)",
    "assignment": "V=$(NAME)",
    "single": "echo '$(NAME)'",
    "double": 'echo "$(NAME)"',
    "here": "cat <<EOF\n$(NAME)\nEOF",
    "quoted here": "cat <<'EOF'\n$(NAME)\nEOF",
    "comment": "true # $(NAME)",
    "vector": "echo $(MERLIN_SAMPLE_VECTOR)",
    "variable": "echo $(INNER)",
}
SPEC = """
description: {name: s, description: d}
env: {variables: {INNER: "<$(NAME)>"}}
study:
- name: hello
  run:
    cmd: |
COMMAND
    shell: SHELL
merlin:
  samples:
    file: s.csv
    column_labels: [X, NAME, OTHER]
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(command, names, shell="/bin/bash"):
        lines = "\n".join(f"      {line}" for line in command.splitlines())
        (tmp_path / "s.yaml").write_text(SPEC.replace("COMMAND", lines).replace("SHELL", shell))
        with open("s.csv", "w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([[1.5, n, "$(unused)"] for n in names])
        return tmp_path / "s.yaml"

    return make


def findings(spec):
    plan, found = check_study(spec, {}, StudyOptions())
    assert (plan is None) == bool(found)
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=SCRIPTS)
@pytest.mark.parametrize("value", HOSTILE, ids=map(ascii, HOSTILE))
def test_hostile_text_is_refused_wherever_a_script_has_it(study, tmp_path, script, value):
    spec = study(SCRIPTS[script], ["Ada", value])
    if script == "vector":
        spec.write_text(spec.read_text().replace("[X, NAME, OTHER]", "[X, NAME, UNUSED]"))
    found = [d for d in findings(spec) if "column NAME" in d.message]
    assert [(d.code, d.line) for d in found] == [("samples-shell", 2)]
    assert "row 1, column NAME" in found[0].message
    with pytest.raises(SamplesError):
        prepare_study(load_spec(spec))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.csv", "s.yaml"]


@pytest.mark.parametrize("shell", ["python3", "/usr/bin/env python3", "perl", "/bin/sh"])
def test_other_interpreters_are_no_safer(study, shell):
    (found,) = findings(study('print("$(NAME)")', ['" + touch("PWNED") + "'], shell))
    assert "MERLIN_VALUE_NAME" in found.hint


@pytest.mark.parametrize(
    "value", ["Ada", "a_b-c.d", "/data/run.7,b", "50%", "x@y:z=1+2", "Ærø", "45°", "名前"]
)
@pytest.mark.parametrize("script", SCRIPTS, ids=SCRIPTS)
def test_words_and_file_names_are_ordinary(study, script, value):
    command = SCRIPTS[script].replace("$(MERLIN_SAMPLE_VECTOR)", "$(X) $(NAME)")
    assert findings(study(command.replace("$(INNER)", "$(NAME)"), [value])) == []


@pytest.mark.parametrize(
    ("script", "fine"),
    [("double", True), ("single", True), ("here", True), ("unquoted", False), ("assignment", False)],
)
def test_blanks_are_fine_in_quotes(study, script, fine):
    found = findings(study(SCRIPTS[script], ["x", "Ada Lovelace"]))
    assert [d.hint for d in found] == ([] if fine else ['write "$(NAME)" in quotes'])


@pytest.mark.parametrize("value", ["1", " 2.5", "-1e-5", "+3", "1_000"])
def test_numbers_stay_as_they_are(study, value):
    assert findings(study("V=$(NAME)", [value, value])) == []


def test_the_environment_variable_may_hold_anything(study, tmp_path):
    hostile = [value for value in HOSTILE if "\0" not in value]
    spec = study('echo "$MERLIN_VALUE_NAME" $(X)', hostile)
    assert findings(spec) == []
    (instance,) = plan_only(load_spec(spec)).instances
    assert instance.per_sample and instance.num_tasks == len(hostile)
    for command in ('echo "$MERLIN_VALUE_NAME"', 'echo "$(NAME)"'):
        (found,) = findings(study(command, ["x\0y"]))
        assert "nor an environment variable can hold it" in found.message and not found.hint


def test_one_use_in_a_script_is_enough_to_be_refused(study):
    assert findings(study('echo "$MERLIN_VALUE_NAME"\necho $(NAME)', ["$(x)"]))


def test_a_step_that_names_a_value_runs_per_sample(study):
    for command, per_sample in (
        ("echo $MERLIN_VALUE_X", True),
        ("python3 -c 'import os; print(os.environ[\"MERLIN_VALUE_X\"])'", True),
        ("echo MERLIN_VALUE_ $MY_MERLIN_VALUE_X", False),
    ):
        (instance,) = plan_only(load_spec(study(command, ["a", "b"]))).instances
        assert instance.per_sample is per_sample, command


def test_a_name_that_two_columns_have_is_refused_if_it_is_used(study):
    spec = study("echo $(X)", ["a"])
    spec.write_text(spec.read_text().replace("NAME, OTHER", "a.b, a-b").replace("<$(NAME)>", ""))
    assert findings(spec) == []
    spec.write_text(spec.read_text().replace("echo $(X)", "echo $MERLIN_VALUE_a_b"))
    (found,) = findings(spec)
    assert "would be the value of a.b and of a-b" in found.message


def test_a_value_of_no_column_is_a_warning(study):
    _, (found,) = check_study(study("echo $MERLIN_VALUE_NAMES", ["a"]), {}, StudyOptions())
    assert (found.severity, found.hint) == ("warning", "did you mean 'MERLIN_VALUE_NAME'?")


def test_made_samples_are_looked_at_before_there_is_a_plan(study, tmp_path):
    spec = study("echo $(NAME)", ["$(touch PWNED)"])
    (tmp_path / "s.csv").rename(tmp_path / "made.csv")
    text = spec.read_text() + "    generate: {cmd: cp made.csv $(MERLIN_INFO)/s.csv}\n"
    spec.write_text(text.replace("file: s.csv", "file: $(MERLIN_INFO)/s.csv"))
    assert findings(spec) == []
    with pytest.raises(SamplesError, match="row 0, column NAME"):
        prepare_study(load_spec(spec))
    assert not list(tmp_path.glob("s_*/merlin_info/plan.json"))


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_text_in_numpy_files_is_looked_at_too(study, tmp_path, dtype):
    spec = study("echo $(NAME)", ["a"])
    np.save("s.npy", np.array([["1", "a", "b"], ["1", "$(x)", "b"]], dtype=dtype))
    spec.write_text(spec.read_text().replace("s.csv", "s.npy"))
    (found,) = findings(spec)
    assert found.line and "s.npy: row 1, column NAME" in found.message
    with pytest.raises(SamplesError):
        prepare_study(load_spec(spec), StudyOptions(samples_file="s.npy"))


def test_every_other_character_is_harmless_to_bash(tmp_path):
    """The characters that are let through, in every position: bash prints them back and runs nothing."""
    value = "".join(map(chr, range(0x21, 0x7F)))
    from merlin.workspace.text_values import _WORD

    value = "".join(c for c in value if _WORD.fullmatch(c))
    for quoted in (value, f"'{value}'", f'"{value}"'):
        done = subprocess.run(
            ["bash", "-c", f"printf '%s' {quoted}"], capture_output=True, text=True, cwd=tmp_path
        )
        assert (done.stdout, done.stderr) == (value, "")
