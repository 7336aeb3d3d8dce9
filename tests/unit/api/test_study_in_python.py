"""`merlin.Study` and what `merlin.run` refuses, without running anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import merlin
from merlin.api.run import _by_labels, _samples_file, _text
from merlin.errors import SpecError, UsageError, WorkspaceError
from merlin.ledger.records import ChunkRecord, Failure
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import Outcome
from merlin.spec.load import load_spec
from merlin.workspace.directory import Workspace
from merlin.workspace.holding import lock
from merlin.workspace.prepare import prepare_study

SPEC = """\
description: {name: hello, description: d}
study: [{name: greet, description: d, run: {cmd: "echo $(X)"}}]
merlin:
  samples:
    generate: {method: grid, num: [4], bounds: {X: [0, 3]}}
    column_labels: [X]
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Three tasks are ok, one has failed."""
    (tmp_path / "hello.yaml").write_text(SPEC)
    made = prepare_study(load_spec(tmp_path / "hello.yaml", variables={"OUTPUT_PATH": str(tmp_path)}))
    record = ChunkRecord(
        instance="greet", lo=0, hi=4, started=1000.0, elapsed_s=2.0, seconds=np.full(4, 0.5, np.float32),
        outcomes=np.array([Outcome.OK, Outcome.FAILED, Outcome.OK, Outcome.OK], np.uint8),
        failures=(Failure(task=1, cause="exit code 3", exit_code=3),),
    )  # fmt: skip
    with LedgerWriter(
        made.ledger_dir, "w0", session="run1", study_id=made.plan.study_id, sync=False
    ) as writer:
        writer.append(record)
    return made


def test_a_study_says_how_far_it_is(workspace: Workspace) -> None:
    study = merlin.Study(str(workspace.path))
    page = study.status()
    assert (study.name, study.path) == ("hello", workspace.path)
    assert (page.state, page.totals.ok, page.totals.failed) == ("failed", 3, 1)
    assert repr(study) == f"<merlin.Study hello: failed, 3 of 4 tasks ok, {workspace.path}>"
    assert study.wait(timeout=0) is study


def test_a_study_is_over_only_if_a_second_look_says_so(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = merlin.Study(workspace.path)
    looks = [replace(study.status(), state=state) for state in ("stopped", "running")]
    monkeypatch.setattr(study, "status", lambda: looks.pop(0))
    with pytest.raises(TimeoutError, match="is running"):
        study.wait(timeout=0)


def test_failures_and_tasks_are_tables(workspace: Workspace) -> None:
    study = merlin.Study(workspace.path)
    assert [(group.step, group.count, group.cause) for group in study.failures()] == [
        ("greet", 1, "exit code 3")
    ]
    assert study.tasks().shape[0] == 4
    failed = study.tasks("outcome = 'failed' or X > 9")
    assert failed[["sample_id", "exit_code", "X"]].to_numpy().tolist() == [[1, 3, 1.0]]
    assert failed.dtypes["started"].kind == "M" and failed.dtypes["seconds"].kind == "f"
    counts = study.sql("select outcome, count(*) as num from tasks group by outcome order by num")
    assert counts.to_dict("list") == {"outcome": ["failed", "ok"], "num": [1, 3]}


@pytest.mark.parametrize("where", ["nonsense", "1) union select (1", "x; drop table tasks", ""])
def test_a_condition_that_cannot_be_decided_is_refused(workspace: Workspace, where: str) -> None:
    study = merlin.Study(workspace.path)
    if not where:
        assert len(study.tasks(where)) == 4
        return
    with pytest.raises(UsageError):
        study.tasks(where)


def test_a_study_without_data_says_so(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no finished data set"):
        _ = merlin.Study(workspace.path).data


def test_a_folder_that_is_no_workspace_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="not a workspace"):
        merlin.Study(tmp_path)


def test_steps_of_a_restart_are_checked_before_anything_runs(workspace: Workspace) -> None:
    study = merlin.Study(workspace.path)
    with pytest.raises(UsageError, match="failed=True"):
        study.restart(steps=["greet"])
    with pytest.raises(UsageError, match="no step 'nobody'; it has: greet"):
        study.restart(failed=True, steps=["nobody"])


def test_waiting_for_a_study_that_runs_ends_with_the_time_given(workspace: Workspace) -> None:
    study = merlin.Study(workspace.path)
    with lock(workspace):
        with pytest.raises(TimeoutError, match="is running after 0 s"):
            study.wait(timeout=0)
        with pytest.raises(WorkspaceError, match="in this process"):
            study.cancel()


def test_nothing_is_written_for_a_wrong_spec(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text(SPEC.replace("cmd:", "comd:"))
    with pytest.raises(SpecError) as raised:
        merlin.run(tmp_path / "hello.yaml", output=tmp_path / "out")
    assert any("comd" in found.message or "comd" in found.text for found in raised.value.diagnostics)
    assert not (tmp_path / "out").exists()


def test_arguments_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text(SPEC)
    for arguments, words in (
        ({"workers": 0}, "at least 1, not 0"),
        ({"workers": 1.5}, "whole number, at least 1, not 1.5"),
        ({"workers": "2"}, "whole number, at least 1, not '2'"),
        ({"extend": tmp_path, "output": tmp_path}, "stays where it is"),
        ({"samples": [[1.0]], "new_rows": True}, "give both"),
        ({"samples": np.arange(3.0)}, r"shape \(3,\)"),
        ({"samples": np.ma.masked_less([[0.0], [1.0]], 0.5)}, "masked values"),
        ({"samples": pd.DataFrame({"Y": [1.0], "Z": [2.0]})}, "no column X; its columns are: Y, Z"),
    ):
        with pytest.raises(UsageError, match=words):
            merlin.run(tmp_path / "hello.yaml", **arguments)
    (tmp_path / "dry.yaml").write_text(SPEC + "batch: {type: local, dry_run: true}\n")
    with pytest.raises(UsageError, match="dry_run"):
        merlin.run(tmp_path / "dry.yaml", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_of_variables_are_written_as_they_would_be_typed() -> None:
    assert [_text(value) for value in (5, 0.5, True, "a b", Path("/x"))] == ["5", "0.5", "true", "a b", "/x"]


def test_an_array_of_samples_becomes_a_file_for_as_long_as_it_is_needed(tmp_path: Path) -> None:
    with _samples_file([[1.0, 2.0], [3.0, 4.0]]) as file:
        assert file is not None and np.load(file).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert not Path(file).exists()
    with _samples_file(tmp_path / "s.csv") as given:
        assert given == str(tmp_path / "s.csv")


@pytest.mark.parametrize("columns", [["LENGTH", "ANGLE"], ["ANGLE", "further", "LENGTH"], [0, 1]])
def test_the_columns_of_a_data_frame_are_found_by_their_names(tmp_path: Path, columns: list) -> None:
    (tmp_path / "hello.yaml").write_text(SPEC.replace("column_labels: [X]", "column_labels: [LENGTH, ANGLE]"))
    known = {
        "LENGTH": [1.0, 2.0],
        "ANGLE": [30.0, 40.0],
        "further": [5.0, 6.0],
        0: [1.0, 2.0],
        1: [30.0, 40.0],
    }
    frame = pd.DataFrame({name: known[name] for name in columns})
    with _samples_file(_by_labels(frame, tmp_path / "hello.yaml", {})) as file:
        assert file is not None and np.load(file).tolist() == [[1.0, 30.0], [2.0, 40.0]]


def test_samples_of_the_caller_are_not_named_by_a_file_that_is_gone(
    workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"^samples: error: 1 samples.*\n.*new_rows=True"):
        merlin.run(tmp_path / "hello.yaml", samples=np.array([[9.0]]), extend=workspace.path)


def test_names_of_the_package_are_known_without_being_loaded() -> None:
    assert {"run", "Study", "open_shards"} <= set(dir(merlin))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = merlin.nothing
