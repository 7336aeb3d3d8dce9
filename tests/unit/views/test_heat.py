from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from growing_study import (
    FAILED,
    INTERRUPTED,
    NUM,
    OK,
    SKIPPED,
    SOFT_FAILED,
    append,
    chunk,
    extend_study,
    make_study,
    words,
)
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import WorkspaceError
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME
from merlin.views.heat import cell_bounds, heat
from merlin.views.outcome_runs import OUTCOMES, runs_of_map
from merlin.views.study_page import StudyView

VALUES = {
    OK: "ok",
    FAILED: "failed",
    SOFT_FAILED: "failed",
    SKIPPED: "skipped",
    INTERRUPTED: "missing",
    NO_OUTCOME: "missing",
}


@given(st.integers(0, 10**9), st.integers(1, 2000))
def test_cells_cover_exactly_all_tasks_and_differ_by_one_at_most(num_tasks: int, num_cells: int) -> None:
    bounds = cell_bounds(num_tasks, num_cells)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, num_tasks)
    assert len(sizes) == min(num_tasks, num_cells)
    assert not len(sizes) or 0 < sizes.min() >= sizes.max() - 1


@given(st.lists(st.sampled_from(sorted(VALUES)), max_size=60), st.data())
def test_runs_count_and_find_what_a_loop_over_tasks_does(values: list[int], data: st.DataObject) -> None:
    map_ = RunMap(len(values))
    for task, value in enumerate(values):
        map_.set(task, task + 1, value)
    runs, names = runs_of_map(map_), [VALUES[value] for value in values]
    bounds = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=2, max_size=6)))
    counts = runs.counts_between(np.array(bounds))
    for (lo, hi), row in zip(pairwise(bounds), counts.tolist(), strict=True):
        assert row == [names[lo:hi].count(word) for word in OUTCOMES]
    first = data.draw(st.integers(0, len(values) + 3))
    for word in ("", *OUTCOMES):
        found = [task for lo, hi in runs.ranges(word, first) for task in range(lo, hi)]
        assert found == [t for t, name in enumerate(names) if t >= first and word in ("", name)]
    assert [runs.outcome(task) for task in range(len(values))] == names


@pytest.mark.parametrize("num_cells", [1, 7, 600])
def test_cells_of_a_step_go_over_its_instances_and_extensions(tmp_path: Path, num_cells: int) -> None:
    study = make_study(tmp_path / "study_20260101-000000")
    extension = extend_study(study, num=5)
    append(study, chunk(0, [OK, FAILED] * 6), chunk(3, [OK] * 9, instance="sim/P.2"))
    append(extension, chunk(0, [OK, FAILED, OK]))
    found = heat(StudyView(study.path), "sim", num_cells)
    every = [words(member)[id] for member in (study, extension) for id in ("sim/P.1", "sim/P.2")]
    names = [name for each in every for name in each]
    assert found.num_tasks == len(names) == 2 * NUM + 10
    for cell in found.cells:
        assert list(cell[2:]) == [names[cell.lo : cell.hi].count(word) for word in OUTCOMES]
    assert (found.cells[0].lo, found.cells[-1].hi) == (0, found.num_tasks)
    assert found.first_sample is None  # the second instance begins with the first sample again


def test_a_cell_tells_its_samples_where_tasks_follow_them_one_by_one(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study_20260101-000000")
    extend_study(study, num=5)
    view = StudyView(study.path)
    assert heat(view, "post").first_sample == 0
    assert heat(view, "end").first_sample is None
    assert heat(StudyView(study.path / "extensions" / "001"), "post").first_sample == NUM
    with pytest.raises(WorkspaceError, match="no step 'nothing'; it has: sim, post, end"):
        heat(view, "nothing")
