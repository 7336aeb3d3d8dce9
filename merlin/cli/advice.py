"""Words for people: what numbers and inputs of tasks say, and which commands to run next. Light to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from merlin.base.text import count
from merlin.plan.outcome_counts import OUTCOMES
from merlin.views.after_stop import next_commands as next_commands

MAX_INPUTS, MAX_CHARS = 12, 40  # of a task: values, and characters of each


def on_failed_input(steps: Iterable[tuple[str, int]]) -> str:
    """ "12 tasks ran on input that had failed: analyse 8, report 4"; empty if none did."""
    found: Counter[str] = Counter()
    for step, num in steps:
        found[step] += num
    if not (num := found.total()):
        return ""
    named = ", ".join(f"{step} {n:,}" for step, n in found.items() if n)
    return f"{count(num, 'task')} ran on input that had failed: {named}"


def reconciled(numbers: Mapping[str, Any]) -> str:
    """ "planned 10 = ok 8 + failed 1 + skipped 1 + missing 0"."""
    parts = " + ".join(f"{key} {numbers[key]:,}" for key in OUTCOMES[1:])
    return f"planned {numbers['planned']:,} = {parts}"


def shown_inputs(inputs: Mapping[str, Any]) -> str:
    """ "X=0.25 MODEL='a b'", cut where it is long."""
    shown = [f"{name}={_cut(value)}" for name, value in list(inputs.items())[:MAX_INPUTS]]
    more = len(inputs) - len(shown)
    return " ".join([*shown, *([f"… and {more} more"] if more else [])])


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
