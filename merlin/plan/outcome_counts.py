"""How many tasks ended how, declared once for all that counts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OUTCOMES = ("planned", "ok", "failed", "skipped", "missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """Tasks by outcome: planned = ok + failed + skipped + missing."""

    planned: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped


def summed(every: Iterable[object]) -> dict[str, int]:
    """The outcomes of several counts (of anything that has these five attributes), by name."""
    counts = list(every)
    return {name: sum(getattr(each, name) for each in counts) for name in OUTCOMES}
