"""Resets: records that make earlier outcomes invalid, so that their tasks run again.

They are made here by all that let ended tasks run again: a restart, a rerun, a repair, an update, an owner that does
not trust a node. The cause of a reset says which of these it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from merlin.base.ranges import Range
from merlin.ledger.records import RESET, RangeRecord
from merlin.plan.tasks import FROM_FILES

RUN_AGAIN = "to be run again"
EDITED = "the spec was edited"
COLLECT_AGAIN = "to be collected again"  # only the outputs: the script does not run
_FROM_DATA_SETS = f"{COLLECT_AGAIN} from the data sets that were put aside by revision "


def taken_from(revision: int) -> str:
    """The cause of tasks whose values are in the data sets that a revision has put aside: these do not run."""
    return f"{_FROM_DATA_SETS}{revision}"


def whence(cause: str) -> int:
    """Where the values of tasks lie that were reset with this cause (see `FROM_FILES`); 0 if the tasks run."""
    if cause == COLLECT_AGAIN:
        return FROM_FILES
    number = cause.removeprefix(_FROM_DATA_SETS)
    return int(number) if number != cause and number.isdecimal() else 0


def resets(
    tasks: Mapping[str, list[Range]], cause: str = RUN_AGAIN, *, attempt: int = 0
) -> list[RangeRecord]:
    """Records that make these tasks missing, by step instance. Append them together."""
    return [
        RangeRecord(instance=id, lo=lo, hi=hi, outcome=RESET, cause=cause, attempt=attempt)
        for id, ranges in tasks.items()
        for lo, hi in ranges
    ]
