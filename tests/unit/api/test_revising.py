"""Updates of a study whose ledger is made by hand: what the new revision remembers, and who has to wait for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from merlin.api.revising import apply_update, held
from merlin.api.updating import UpdateOptions, plan_update
from merlin.errors import WorkspaceError
from merlin.ledger.collect_again import badly_collected
from merlin.ledger.records import RESET, ChunkRecord, Failure, RangeRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.spec.load import Spec, load_spec
from merlin.workspace.directory import Workspace, lock_file, open_workspace
from merlin.workspace.extend import LOCK_NAME, prepare_extension
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import prepare_study

SPEC = """
description: {{name: small, description: a study that gets smaller}}
study:
- name: sim
  run: {{cmd: "echo $(X) > out.txt"}}
merlin:
  samples:
    column_labels: [X]
    generate: {{method: sobol, num: {num}, bounds: {{X: [0, 1]}}, seed: 5}}
"""
OK, FAILED, SKIPPED = int(Outcome.OK), int(Outcome.FAILED), int(Outcome.SKIPPED)


def spec_of(folder: Path, num: int) -> Spec:
    (folder / "s.yaml").write_text(SPEC.format(num=num))
    return load_spec(folder / "s.yaml")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return prepare_study(spec_of(tmp_path, 12))


def update(study: Workspace, num: int) -> Workspace:
    spec = spec_of(study.path.parent, num)
    with held(study):
        apply_update(plan_update(spec, StudyOptions(), study, UpdateOptions()))
    return open_workspace(study.path)


def record(lo: int, outcomes: list[int], *failures: Failure) -> ChunkRecord:
    num = len(outcomes)
    values, seconds = np.array(outcomes, np.uint8), np.ones(num, np.float32)
    return ChunkRecord(
        instance="sim", lo=lo, hi=lo + num, started=1.0, outcomes=values, seconds=seconds, failures=failures
    )


def test_why_tasks_failed_is_known_after_the_samples_behind_them_have_gone(study: Workspace) -> None:
    lines = "warning: it may fail\nno convergence in step 7"
    bad = [Failure(task=t, cause="exit code 3", exit_code=3, tail=lines) for t in (1, 2, 3, 4, 11)]
    others = (
        Failure(task=5, cause="field 'y': key 'y' is missing"),
        Failure(task=6, cause="exit code 101", exit_code=101),
    )
    with LedgerWriter(study.ledger_dir, "w0", session=next_session(study.ledger_dir, 1.0)) as ledger:
        ledger.append(record(0, [OK, *[FAILED] * 6, OK, OK, OK, OK, FAILED], *bad, *others))
    with LedgerWriter(study.ledger_dir, "w1", session=next_session(study.ledger_dir, 2.0)) as ledger:
        again = (RangeRecord(instance="sim", lo=a, hi=b, outcome=RESET) for a, b in ((0, 1), (7, 9)))
        ledger.append(*again, record(7, [FAILED], Failure(task=7, cause="timeout", exit_code=-9)))
    before = replay(study.ledger_dir, study.plan)
    smaller = update(study, 9)
    after = replay(smaller.ledger_dir, smaller.plan)
    assert list(after.outcomes["sim"].runs()) == list(before.outcomes["sim"].runs(0, 9))
    assert [value for _, _, value in after.outcomes["sim"].runs()].count(NO_OUTCOME) == 2
    assert causes(after) == [each for each in causes(before) if each[0] < 9]
    assert badly_collected(after) == {"sim": [(5, 6)]}


@pytest.mark.parametrize(
    ("begun", "edited", "absent"),
    [
        ("sim/00", "1,7,8,4,5,6", ["sim/01", "sim/02"]),
        ("", "1,7,8,4,5,6", ["sim"]),
        ("sim/00", "1,2,3,4", ["sim/04", "sim/05"]),
        ("", "1,2,3,4", ["sim"]),
    ],
)
def test_of_a_step_that_has_not_begun_an_update_remembers_one_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, edited: str, absent: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SPEC.format(num=1).partition("    generate")[0] + "    file: s.csv\n"
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "s.csv").write_text("1\n2\n3\n4\n5\n6\n")
    study = prepare_study(load_spec(tmp_path / "s.yaml"))
    (study.path / begun).mkdir(parents=True, exist_ok=True)
    (tmp_path / "s.csv").write_text(edited.replace(",", "\n"))
    with held(study):
        planned = plan_update(load_spec(tmp_path / "s.yaml"), StudyOptions(), study, UpdateOptions())
        assert list(apply_update(planned).absent) == absent


def causes(state: Replay) -> list[tuple[int, str, int, str]]:
    found = (each.failure for each in state.failures())
    return sorted((each.task, each.cause, each.exit_code, each.signature) for each in found)


def test_an_update_and_an_extension_at_once(study: Workspace) -> None:
    with lock_file(study.info / LOCK_NAME, "mine"), pytest.raises(WorkspaceError, match="being extended"):
        update(study, 9)
    smaller = update(study, 9)
    longer = spec_of(study.path.parent, 20)
    with held(smaller), pytest.raises(WorkspaceError, match="or updated by another command"):
        prepare_extension(longer, StudyOptions(), smaller)
    with pytest.raises(WorkspaceError, match="was updated a moment ago; give the command again"):
        prepare_extension(longer, StudyOptions(), study)
    assert prepare_extension(longer, StudyOptions(), smaller) is not None
