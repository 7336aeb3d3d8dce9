"""What a run says at its end."""

from __future__ import annotations

from typing import Any

import pytest

from merlin.cli.execute import show_report
from merlin.shards.format.counts import Counts


def report(**counts: int) -> dict[str, Any]:
    found = Counts(**{"planned": 20, "ok": 0, "failed": 0, "skipped": 0, "missing": 0} | counts)
    totals = {"planned": 22, "ok": 22, "failed": 0, "skipped": 0, "missing": 0}
    data_set = {"line": "/w/c: …", "rows": found.ok, "samples": found}
    return {
        "workspace": "/w", "steps": [], "seconds": 1.0, "on_failed_input": 0, "failures": [], "stop_reason": "",
        "exit_code": 0, "data_sets": [data_set], **totals,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "is_told"),
    [({"filtered": 20}, True), ({"filtered": 19, "ok": 1}, False), ({"failed": 20}, False)],
)
def test_a_filter_that_lets_nothing_pass_is_told(
    counts: dict[str, int], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show_report(report(**counts))
    assert ("its filter (valid) let no sample pass" in capsys.readouterr().out) == is_told
