"""Everything wrong with a study is found at once, in the spec and in the samples that it names."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.errors import SpecError
from merlin.workspace.checking import check_study, load_checked
from merlin.workspace.options import StudyOptions
from merlin.workspace.samples import MAX_DIAGNOSTICS
from merlin.workspace.sampling import Design, write_samples

SPEC = """
description: {name: s, description: d}
study:
- name: a
  description: d
  run: {cmd: "echo $(X0) $(X1)"}
merlin:
  samples:
    file: FILE
    column_labels: [X0, X1]
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def check(file, text=SPEC, samples_file=None):
        (tmp_path / "s.yaml").write_text(text.replace("FILE", file))
        return check_study("s.yaml", {}, StudyOptions(samples_file=samples_file))

    return check


def places(findings):
    return [(d.file.rpartition("/")[2], d.line, d.col, d.code) for d in findings]


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("nan.csv", "1,2\n3, nan\ninf,4\n", [(2, 3, "samples-not-finite"), (3, 1, "samples-not-finite")]),
        ("ragged.tab", "1 2\n3\n nan 2\n", [(2, 1, "samples-ragged"), (3, 2, "samples-not-finite")]),
        ("gap.csv", "1,2\n3,\n", [(2, 3, "samples-empty-value")]),
        ("titles.csv", "# a comment\nX1,X0\n3,4\n", [(2, 1, "samples-header"), (2, 4, "samples-header")]),
        ("latin1.csv", "1,2\n\xe9,3\n", [(2, 1, "samples-encoding")]),
        ("wide.csv", "\n1,2,3\n", [(2, 1, "samples-columns")]),
    ],
)
def test_rows_that_cannot_be_samples_show_their_line(check, tmp_path, name, content, found):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    plan, findings = check(name)
    assert plan is None
    assert places(findings) == [(name, *place) for place in found]


def test_a_title_that_is_no_label_is_told_by_its_line_in_the_file(check, tmp_path):
    (tmp_path / "titles.csv").write_text("# a comment\nX1,X0\n3,4\n")
    _, findings = check("titles.csv")
    assert (
        findings[0].message == "line 2, column X0: 'X1' is not a number; the other values of this column are"
    )


@pytest.mark.parametrize(
    ("name", "array", "code"),
    [
        ("nan.npy", [[1.0, np.nan]], "samples-not-finite"),
        ("wide.npy", np.zeros((4, 3)), "samples-columns"),
        ("empty.npy", np.zeros((0, 2)), "samples-empty"),
        ("absent.npy", None, "samples-missing"),
    ],
)
def test_a_file_without_lines_is_blamed_where_the_spec_names_it(check, tmp_path, name, array, code):
    if array is not None:
        np.save(tmp_path / name, array)
    plan, findings = check(name)
    assert plan is None
    assert places(findings) == [("s.yaml", 9, 11, code)]
    assert name in findings[0].message


def test_bad_samples_are_told_with_the_other_errors_of_the_spec(check, tmp_path):
    (tmp_path / "s.csv").write_text("1,2\nnan,4\n")
    broken = SPEC.replace("description: d\n  run", "descriptoin: d\n  run").replace("$(X0)", "$(X9)")
    plan, findings = check("s.csv", broken)
    assert plan is None
    assert {d.code for d in findings} == {"unknown-key", "token", "samples-not-finite"}
    with pytest.raises(SpecError) as caught:
        load_checked("s.yaml", {}, StudyOptions())
    assert caught.value.diagnostics == findings


def test_samples_of_the_command_line_are_checked_instead(check, tmp_path):
    (tmp_path / "s.csv").write_text("1,2\n")
    (tmp_path / "mine.csv").write_text("1,2\n3,inf\n")
    plan, findings = check("s.csv", samples_file="mine.csv")
    assert plan is None
    assert places(findings) == [("mine.csv", 2, 3, "samples-not-finite")]
    assert check("s.csv")[0] is not None


