"""The time at work: nothing of the work is lost, pauses are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported_study import FAILED, OK, chunk, fill, prepare, write

from merlin.ledger.replay import replay
from merlin.report.activity import Activity, Span, _joined, activity
from merlin.report.drawings.timeline import draw_timeline


def activity_of(folder: Path, *records: object) -> Activity | None:
    workspace = prepare(folder)
    if records:
        write(workspace, *records)
    return activity([(workspace.plan, replay(workspace.ledger_dir, workspace.plan))])


def test_a_study_that_has_not_begun_has_no_time_at_work(tmp_path: Path) -> None:
    assert activity_of(tmp_path) is None


def test_workers_and_tasks_add_up_to_what_the_ledger_has(tmp_path: Path) -> None:
    found = activity_of(
        tmp_path,
        chunk("launch/FUEL.solid", 0, [OK] * 3 + [FAILED], at=0, elapsed_s=5.0),
        chunk("launch/FUEL.liquid", 0, [OK] * 4, at=3, elapsed_s=5.0),
        chunk("judge", 0, [OK], at=9, elapsed_s=0.5),
    )
    assert found is not None
    assert list(found.steps) == ["launch", "judge"]
    launch = found.steps["launch"]
    assert (launch.ok.sum(), launch.failed.sum()) == pytest.approx((7, 1))
    assert launch.busy.sum() * found.width_s == pytest.approx(10.0)
    assert found.busy.max() == pytest.approx(2.0)
    assert found.length_s == pytest.approx(9.5)


def test_a_night_between_two_runs_is_a_pause_that_is_not_drawn(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    fill(workspace)
    found = activity([(workspace.plan, replay(workspace.ledger_dir, workspace.plan))])
    assert found is not None
    assert len(found.spans) == 2 and found.length_s == pytest.approx(12.0)
    assert "8 h 19 min pause" in draw_timeline(found)


def test_a_study_that_is_alive_is_drawn_until_now(tmp_path: Path) -> None:
    workspace = prepare(tmp_path)
    write(workspace, chunk("judge", 0, [OK], at=0, elapsed_s=1.0))
    state = replay(workspace.ledger_dir, workspace.plan)
    (last,) = [entry.header.ended for entry in state.entries()]
    found = activity([(workspace.plan, state)], until=last + 30)
    assert found is not None and found.length_s == pytest.approx(31.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)), min_size=1, max_size=30), st.floats(1.0, 200.0)
)
def test_spans_hold_all_times_and_are_as_far_apart_as_a_pause_is_long(
    pairs: list[tuple[float, float]], pause_s: float
) -> None:
    times = np.array([(start, start + length) for start, length in pairs])
    spans = _joined(times, pause_s)
    assert all(any(span.start <= a and b <= span.end for span in spans) for a, b in times.tolist())
    gaps = [after.start - before.end for before, after in pairwise(spans)]
    assert all(gap > pause_s - 1e-3 for gap in gaps)


def test_a_span_has_a_length_however_short_its_work_was() -> None:
    assert _joined(np.array([[5.0, 5.0]]), 60.0) == (Span(start=5.0, end=5.001),)
