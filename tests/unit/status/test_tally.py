from __future__ import annotations

from pathlib import Path

import pytest
from status_study import FAILED, OK, add, chunk, make_workspace
from task_costs import cost_of

from merlin.ledger.replay import replay
from merlin.status.tally import Sums, cost_of_sums


def test_sums_tell_the_cost_of_tasks_that_the_records_tell(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "study_20260101-000000")
    timed = []
    for instance in ("sim/P.1", "sim/P.2"):
        for lo, (num, seconds) in enumerate([(1, 3.0), (4, 10.0), (2, 0.5), (3, 0.0)]):
            add(workspace, chunk(instance, 4 * lo, [OK, FAILED, OK, OK][:num], elapsed_s=seconds))
            timed.append((num, seconds))
    state = replay(workspace.ledger_dir, workspace.plan)
    sums = {instance: Sums() for instance in ("sim/P.1", "sim/P.2")}
    for entry in state.entries():
        sums[entry.header.instance].add(entry)
    found, expected = cost_of_sums(sums.values()), cost_of(timed)
    assert found is not None
    assert expected is not None
    assert (found.num, found.mean_s, found.longest_s) == (expected.num, expected.mean_s, expected.longest_s)
    assert found.deviation_s == pytest.approx(expected.deviation_s)
    assert cost_of_sums([Sums()]) is None
