"""How many tasks ended how, declared once for all that counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from msgspec import Struct

OUTCOMES = ("planned", "ok", "failed", "skipped", "missing")


class OutcomeCounts(Struct, frozen=True, kw_only=True):
    """Tasks by outcome: planned = ok + failed + skipped + missing."""

    planned: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped


class Outcomes(TypedDict):
    """The counts of `OutcomeCounts` as a dictionary."""

    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int


def summed(every: Iterable[object]) -> Outcomes:
    """The outcomes of several counts, of anything that has these five attributes."""
    totals = Outcomes(planned=0, ok=0, failed=0, skipped=0, missing=0)
    for each in every:
        for name in totals:
            totals[name] += getattr(each, name)  # type: ignore[literal-required]
    return totals
