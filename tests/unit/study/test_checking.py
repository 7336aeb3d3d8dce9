"""Everything wrong with a study is found at once, in the spec and in the samples that it names."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.errors import SpecError
from merlin.study.checking import check_study, load_checked
from merlin.study.prepare import StudyOptions
from merlin.study.samples import MAX_DIAGNOSTICS

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
