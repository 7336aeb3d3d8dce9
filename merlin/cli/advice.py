"""Words for people: what a study's numbers say, and which commands to run next. Light to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from merlin.base.text import count
from merlin.plan.outcome_counts import OUTCOMES
from merlin.views.after_stop import next_commands as next_commands


def on_failed_input(num: int) -> str:
    """ "12 tasks ran on input that had failed"."""
    return f"{count(num, 'task')} ran on input that had failed"


def reconciled(numbers: Mapping[str, Any]) -> str:
    """ "planned 10 = ok 8 + failed 1 + skipped 1 + missing 0"."""
    parts = " + ".join(f"{key} {numbers[key]:,}" for key in OUTCOMES[1:])
    return f"planned {numbers['planned']:,} = {parts}"
