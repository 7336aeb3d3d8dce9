from __future__ import annotations

from pathlib import Path

import pytest
from growing_study import FAILED, OK, SKIPPED, append, chunk, make_study
from hypothesis import given
from hypothesis import strategies as st

from merlin.ledger.records import RESET, RangeRecord
from merlin.ledger.replay import replay
from merlin.views.study_page import StudyView
from merlin.views.throughput import NUM_POINTS, Throughput, ThroughputBars
from merlin.workspace.directory import Workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("throughput")


def counted_at_once(study: Workspace, num_points: int = NUM_POINTS) -> Throughput:
    bars = ThroughputBars({i.id: i.step for i in study.plan.instances}, num_points)
    bars.add(replay(study.ledger_dir, study.plan).entries())
    return bars.throughput()


@given(
    ends=st.lists(st.tuples(st.floats(1e9, 1e9 + 1e7), st.integers(1, 4)), max_size=20),
    num_points=st.integers(2, 30),
)
def test_every_end_is_in_one_interval_however_long_the_study_was(
    tmp_path_factory: pytest.TempPathFactory, ends: list[tuple[float, int]], num_points: int
) -> None:
    study = make_study(tmp_path_factory.mktemp("study"))
    append(study, *(chunk(0, [OK, FAILED, SKIPPED, OK][:num], started=at - 2.0) for at, num in ends))
    found = counted_at_once(study, num_points)
    bars = found.steps["sim"]
    assert len(bars.ok) == len(bars.failed) <= num_points
    assert len(found.steps["post"].ok) == len(bars.ok)
    assert sum(bars.ok) == sum([OK, FAILED, SKIPPED, OK][:num].count(OK) for _, num in ends)
    assert sum(bars.failed) == sum(num >= 2 for _, num in ends)
    for at, _ in ends:
        place = int((at - found.start) // found.width_s)
        assert bars.ok[place] > 0


def test_what_is_added_record_by_record_is_what_is_counted_at_once(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study_20260101-000000")
    view = StudyView(study.path)
    assert view.throughput().steps["sim"].ok == ()
    for i in range(12):
        append(
            study,
            chunk(i, [OK], started=1000.0 + 3.7**i),
            RangeRecord(instance="post", lo=0, hi=5, outcome=RESET),
        )
        assert view.throughput() == counted_at_once(study)


def test_tasks_of_a_long_record_are_spread_over_its_time(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study_20260101-000000")
    append(study, chunk(0, [OK] * 8, started=1000.0, elapsed_s=4.0))
    found = counted_at_once(study)
    ok = found.steps["sim"].ok
    assert sum(ok) == 8
    assert max(ok) == 1  # two a second
