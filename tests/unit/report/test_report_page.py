"""The page of a study: what it says, in whatever state the study is, and that it stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from reported_study import FAILED, OK, SPEC, ReadPage, add_training_run, chunk, event, fill, prepare, write

from merlin.report import room
from merlin.report.page import report_html, write_report
from merlin.report.samples import summarise_samples
from merlin.report.sections.reproduce import without_update
from merlin.spec.load import load_spec
from merlin.workspace.directory import Workspace
from merlin.workspace.extend import prepare_extension
from merlin.workspace.options import StudyOptions

HOSTILE = '</pre><script>alert("tail")</script><img src=x onerror=alert(1)>'


@pytest.fixture
def study(tmp_path: Path) -> Workspace:
    workspace = prepare(tmp_path)
    fill(workspace, tail=HOSTILE)
    return workspace


def test_the_page_stands_alone_and_runs_nothing(study: Workspace) -> None:
    add_training_run(study.path / "judge" / "run")
    text = report_html(study)
    page = ReadPage(text)
    assert "script" not in page.tags and not page.handlers
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert page.sources and all(source.startswith("data:image/") for source in page.sources)
    assert "default-src 'none'" in text and not re.search(r"url\((?!#)|@import", text)
    assert len(set(page.ids)) == len(page.ids)
    assert "nozzle" not in text and HOSTILE.splitlines()[-1] in page.words


def test_logs_that_are_no_text_do_not_end_the_report(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    fill(workspace, tail="bytes \udcff\udcfe and \x00\x1b[31mred")
    out = write_report(workspace, tmp_path / "report.html")
    assert "bytes ?? and" in out.read_text(encoding="utf-8")


def test_what_was_planned_is_what_became_of_it(study: Workspace) -> None:
    words = " ".join(ReadPage(report_html(study)).words.split())
    assert "planned 17 = ok 13 + failed 3 + skipped 1 + missing 0" in words
    assert "13 of 17" not in words and "16 of 17 tasks" in words
    assert "launch, exit code 3: 3 tasks" in words


def test_it_says_where_the_study_comes_from_and_how_to_run_it_again(study: Workspace) -> None:
    words = ReadPage(report_html(study)).words
    for known in (
        study.plan.study_id,
        study.plan.spec_digest,
        str(study.path),
        "stopped: interrupted",
        "on node2",
    ):
        assert known in words
    assert f"merlin restart {study.path} --failed" in words
    assert "# flights & their judges" in words, "the spec is there as it was written"


def test_it_says_what_to_do_if_the_study_does_not_go_on(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    write(
        workspace,
        event("run_started", 0, workers=1),
        chunk("launch/FUEL.solid", 0, [FAILED] * 2, at=1),
        event("run_stopped", 6, reason="max_failures: 2 of 8 tasks of step 'launch' failed"),
    )
    words = " ".join(ReadPage(report_html(workspace)).words.split())
    assert "it has stopped: max_failures: 2 of 8 tasks" in words
    assert "Or finish this one. What failed would stop it again." in words
    assert f"update the study:merlin run SPEC --update {workspace.path}" in words


@pytest.mark.parametrize(
    ("given", "anew"),
    [
        ("merlin run rockets.yaml --vars A=1 B=2 -y", "merlin run rockets.yaml --vars A=1 B=2"),
        ("merlin run rockets.yaml --update w_1 --local --yes", "merlin run rockets.yaml --local"),
        (
            "merlin run --update=w_1 --changed-code --keep launch judge rockets.yaml",
            "merlin run rockets.yaml",
        ),
        (
            "merlin run sub/rockets.yaml --update w_1 --keep launch --vars A=1",
            "merlin run sub/rockets.yaml --vars A=1",
        ),
        ("python study.py --update", "python study.py --update"),
    ],
)
def test_what_an_update_has_made_is_made_anew_by_a_run(given: str, anew: str) -> None:
    assert without_update(given, "rockets.yaml") == anew


def test_an_extended_study_is_reproduced_with_its_extensions(study: Workspace) -> None:
    more = SPEC.replace("num: 8", "num: 12")
    (study.path.parent / "rockets.yaml").write_text(more)
    spec = load_spec(study.path.parent / "rockets.yaml", variables={"OUTPUT_PATH": str(study.path.parent)})
    extension = prepare_extension(spec, StudyOptions(), study)
    assert extension is not None
    about = json.loads((extension.info / "provenance.json").read_text())
    about |= {"command": "merlin run rockets.yaml --extend rockets_1", "directory": "/home/me"}
    (extension.info / "provenance.json").write_text(json.dumps(about))
    words = " ".join(ReadPage(report_html(study)).words.split())
    assert "cd /home/me merlin run rockets.yaml --extend rockets_1" in words
    assert "24 tasks in 2 instances" in words


def test_columns_and_parameters_have_their_values(study: Workspace) -> None:
    words = ReadPage(report_html(study)).words
    found = summarise_samples([study])
    assert found is not None and [column.name for column in found.columns] == ["THRUST", "MASS"]
    thrust = study.samples().rows(0, 8)["THRUST"]
    assert (found.columns[0].low, found.columns[0].high) == (thrust.min(), thrust.max())
    assert sum(found.columns[0].bars) == 8
    assert "solid, liquid" in words


def test_a_study_that_has_not_begun_has_a_report(tmp_path: Path) -> None:
    words = ReadPage(report_html(prepare(tmp_path))).words
    assert "None has run so far" in words and "planned 17 = ok 0 + failed 0 + skipped 0 + missing 17" in words
    assert "Over time" not in words and "Failures" not in words


def test_a_study_without_samples_and_one_step_has_a_report(tmp_path: Path) -> None:
    spec = (
        'description: {name: one, description: d}\nstudy: [{name: a, description: d, run: {cmd: "true"}}]\n'
    )
    workspace = prepare(tmp_path, spec)
    write(workspace, chunk("a", 0, [OK], at=0))
    words = ReadPage(report_html(workspace)).words
    assert "every task ended ok" in words and "Samples and parameters" not in words


def test_a_study_whose_samples_are_gone_says_so(study: Workspace) -> None:
    for file in study.info.glob("samples*"):
        file.unlink()
    assert "The samples cannot be read" in ReadPage(report_html(study)).words


def test_text_columns_have_their_most_frequent_values(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("1,helium\n2,argon\n3,helium\n")
    samples = "merlin: {samples: {file: $(SPECROOT)/s.csv, column_labels: [N, GAS]}}\n"
    spec = 'description: {name: gas, description: d}\nstudy: [{name: a, description: d, run: {cmd: "$(N) $(GAS)"}}]\n'
    found = summarise_samples([prepare(tmp_path, spec + samples)])
    assert found is not None and found.columns[1].words == ("helium", "argon")
    assert found.columns[0].mean == pytest.approx(2.0) and not np.isfinite(found.columns[1].low)


def test_a_trained_model_is_shown_by_its_evaluation(study: Workspace) -> None:
    add_training_run(study.path / "judge" / "run")
    text = report_html(study)
    words = ReadPage(text).words
    for known in (
        "Trained in judge/run",
        "surrogate<1>",
        "0.987",
        "Learning curves",
        "True against predicted scalars",
    ):
        assert known in words
    assert "data:image/svg+xml,%3Csvg" in text
    without = ReadPage(report_html(study, pictures=False)).words
    assert "Learning curves" not in without and "0.987" in without


def test_pictures_that_find_no_room_are_named(study: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    add_training_run(study.path / "judge" / "run")
    monkeypatch.setattr(room.Room, "takes", lambda self, html, title: bool(self.left_out.append(title)))
    words = " ".join(ReadPage(report_html(study)).words.split())
    assert "No room was left for: True against predicted scalars, Learning curves" in words


def test_the_file_is_written_whole_and_its_path_returned(study: Workspace, tmp_path: Path) -> None:
    steps: list[str] = []
    out = write_report(study, tmp_path / "new" / "report.html", on_step=steps.append)
    assert out.read_text().endswith("</html>\n") and steps == ["ledger"]
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