def test_names_among_the_samples_are_no_titles(check, tmp_path):
    (tmp_path / "s.csv").write_text("Ann,1\nNan,2\n")
    plan, findings = check("s.csv")
    assert plan is not None and findings == []


def test_no_more_findings_than_a_screen(check, tmp_path):
    (tmp_path / "s.csv").write_text("nan,2\n" * 1000)
    assert len(check("s.csv")[1]) == MAX_DIAGNOSTICS


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("sobol, num: 8", ["8 samples, and s.csv has 2"]),
        ("sobol, num: 2", []),
        ("sobol, num: 2, bounds: {X0: [0, 1], X1: [0, 1]}", ["other values than s.csv has"]),
        ("uniform, num: 2, seed: 7", []),
        ("uniform, num: 2, seed: 8", ["other values than s.csv has"]),
        ("latin_hypercube, num: 2", ["other values than s.csv has"]),
    ],
)
def test_a_file_that_is_used_in_place_of_a_method_is_a_warning_if_it_has_other_rows(
    check, tmp_path, method, words
):
    bounds = "" if "bounds" in method else ", bounds: {X0: [2, 3], X1: [4, 5]}"
    text = SPEC + f"    generate: {{method: {method}{bounds}}}\n"
    assert check("s.csv", text)[1] == []  # made when the study runs
    design = Design(method="uniform", num=2, bounds={"X0": (2, 3), "X1": (4, 5)}, seed=7)
    write_samples(tmp_path / "s.csv", design, ("X0", "X1"))
    plan, found = check("s.csv", text)
    assert plan is not None
    assert [(d.severity, d.line, d.code) for d in found] == [
        ("warning", 11, "samples-generate") for _ in words
    ]
    assert all(word in d.message for d, word in zip(found, words, strict=True))


def test_a_file_beside_the_spec_is_found_by_specroot(check, tmp_path, monkeypatch):
    (tmp_path / "s.csv").write_text("1,2\n")
    assert check("s.csv")[0] is not None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _, findings = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert "$(SPECROOT)/s.csv" in findings[0].hint


GENERATED = """
description: {name: s, description: d}
env: {variables: {MANY: 3}}
study:
- name: a
  description: d
  run: {cmd: "echo $(SIZE) $(SIZE.name) $(SIZE.label)"}
"""
GENERATOR = """
from maestrowf.datastructures.core import ParameterGenerator

def get_custom_generator(env, **kwargs):
    made = ParameterGenerator()
    many = int(env.find("MANY").value) + int(kwargs.get("MORE", 0))
    made.add_parameter("SIZE", list(range(many)), "S.%%", "Size of it")
    return made
"""


def test_a_generator_may_make_parameters_that_the_spec_does_not_list(tmp_path):
    (tmp_path / "s.yaml").write_text(GENERATED)
    (tmp_path / "pgen.py").write_text(GENERATOR)
    options = StudyOptions(pgen=str(tmp_path / "pgen.py"), pargs=("MORE:2",))
    plan, findings = check_study(tmp_path / "s.yaml", {}, options)
    assert findings == [] and plan is not None
    assert [i.command for i in plan.instances] == [f"echo {n} Size of it S.{n}" for n in range(5)]
    assert load_checked(tmp_path / "s.yaml", {}, options)
    plan, findings = check_study(tmp_path / "s.yaml", {}, StudyOptions())
    assert plan is None and {d.text for d in findings} == {"$(SIZE)", "$(SIZE.name)", "$(SIZE.label)"}


def test_a_generator_that_fails_is_told_with_the_rest(tmp_path):
    (tmp_path / "s.yaml").write_text(GENERATED.replace("echo", "echo $(WRONG)"))
    (tmp_path / "pgen.py").write_text("def get_custom_generator(env): raise OSError('no table')\n")
    plan, findings = check_study(tmp_path / "s.yaml", {}, StudyOptions(pgen=str(tmp_path / "pgen.py")))
    assert plan is None
    assert {d.code for d in findings} == {"token", "pgen"}
