"""Resets: records by which outcomes of before do not count any more, so that their tasks run again.

Whoever lets tasks run again that have ended writes them here: a restart, a rerun, a repair, an update, an owner that
does not trust a node. Their cause says which it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from merlin.ledger.records import RESET, RangeRecord
from merlin.plan.pieces import Range

RUN_AGAIN = "to be run again"
EDITED = "the spec was edited"
COLLECT_AGAIN = "to be collected again"  # only the outputs: the script does not run


def resets(
    tasks: Mapping[str, list[Range]], cause: str = RUN_AGAIN, *, attempt: int = 0
) -> list[RangeRecord]:
    """Records that make these tasks missing, by step instance. Append them together."""
    return [
        RangeRecord(instance=id, lo=lo, hi=hi, outcome=RESET, cause=cause, attempt=attempt)
        for id, ranges in tasks.items()
        for lo, hi in ranges
    ]
