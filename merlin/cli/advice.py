"""Words for people: what numbers and inputs of tasks say. Light to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from merlin.base.text import count, cut, percent
from merlin.plan.outcome_counts import OUTCOMES

if TYPE_CHECKING:
    from merlin.status.input_ranges import InputRange

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
    shown = [f"{name}={cut(repr(value), MAX_CHARS)}" for name, value in list(inputs.items())[:MAX_INPUTS]]
    more = len(inputs) - len(shown)
    return " ".join([*shown, *([f"… and {more} more"] if more else [])])


def shown_range(found: InputRange) -> str:
    """ "X0 in [0.8, 1]: 45% of the tasks fail so, elsewhere 0.2% (p = 3e-12)"."""
    p = f"p = {found.p:.0e}" if found.p > 1e-99 else "p < 1e-99"
    values = f"in [{found.low:.4g}, {found.high:.4g}]" if found.low != found.high else f"= {found.low:.6g}"
    return (
        f"{found.input} {values}: {percent(found.rate_inside, 1.0)}% of the tasks fail so, "
        f"elsewhere {percent(found.rate_outside, 1.0)}% ({p})"
    )
